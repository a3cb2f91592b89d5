# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of bytes as users write them; imports neither torch nor pytest. PYTEST_DONT_REWRITE"""

import re

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_bytes(text: str | int) -> int:
    """Returns the number of bytes that "512MiB", "1.5 gib" or 4096 means.

    Syntax shared with NPUSIM_DEVICE_MEMORY and npusim-lab (tests/plugin/test_byte_sizes.py).

    Raises:
        ValueError: For a text that is no number of bytes.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", str(text))
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected a number of bytes such as 512MiB or 4096, got {text!r}")
    return int(float(match[1]) * unit)
