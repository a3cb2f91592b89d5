# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of cases: subjects, their samples, and the ways to copy and vary them.

torch_testing.py is the only file that touches torch.testing._internal; it lists the private names
and the version of torch that they were checked on. Subjects are operators, modules, optimizers and
lists; samples are made on the CPU and are the same on every device.
Code enters if it makes, copies or changes the arguments of a call. Nothing here compares results.
"""
