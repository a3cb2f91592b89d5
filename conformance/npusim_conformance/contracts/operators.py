# SPDX-License-Identifier: BSD-3-Clause
"""Operators with arguments and values that samples seldom have, as expressions against the CPU.

Each expression is computed on the CPU and on the device, there from contiguous tensors, from
turned ones with and without gaps, from ones that begin at an odd place, and from those of a second
device while the first is current. The expressions and their names are in inputs/expressions.py.
"""

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import torch

from npusim_conformance.contracts import contract
from npusim_conformance.inputs import expressions as table
from npusim_conformance.judge.diagnosis import diagnose
from npusim_conformance.properties.base import Run
from npusim_conformance.verdict import Mismatch, Status

Values = dict[str, torch.Tensor]
Ask = Callable[[CodeType, Values], list[Any]]
_TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 3e-2, torch.float64: 1e-9}


def _split(lines_of: str, head: str = "") -> list[str]:
    lines = [line for line in lines_of.strip().splitlines() if line]
    return [head + one.strip() for line in lines for one in line.split(";") if one.strip()]


def _gapped(there: torch.Tensor) -> torch.Tensor:
    """The same values in turned order with gaps between them."""
    if there.dim() < 2:
        return torch.stack((there, there), -1)[..., 0] if there.dim() else there
    turned = torch.stack((there, there), -1)
    return turned.transpose(0, -2).contiguous().transpose(0, -2)[..., 0]


def _turned(there: torch.Tensor) -> torch.Tensor:
    """The same values in turned order, without gaps."""
    return there.transpose(0, -1).contiguous().transpose(0, -1) if there.dim() > 1 else there


def _shifted(there: torch.Tensor) -> torch.Tensor:
    """The same values behind one other element."""
    flat = there.reshape(-1)
    return torch.cat((flat[:1], flat))[len(flat[:1]) :].view(there.shape)


_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda there: there,
    "turned": _turned,
    "gapped": _gapped,
    "shifted": _shifted,
}
_ELSEWHERE = "a second device's"
# As torch says that an operator does not take a dtype, or that a device has no loop for it.
_MISSING = ("\" not implemented for '", "DispatchStub: missing kernel")


def _difference(got: Any, expected: Any, least: float | None = None) -> str:
    """How a result differs from the CPU's, or nothing."""
    if not isinstance(expected, torch.Tensor):
        return "" if type(got) is type(expected) and got == expected else f"{got}, not {expected}"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    here = got.detach().cpu().resolve_conj().resolve_neg()
    limit = _TOLERANCE.get(expected.dtype, 1e-4)
    same = torch.isclose(here, expected, limit, limit if least is None else least, equal_nan=True)
    if expected.dtype.is_floating_point:  # a zero's sign is kept where the CPU keeps it
        same &= (expected != 0) | (here.signbit() == expected.signbit())
    if bool(same.all()):
        return ""
    first = tuple((~same).nonzero()[0].tolist())
    return f"element {list(first)} is {here[first].item()!r}, not {expected[first].item()!r}"


def _written(call: Callable[[torch.Tensor], object], given: torch.Tensor) -> torch.Tensor:
    """The tensor after a call that writes to it: a copy of the one given, laid out as that is."""
    base = given.detach().clone()
    target = torch.empty_strided(
        given.shape, given.stride(), dtype=given.dtype, device=given.device
    )
    if given.numel():
        target.copy_(base)
    call(target)
    return target


def _results(code: CodeType, values: Values) -> list[Any]:
    """The results of an expression."""
    names = {
        "torch": torch,
        "_INF": table.INF,
        "_NAN": table.NAN,
        "unfold": torch.nn.functional.unfold,
        "norm": torch.nn.functional.batch_norm,
        "written": _written,
    }
    result = eval(code, {**names, **values})
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _gradients(code: CodeType, values: Values) -> list[Any]:
    """The gradients of an expression's floating-point names, each element weighted by its place."""
    leaves = {
        name: values[name].detach().requires_grad_()
        for name in code.co_names
        if name in values and values[name].is_floating_point()
    }
    found = [one for one in _results(code, {**values, **leaves}) if isinstance(one, torch.Tensor)]
    sums = [
        (one * (torch.arange(1.0, 1 + one.numel()) % 7).view(one.shape).to(one.device)).sum()
        for one in found
        if one.requires_grad and one.is_floating_point()
    ]
    if not sums:
        return []
    return list(torch.autograd.grad(sums, list(leaves.values()), allow_unused=True))


