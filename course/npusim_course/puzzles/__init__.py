# SPDX-License-Identifier: BSD-3-Clause
"""The puzzles of the course, a module per lesson; the solutions are in tests/course/."""
