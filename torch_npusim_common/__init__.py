# SPDX-License-Identifier: BSD-3-Clause
"""The ground under torch_npusim and its entry points: imports neither of them, nor torch."""
