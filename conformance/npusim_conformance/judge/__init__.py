# SPDX-License-Identifier: BSD-3-Clause
"""Judgement: whether a result is right, which overload is at fault, and which call shows it.

agreement.py compares with the CPU and with a float64 recomputation. diagnosis.py reads exceptions.
attribution.py finds the overload at fault. plain_python.py writes a failing call as a script.
Code enters if it turns a result or an exception into a verdict. It may run operators, but it starts
no process and knows no property, log or report.
"""
