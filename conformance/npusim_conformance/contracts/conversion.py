# SPDX-License-Identifier: BSD-3-Clause
"""Copies that convert to and from dtypes that few programs use: unsigned, eight bits, complex."""

from itertools import product

import torch

from npusim_conformance.backend.device import CPU
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


@contract()
def booleans_are_zero_or_one(run: Run) -> None:
    """Of any number but zero, NaN too, a conversion to bool makes the byte 1."""
    numbers = {
        torch.uint8: (0, 1, 2, 128, 255),
        torch.int8: (0, 1, -1, -128, 64),
        torch.int32: (0, 1, 256, -(2**31), 2**16),
        torch.int64: (0, 1, 2**32, -(2**63), 256),
        torch.float16: (0.0, -0.0, 2**-24, float("nan"), float("inf")),
        torch.bfloat16: (0.0, -0.0, 1e-38, float("nan"), 0.5),
        torch.float32: (0.0, -0.0, 1e-45, float("nan"), -0.25),
        torch.float64: (0.0, -0.0, 5e-324, float("nan"), 1e300),
        torch.complex64: (0j, 1j, complex(0, float("nan")), 1 + 0j, complex(-0.0, -0.0)),
    }
    left_out = run.under_test.expectations.unsupported_dtypes
    for source, values in numbers.items():
        if dtype_name(source) in left_out:
            continue
        here = torch.tensor(values, dtype=source)
        expected, name = here.to(torch.bool), f"{dtype_name(source)} to bool"
        there = here.to(run.device)
        same_bytes(f"{name} on the device", there.to(torch.bool), expected)
        same_bytes(f"{name} on the way there", here.to(run.device, torch.bool), expected)
        same_bytes(f"{name} on the way back", there.to("cpu", torch.bool), expected)


@contract()
def fractions_are_cut_towards_zero(run: Run) -> None:
    """A conversion to integers cuts the fraction off, of negative numbers too."""
    values = (-2.75, -1.5, -1.0, -0.5, 0.5, 1.5, 2.999)
    for source in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for target in (torch.int8, torch.int16, torch.int32, torch.int64):
            here = torch.tensor(values, dtype=source)
            expected, name = here.to(target), f"{dtype_name(source)} to {dtype_name(target)}"
            there = here.to(run.device)
            same_bytes(f"{name} on the device", there.to(target), expected)
            same_bytes(f"{name} on the way there", here.to(run.device, target), expected)
            same_bytes(f"{name} on the way back", there.to("cpu", target), expected)


@contract()
def conversions_broadcast(run: Run) -> None:
    """copy_() broadcasts and converts at once: rows, columns and numbers, in each direction."""
    kinds = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16, torch.bool)
    shapes = ((3,), (2, 1), (1, 1), (1,), ())
    for source, target in product(kinds, repeat=2):
        for shape in shapes:
            here = torch.arange(3 if 3 in shape else 2 if 2 in shape else 1)
            here = (here + 1).to(source).view(shape)
            expected = torch.zeros(2, 3, dtype=target).copy_(here)
            there = here.to(run.device)
            ways = {"within the device": (there, run.device), "there": (here, run.device)}
            for way, (given, device) in (ways | {"back": (there, CPU)}).items():
                got = torch.zeros(2, 3, dtype=target).to(device).copy_(given)
                name = f"{dtype_name(source)} {shape} to {dtype_name(target)} (2, 3)"
                same_bytes(f"{name}, {way}", got, expected)
