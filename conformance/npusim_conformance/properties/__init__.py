# SPDX-License-Identifier: BSD-3-Clause
"""Properties: the questions that are asked of operators, modules, optimizers and lists.

A file is a family of properties and lists its classes in PROPERTIES; cases/known.py collects them.
base.py has the base classes; calls.py, recording.py and distributions.py serve several families.
A property judges by `judge` and takes its samples from `inputs`. It knows nothing of processes,
logs and reports.
"""