def _agree(
    run: Run, expressions: Iterable[str], ask: Ask = _results, least: float | None = None
) -> None:
    """Raises Mismatch for expressions whose results, or gradients, are not the CPU's.

    `least` is the absolute error that counts as none; it is the relative one if left out.
    """
    here = table.values()
    wrong: dict[str, list[str]] = {}  # by what is said of them
    layouts: dict[str, Values] = {name: {} for name in _LAYOUTS}
    for name, value in here.items():
        there = value.to(run.device)
        for layout, arrange in _LAYOUTS.items():
            layouts[layout][name] = arrange(there)
    if ask is _gradients:  # which cost the most; of a layout, mistakes are the result's, too
        layouts = {"turned": layouts["turned"]}
    elif run.under_test.second is not None:
        second = run.under_test.second
        layouts[_ELSEWHERE] = {name: value.to(second) for name, value in here.items()}
    for text in expressions:
        code = compile(text, text, "eval")
        try:
            expected = ask(code, here)
        except RuntimeError:
            continue  # not with this torch, or not differentiable
        for layout, values in layouts.items():
            said = _wrong(ask, code, values, expected, least)
            if said:
                of = "" if layout == "contiguous" else f" of {layout} tensors"
                wrong.setdefault(said, []).append(text.removeprefix(table.FUNCTIONAL) + of)
                break
    if wrong:
        parts = [
            f"{one[0]}{f' and {len(one) - 1} more' if one[1:] else ''}: {said}"
            for said, one in wrong.items()
        ]
        raise Mismatch("; ".join(parts[:6]))


def _wrong(
    ask: Ask, code: CodeType, values: Values, expected: list[Any], least: float | None
) -> str:
    """Says how an expression is wrong on the device, or nothing."""
    try:
        got = ask(code, values)
    except (RuntimeError, NotImplementedError) as error:
        missing = any(words in str(error) for words in _MISSING)
        if missing or diagnose(error).status is Status.UNIMPLEMENTED:
            return ""  # of what is missing, the operators' own cases tell
        return f"raises {str(error).splitlines()[0][:120]}"
    there = values["x"].device
    for one in got:
        if isinstance(one, torch.Tensor) and one.device != there and one.device.type == there.type:
            return f"the result lies on {one.device}, the operands lie on {there}"
    compared = (_difference(*pair, least) for pair in zip(got, expected, strict=False))
    return next(filter(None, compared), "")


@contract()
def reductions_agree(run: Run) -> None:
    """Sums, extremes and norms are the CPU's: negative dims, ties, NaN, overflow, no elements."""
    _agree(run, _split(table.REDUCTIONS))


@contract()
def arithmetic_agree(run: Run) -> None:
    """Sums, quotients, remainders and bits are the CPU's: signs, ends of dtypes, alpha, value."""
    _agree(run, _split(table.ARITHMETIC))


@contract()
def comparisons_agree(run: Run) -> None:
    """Comparisons, limits and signs are the CPU's: NaN, infinities, signs of zeros, integers."""
    _agree(run, _split(table.COMPARISONS))


@contract()
def functions_agree(run: Run) -> None:
    """Powers, logarithms and special functions are the CPU's: tiny, huge, at poles."""
    _agree(run, _split(table.FUNCTIONS), least=1e-9)


@contract()
def absolutes_agree(run: Run) -> None:
    """Absolute values are the CPU's, of every kind and layout."""
    _agree(run, _split(table.ABSOLUTES))


