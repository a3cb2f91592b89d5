# SPDX-License-Identifier: BSD-3-Clause
"""Texts of tensors on the device: those of the CPU, and the device's name."""

from collections.abc import Callable

import torch

from npusim_conformance.contracts import contract, on, same
from npusim_conformance.inputs.torch_testing import DTYPE_ORDER, dtype_name
from npusim_conformance.properties.base import Run, require

_WIDE = 500  # characters in a line, so that the device's name breaks none


def _text(tensor: torch.Tensor, device: torch.device) -> str:
    """repr() without the device's name."""
    text = repr(tensor)
    if device.type != "cpu":
        require(f"device='{device}'" in text, f"repr() does not name {device}: {text[:200]}")
    return text.replace(f", device='{device}'", "")


def _same_text(what: str, here: torch.Tensor, device: torch.device) -> None:
    torch.set_printoptions(linewidth=_WIDE)  # type: ignore[no-untyped-call]
    try:
        same(what, _text(here.to(device), device), repr(here))
    finally:
        torch.set_printoptions(profile="default")  # type: ignore[no-untyped-call]


def _all_print(run: Run, chosen: Callable[[torch.dtype], bool]) -> None:
    left_out = run.under_test.expectations.unsupported_dtypes
    for dtype in filter(chosen, DTYPE_ORDER):
        name = dtype_name(dtype)
        if name in left_out:
            continue
        here = torch.tensor([0, 1, 1, 0] * 4, dtype=torch.uint8).view(dtype)
        try:
            repr(here)
        except (RuntimeError, NotImplementedError):
            continue  # torch cannot print it at all
        _same_text(name, here, run.device)


@contract()
def float32_prints(run: Run) -> None:
    """repr() of a tensor of float32 is the CPU's and the device's name."""
    _all_print(run, lambda dtype: dtype == torch.float32)


@contract()
def every_other_float_prints(run: Run) -> None:
    """repr() of a tensor of any other floating dtype is the CPU's and the device's name."""
    _all_print(run, lambda dtype: dtype.is_floating_point and dtype != torch.float32)


@contract()
def every_integer_prints(run: Run) -> None:
    """repr() of a tensor of integers is the CPU's and the device's name."""
    plain = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    _all_print(run, lambda dtype: dtype in plain)


@contract()
def every_rare_dtype_prints(run: Run) -> None:
    """repr() of a tensor of complex numbers or wide unsigned ones is as on the CPU."""
    wide = (torch.uint16, torch.uint32, torch.uint64)
    _all_print(run, lambda dtype: dtype.is_complex or dtype in wide)


@contract()
def every_shape_prints(run: Run) -> None:
    """Scalars, empty, large and strange tensors print as on the CPU."""
    for name, here in {
        "0-d": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "2-d": torch.arange(6.0).view(2, 3),
        "with nan and inf": torch.tensor([float("nan"), float("inf"), -1.0]),
        "of very different size": torch.tensor([1e-8, 1.0, 1e8]),
        "large": torch.arange(5000.0),
        "transposed": torch.arange(6).view(2, 3).t(),
    }.items():
        _same_text(name, here, run.device)


@contract()
def gradients_show(run: Run) -> None:
    """requires_grad and grad_fn show, and parameters print."""
    leaf = on(run.device, 1).requires_grad_()
    require("requires_grad=True" in repr(leaf), repr(leaf))
    require("grad_fn=<MulBackward0>" in repr(leaf * 2), repr(leaf * 2))
    parameter = repr(torch.nn.Parameter(leaf.detach()))
    require(parameter.startswith("Parameter containing:"), parameter)


@contract()
def formats_as_numbers(run: Run) -> None:
    """str() equals repr(), and a 0-d tensor takes a number's format."""
    there = on(run.device, 1.23456)
    same("str()", str(there), repr(there))
    same("format()", f"{there[0]:.2f}", "1.23")


@contract()
def printing_changes_nothing(run: Run) -> None:
    """Printing leaves values and the CPU's generator as they were."""
    there = on(run.device, 1, 2)
    before, version = torch.get_rng_state(), there._version
    repr(there)
    same("the CPU's generator", torch.get_rng_state(), before)
    same("_version", there._version, version)
    same("values", there, torch.tensor([1.0, 2.0]))
