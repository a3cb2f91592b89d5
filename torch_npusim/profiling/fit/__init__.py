# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit`: whether a script's memory fits a device, what the peak is, and what would help."""