@contract()
def complex_numbers_agree(run: Run) -> None:
    """Operators on complex numbers and Fourier transforms are the CPU's."""
    _agree(run, _split(table.COMPLEX))


@contract()
def moves_agree(run: Run) -> None:
    """Operators that move, repeat and join elements are the CPU's: negative dims, wide steps."""
    _agree(run, _split(table.MOVES))


@contract()
def indexes_agree(run: Run) -> None:
    """Indexing, gathering and scattering are the CPU's: turned and equal indexes, negative dims."""
    _agree(run, _split(table.INDEXES))


@contract()
def orders_agree(run: Run) -> None:
    """Sorting, choosing and searching are the CPU's: NaN, ties, both directions, other dims."""
    _agree(run, _split(table.ORDERS))


@contract()
def factories_agree(run: Run) -> None:
    """Ranges, windows and other factories are the CPU's: negative steps, one element, offsets."""
    _agree(run, _split(table.MADE))


@contract()
def products_agree(run: Run) -> None:
    """Products are the CPU's: turned operands, no elements, alpha and beta, every dtype."""
    _agree(run, _split(table.PRODUCTS))


@contract()
def decompositions_agree(run: Run) -> None:
    """Solutions, distances and decompositions are the CPU's, of both triangles and sides."""
    _agree(run, _split(table.DECOMPOSITIONS))


@contract()
def activations_agree(run: Run) -> None:
    """Activations and norms are the CPU's, with every argument that they take."""
    _agree(run, _split(table.ACTIVATIONS, table.FUNCTIONAL))


@contract()
def poolings_agree(run: Run) -> None:
    """Poolings, resamplings and foldings are the CPU's, with every argument that they take."""
    _agree(run, _split(table.POOLINGS, table.FUNCTIONAL))


@contract()
def losses_agree(run: Run) -> None:
    """Losses, embeddings and attention are the CPU's: weights, reductions, ignored classes."""
    _agree(run, _split(table.LOSSES, table.FUNCTIONAL))


@contract()
def convolutions_agree(run: Run) -> None:
    """Convolutions are the CPU's: stride, padding, dilation, groups, transposed, no images."""
    _agree(run, _split(table.CONVOLUTIONS, table.FUNCTIONAL))


@contract()
def writes_agree(run: Run) -> None:
    """In-place operators, out= and running statistics write what they write on the CPU, no more."""
    _agree(run, _split(table.WRITTEN))


@contract()
def gradients_of_elements_agree(run: Run) -> None:
    """Gradients of elementwise operators and reductions are the CPU's, with every argument."""
    _agree(
        run,
        _split(table.REDUCTIONS + table.ARITHMETIC + table.COMPARISONS + table.FUNCTIONS),
        _gradients,
    )


@contract()
def gradients_of_indexes_agree(run: Run) -> None:
    """Gradients of moving, indexing and sorting are the CPU's, with every argument."""
    _agree(run, _split(table.MOVES + table.INDEXES + table.ORDERS), _gradients)


@contract()
def gradients_of_products_agree(run: Run) -> None:
    """Gradients of products and decompositions are the CPU's, with every argument."""
    _agree(run, _split(table.PRODUCTS + table.DECOMPOSITIONS), _gradients)


@contract()
def gradients_of_activations_agree(run: Run) -> None:
    """Gradients of activations and norms are the CPU's, with every argument."""
    _agree(run, _split(table.ACTIVATIONS, table.FUNCTIONAL), _gradients)


@contract()
def gradients_of_poolings_agree(run: Run) -> None:
    """Gradients of poolings and resamplings are the CPU's, with every argument."""
    _agree(run, _split(table.POOLINGS, table.FUNCTIONAL), _gradients)


@contract()
def gradients_of_losses_agree(run: Run) -> None:
    """Gradients of losses, embeddings and attention are the CPU's, with every argument."""
    _agree(run, _split(table.LOSSES, table.FUNCTIONAL), _gradients)
