# SPDX-License-Identifier: BSD-3-Clause
"""`python -m npusim_conformance` is the command `npusim-conformance`."""

import sys

from npusim_conformance.cli import main

sys.exit(main())
