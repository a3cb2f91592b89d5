# SPDX-License-Identifier: BSD-3-Clause
"""Copies that convert to and from dtypes that few programs use: unsigned, eight bits, complex."""

from itertools import product

import torch

from npusim_conformance.contracts import contract
from npusim_conformance.contracts.copy import same_bytes
from npusim_conformance.inputs.torch_testing import dtype_name
from npusim_conformance.properties.base import Run

# Numbers by dtype: its ends, and what a narrower dtype on the way would lose.
_NUMBERS: dict[torch.dtype, tuple[complex, ...]] = {
    torch.uint16: (0, 1, 255, 2**15, 2**16 - 1),
    torch.uint32: (0, 1, 2**16, 2**31, 2**32 - 1),
    torch.uint64: (0, 1, 2**32, 2**53 + 1, 2**63),
    torch.int64: (0, 1, -1, 2**31, -(2**40) - 1),
    torch.float32: (0, 0.28, -1.75, 448, 2**15),
    torch.float64: (0, 0.28, 1 + 2**-40, -448, 1e30),
    torch.float8_e4m3fn: (0, 0.1, -1.75, 448, 2**-9),
    torch.float8_e5m2: (0, 0.1, -1.75, 57344, 2**-16),
    torch.complex64: (0, 1 - 2j, 0.3 + 0.7j, 2**24 + 3j, -1e-30j),
    torch.complex128: (0, 1 - 2j, 1 + 2**-40 + 0.1j, 2**53 + 3j, -1e-300j),
}


@contract()
def rare_kinds_are_converted(run: Run) -> None:
    """Unsigned, eight-bit and complex numbers are converted as on the CPU, in all directions."""
    left_out = run.under_test.expectations.unsupported_dtypes
    kinds = [kind for kind in _NUMBERS if dtype_name(kind) not in left_out]
    for source, target in product(kinds, repeat=2):
        here = torch.tensor(_NUMBERS[source], dtype=source)
        if source.is_complex > target.is_complex or not _holds(target, here):
            continue
        expected, name = here.to(target), f"{dtype_name(source)} to {dtype_name(target)}"
        there = here.to(run.device)
        same_bytes(f"{name} on the device", there.to(target), expected)
        same_bytes(f"{name} on the way there", here.to(run.device, target), expected)
        same_bytes(f"{name} on the way back", there.to("cpu", target), expected)


def _holds(target: torch.dtype, here: torch.Tensor) -> bool:
    """Whether a conversion of these numbers is defined: what overflows an integer is not."""
    if target.is_floating_point or target.is_complex:
        return True
    if here.dtype.is_floating_point:
        return False  # of fractions and negative numbers, other contracts ask
    limits, numbers = torch.iinfo(target), here.tolist()
    return all(limits.min <= number <= limits.max for number in numbers)
