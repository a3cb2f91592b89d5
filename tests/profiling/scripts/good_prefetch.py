# SPDX-License-Identifier: BSD-3-Clause
"""Uploads that are one batch ahead, on a stream of their own."""

import sys
from pathlib import Path

sys.argv.append("mended")
exec(compile((Path(__file__).parent / "copies.py").read_text(), "copies.py", "exec"))
