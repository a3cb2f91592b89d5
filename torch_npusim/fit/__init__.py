# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit`: whether a script's memory fits a device, what the peak is, and what would help.

Code enters if it says whether a program fits a device, from a dry run.
"""
