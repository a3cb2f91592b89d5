# SPDX-License-Identifier: BSD-3-Clause
"""A file for another torch; run by test_upstream.py, not by pytest."""

from torch.testing._internal import no_such_module  # noqa: F401
