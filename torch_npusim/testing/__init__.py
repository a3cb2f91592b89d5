# SPDX-License-Identifier: BSD-3-Clause
"""What tests on npusim ask: which device memory is left, and who keeps it.

The pytest plugin (torch_npusim_autoload.pytest_plugin) asks it after every test.
"""

from torch_npusim.testing import leaks

__all__ = ["leaks"]
