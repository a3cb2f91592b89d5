# SPDX-License-Identifier: BSD-3-Clause
"""`python -m torch_npusim` is the `npusim` command."""

import sys

from torch_npusim.cli import main

sys.exit(main())
