# SPDX-License-Identifier: BSD-3-Clause
"""Claims: wrong programs that npusim must stop, their runner, their outcomes, their pages."""
