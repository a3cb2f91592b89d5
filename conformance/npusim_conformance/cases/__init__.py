# SPDX-License-Identifier: BSD-3-Clause
"""Cases: all that exist, the ones that a selection chooses, and their order under a time budget.

known.py collects the properties, contract_property.py makes one of each contract, selection.py
is a choice of them, catalog.py lists and resolves names, priority.py orders them. Code enters if it
answers which cases there are; nothing here runs one.
"""
