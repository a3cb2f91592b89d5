# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own test files as cases: collected (collection.py), then run one by one (execution.py).

A failing test is repeated by twin_process.py, a process without the backend, which twin.py asks.
Code enters if it concerns unittest classes of PyTorch's source tree.
"""
