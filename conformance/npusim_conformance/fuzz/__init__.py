# SPDX-License-Identifier: BSD-3-Clause
"""Calls of every aten overload with unusual arguments, in forked children that may die.

seeds.py records calls of torch's own samples, arguments.py and mutations.py make unusual ones,
calls.py writes a call as text, children.py executes texts, fuzzer.py judges and reports outcomes.
Code enters if it serves these calls. Values are not compared: only the end of a
process counts.
"""
