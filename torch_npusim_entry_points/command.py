# SPDX-License-Identifier: BSD-3-Clause
"""The console script `npusim`: starts the real command, or says why the device cannot be loaded.

Here for the reason autoload() is: importing any module of torch_npusim registers the device, and
the person who types `npusim doctor` may be asking why exactly that fails.
"""

import sys


def main() -> int:
    """Runs torch_npusim.cli; if torch_npusim cannot be imported, says why and returns 1."""
    try:
        from torch_npusim.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("npusim: interrupted\n")
        return 130
    except ImportError as problem:
        sys.stderr.write(f"npusim: torch_npusim cannot be loaded: {problem}\n")
        return 1
    return command()


if __name__ == "__main__":
    sys.exit(main())
