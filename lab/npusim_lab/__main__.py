# SPDX-License-Identifier: BSD-3-Clause
"""`python -m npusim_lab` is the command `npusim-lab`."""

import sys

from npusim_lab.command import main

if __name__ == "__main__":
    sys.exit(main())
