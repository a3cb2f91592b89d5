# SPDX-License-Identifier: BSD-3-Clause
"""Inputs that kernels get wrong and torch's samples do not hold.

Equal indexes, indexes out of range, lengths beyond a block, ties, infinities in reductions, bounds
that cross, divisions that are not ordinary, rows left out of a gradient.
"""

from dataclasses import replace
from functools import cache, partial
from math import inf, nan
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import axes, torch_testing
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import (
    FAILURES_MAX,
    Dtypes,
    Property,
    Run,
    in_profiles,
    require,
)
from npusim_conformance.properties.calls import same_strides, tried
from npusim_conformance.properties.errors import works_on
from npusim_conformance.properties.forms import form_of, with_gradients
from npusim_conformance.verdict import Mismatch

Call = tuple[tuple[Any, ...], dict[str, Any]]
TAILS = range(65, 73)  # every rest after groups of eight elements
LONG = 70_001  # more than a block of any kernel and than 16 bits, and a multiple of neither


def _call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def _floats(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _whole(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@cache
def _long(columns: int = 1) -> torch.Tensor:
    """Small numbers that repeat, in rows; sums of them are exact, and grow with each period."""
    return (torch.arange(LONG * columns) % 7 - 2.0).view(LONG, columns) / 4


def _grid() -> torch.Tensor:
    return torch.arange(12.0).view(4, 3)


_QUOTIENTS = [
    _call(_floats(7, -7, 7, -7, 0, -0.0, inf, 1, 1, -1, nan, 3), divisors)
    for divisors in (
        _floats(2, 2, -2, -2, 1, 1, 1, inf, -inf, inf, 1, nan),
        _floats(0, 0, -0.0, -0.0, 0, 0, 0, 0, 0, 0, 0, 0),
    )
] + [_call(_whole(7, -7, 7, -7, 6, -6), _whole(2, 2, -2, -2, 3, -3))]
_EXTREMES = [
    _call(_floats(3, 1, 3, 1, 2)),
    _call(_floats(1, nan, 3)),
    _call(_floats(-inf, -inf)),
    _call(_floats(inf, -inf, 1)),
    _call(_long()[:, 0]),
]
_ALONG = [_call(*args, 0) for args, _ in _EXTREMES] + [_call(_long(3), 0), _call(_long(3).T, 1)]
_SCANS = [_call(_long()[:, 0], 0), _call(_long(3), 0), _call(_long(3).T, 1)]

_FEW_OF_EACH = _whole(1, 0).view(2, 1)  # fewer rows and columns than what it is an index into
_POWERS = (0, 0.0, 1, 2, 3, 0.5, -0.5, -1, -2)  # a number may have a kernel of its own

_NOTHING = (torch.ones(2, 0, 1), torch.ones(2, 0, 3), torch.ones(2, 3, 1))

_FALLING = ((2, 0), (1, 0), (-1, 0), (2, 1, 0), (-2, -3))

# Operator -> calls. The CPU's result, or its refusal, is right.
EDGES: dict[str, list[Call]] = {
    "cumsum": [*_SCANS, _call(torch.ones(300, dtype=torch.bool), 0)],
    "cumprod": [_call(torch.ones(LONG).where(torch.arange(LONG) % 3 > 0, -1.0), 0)],
    "cummax": _SCANS,
    "cummin": _SCANS,
    "logcumsumexp": [_call(_floats(-inf, -inf, 0, 1), 0), *_SCANS],
    "sum": [
        *_EXTREMES,
        _call(_long(3), 0),
        _call(torch.ones(70_000).bfloat16()),
        _call(torch.full((9,), 100, dtype=torch.int8)),
    ],
    "mean": [*_EXTREMES, _call(_long(3), 0), _call(torch.full((2000,), 100.0).half())],
    "sin": [_call(_floats(1e5, -3e6))],
    "cos": [_call(_floats(1e5, -3e6))],
    "amax": _ALONG,
    "amin": _ALONG,
    "max.reduction_no_dim": _EXTREMES,
    "min.reduction_no_dim": _EXTREMES,
    "argmax": _EXTREMES,
    "argmin": _EXTREMES,
    "logsumexp": _ALONG,
    "softmax": _ALONG,
    "log_softmax": _ALONG,
    "var": [_call(_floats(5)), _call(_long(3), 0), _call(_floats(1e4, 1e4 + 1, 1e4 + 2))],
    "std": [_call(_floats(5)), _call(_long(3), 0), _call(_floats(1e4, 1e4 + 1, 1e4 + 2))],
    "any": [_call(torch.zeros(LONG)), _call(_long() * 0 + torch.eye(LONG, 1).flip(0))],
    "all": [_call(torch.ones(LONG)), _call(1 - torch.eye(LONG, 1).flip(0))],
    "sort": [
        _call(_floats(1, nan, 0, 1, -0.0, 0.0), stable=True),
        _call(_long()[:, 0], stable=True),
        _call(_long()[:, 0], stable=True, descending=True),
        _call(torch.tensor([True, False, True, False]), stable=True),
    ],
    "topk": [
        _call(torch.arange(float(LONG)).flip(0), 40),
        _call(_floats(1, nan, 2), 2),
        _call(_floats(3, 1, 2), 1, largest=False),
    ],
    "roll": [_call(_floats(1, 2, 3), -1), _call(_grid(), (-1, 2), (0, 1))],
    "kthvalue": [_call(torch.arange(float(LONG)) * 37 % LONG, 33)],
    "searchsorted": [
        _call(_floats(1, 2, 2, 3), _floats(0, 1, 2, 3, 4, inf)),
        _call(_floats(1, 2, 2, 3), _floats(0, 1, 2, 3, 4, inf), right=True),
    ],
    "clamp": [
        _call(_floats(0, 2, 5, nan), 3.0, 1.0),
        _call(_floats(0, 2, 5, nan), _floats(nan, 3, 3, 0), _floats(1, 1, 1, 1)),
        _call(_whole(0, 3), 0.5, 2.5),
    ],
    "maximum": [_call(_floats(nan, 1, 0.0), _floats(1, nan, -1))],
    "minimum": [_call(_floats(nan, 1, 0.0), _floats(1, nan, 1))],
    "nan_to_num": [_call(_floats(nan, inf, -inf, 1)), _call(_floats(nan, 1), nan=2.0)],
    "fmax": [_call(_floats(nan, 1, nan), _floats(1, nan, nan))],
    "fmin": [_call(_floats(nan, 1, nan), _floats(1, nan, nan))],
    "floor_divide": _QUOTIENTS,
    "remainder": [*_QUOTIENTS, _call(_whole(2**53 + 1, 2**62 + 3), _whole(10, 7))],
    "fmod": [*_QUOTIENTS, _call(_whole(2**53 + 1, 2**62 + 3), _whole(10, 7))],
    "div.floor_rounding": [_call(*args, rounding_mode="floor") for args, _ in _QUOTIENTS],
    "div.trunc_rounding": [_call(*args, rounding_mode="trunc") for args, _ in _QUOTIENTS],
    "pow": [
        _call(_floats(0, 0, -2, -2, inf, nan, 1), _floats(0, -1, 3, 0.5, 0, 0, nan)),
        _call(_whole(-2, 3, 0), _whole(3, 0, 0)),
        *[_call(_floats(nan, inf, -inf, 0, -0.0, -2, 1), power) for power in _POWERS],
    ],
    "add": [
        _call(torch.tensor([127, -128], dtype=torch.int8), torch.tensor([1, -1]).char()),
        _call(_whole(2**53, -(2**53), 2**62), _whole(1, -1, 3)),
    ],
    "sub": [
        _call(torch.tensor([0, 255], dtype=torch.uint8), torch.tensor([1, 254]).byte()),
        _call(_whole(2**53, -(2**53), 2**62), _whole(-1, 1, -3)),
    ],
    "eq": [_call(_whole(2**53, 2**62), _whole(2**53 + 1, 2**62 + 1))],
    "lt": [_call(_whole(2**53, 2**62), _whole(2**53 + 1, 2**62 + 1))],
    "mul": [
        _call(_whole(2**40, -3), _whole(2**40, 5)),
        _call(torch.tensor([100, -128], dtype=torch.int8), torch.tensor([2, -1]).char()),
        _call(_floats(1, 2), torch.arange(4.0)[3]),
    ],
    "index_select": [_call(_grid(), 0, _whole(1, 1, 3)), _call(_grid(), 0, _whole(1, 7))],
    "gather": [
        _call(_grid(), 0, _whole(3, 3, 0).view(1, 3)),
        _call(_grid(), 1, _whole(3)[None]),
        *[_call(_grid(), dim, _FEW_OF_EACH) for dim in (0, 1, -2)],
    ],
    "take": [_call(_grid(), _whole(11, -1, 0, 0)), _call(_grid(), _whole(12))],
    "index_add": [
        _call(_grid(), 0, _whole(1, 1, 1), torch.ones(3, 3)),
        _call(_grid(), 0, _whole(4), torch.ones(1, 3)),
        _call(torch.ones(0, 1), 1, _whole(0), torch.ones(0, 1)),
    ],
    "index_copy": [_call(_grid(), 0, _whole(4), torch.ones(1, 3))],
    "index_fill": [_call(_grid(), 0, _whole(1, 1), 9.0), _call(_grid(), 0, _whole(4), 9.0)],
    "index_reduce.amax": [
        _call(_grid(), 0, _whole(1, 1), torch.tensor([[20.0] * 3, [5.0] * 3]), "amax"),
        _call(_grid(), 0, _whole(4), torch.ones(1, 3), "amax"),
    ],
    "scatter": [
        _call(_grid(), 0, _whole(4, 0, 0)[None], 1.0),
        *[_call(_grid(), dim, _FEW_OF_EACH, _grid().T) for dim in (0, 1, -2)],
    ],
    "scatter_add": [
        _call(torch.zeros(3), 0, _whole(1, 1, 2, 1), torch.ones(4)),
        _call(torch.zeros(3), 0, _whole(3), torch.ones(1)),
        *[_call(_grid(), dim, _FEW_OF_EACH, _grid().T) for dim in (0, 1, -2)],
    ],
    "index_put": [
        _call(torch.zeros(3), (_whole(1, 1, 2),), torch.ones(3), True),
        _call(torch.zeros(3), (_whole(3),), torch.ones(1)),
    ],
    "bincount": [_call(_whole(3, 3, 0, 3)), _call(_whole(*[2] * 3000))],
    "unique": [_call(_floats(2, 1, 2, 1), return_inverse=True, return_counts=True)],
    "nn.functional.embedding": [
        _call(_grid().requires_grad_(), _whole(0, 1, 0), padding_idx=0),
        _call(_grid().requires_grad_(), _whole(0, 1, 0)),
        _call(_grid().requires_grad_(), _whole(0, 1, 0), scale_grad_by_freq=True),
        _call(_grid(), _whole(4)),
    ],
    "nn.functional.relu": [_call(_floats(-1, 0, 1).requires_grad_())],
    "nn.functional.hardtanh": [_call(_floats(-1, 0, 1).requires_grad_())],
    "nn.functional.relu6": [_call(_floats(-1, 0, 6, 7).requires_grad_())],
    "nn.functional.leaky_relu": [_call(_floats(-1, 0, 1).requires_grad_())],
    "nn.functional.hardswish": [_call(_floats(-3, 0, 3).requires_grad_())],
    "nn.functional.max_pool2d": [
        _call(_floats(0, 0, 0, 0, 9, 0, 0, 0, 0).view(1, 3, 3).requires_grad_(), 2, 1),
        _call(torch.ones(1, 4, 4).requires_grad_(), 2, 2),
    ],
    "nn.functional.avg_pool2d": [
        _call(torch.arange(9.0).view(1, 3, 3), 2, 2, 1, count_include_pad=False),
        _call(torch.arange(9.0).view(1, 3, 3), 2, ceil_mode=True, divisor_override=3),
    ],
    "nn.functional.layer_norm": [
        _call(_floats(1, 1, 1.01, 1).view(1, 4), (4,), torch.ones(4).requires_grad_()),
        _call(_floats(1, 1, 1, 1), (4,)),
    ],
    "nn.functional.nll_loss": [
        _call(_grid().log_softmax(1).requires_grad_(), _whole(0, 1, -100, 2)),
    ],
    "matmul": [_call(_long(2).T, _long(3)), _call(torch.ones(2, 0), torch.ones(0, 3))],
    "mm": [
        _call(torch.ones(1, 1).expand(4, 3), _grid().T + 1),  # what the gradient of a sum is
        _call(torch.ones(2, 0), torch.ones(0, 3)),
    ],
    "bmm": [_call(_grid()[None].mT, _grid()[None] + 1), _call(*_NOTHING[1:])],
    # The operand that beta = 0 multiplies is not read: it may be NaN.
    "baddbmm": [
        _call(*_NOTHING),
        _call(_NOTHING[0], torch.ones(2, 0, 0), torch.ones(2, 0, 1)),
        _call(torch.full((1, 4, 4), nan), _grid()[None], _grid().T[None], beta=0),
    ],
    "addbmm": [
        _call(torch.ones(3, 1), torch.ones(0, 3, 2), torch.ones(0, 2, 1)),
        _call(torch.full((4, 4), nan), _grid()[None], _grid().T[None], beta=0),
    ],
    "addmm": [
        _call(torch.ones(2, 3), torch.ones(2, 0), torch.ones(0, 3)),
        _call(torch.full((4, 4), nan), _grid(), _grid().T, beta=0),
    ],
    "addmv": [
        _call(torch.ones(2), torch.ones(2, 0), torch.ones(0)),
        _call(torch.full((4,), nan), _grid(), _floats(1, 2, 3), beta=0),
    ],
    "mv": [_call(torch.ones(0, 9), torch.ones(9)), _call(torch.ones(2, 0), torch.ones(0))],
    "dot": [_call(torch.ones(0), torch.ones(0))],
    "vdot": [_call(torch.ones(0), torch.ones(0))],
    "nn.functional.linear": [_call(torch.ones(3, 0), torch.ones(5, 0), torch.ones(5))],
    "addcmul": [_call(*[torch.ones(2, dtype=torch.int16)] * 3, value=40_000)],
    "masked_select": [_call(_long()[:, 0], torch.arange(LONG) % 3 == 1)],
    "nonzero": [_call(_long())],
    "where": [_call(_grid().T, (_grid() > 4).T, torch.tensor(-1.0))],
    "cat": [
        _call([torch.ones(0), torch.ones(2), torch.ones(0)]),
        _call(list(_grid().view(12, 1))),
    ],
    "arange": [_call(2**24 - 2, 2**24 + 5, device=CPU), _call(2**53, 2**53 + 3, device=CPU)],
}


def _takes_several_dimensions(operator: torch_testing.Operator) -> bool:
    is_reduction = torch_testing.shape_rule(operator) == "reduction"
    plain = "masked" not in operator.full_name and operator.full_name not in torch_testing.RANDOM
    return is_reduction and plain and operator.supports_multiple_dims


def _generated(operator: torch_testing.Operator) -> list[Call]:
    """A sample of an elementwise operator in many lengths; of a reduction, orders of dimensions."""
    if _takes_several_dimensions(operator):
        x = torch.arange(24.0).view(2, 3, 4) % 7
        return [_call(x, dim=dims, keepdim=keep) for dims in _FALLING for keep in (False, True)]
    if not torch_testing.is_elementwise(operator):
        return []
    kinds = torch_testing.operator_dtypes(operator)
    dtype = torch.float32 if torch.float32 in kinds else kinds[0]
    for raw in torch_testing.sample_inputs(operator, dtype, False, 0):
        shapes = {tensor.shape for tensor in tensors_of((raw.input, raw.args))}
        if len(shapes) == 1 and not tensors_of(raw.kwargs) and raw.input.numel() > 1:
            long = pytree.tree_map_only(torch.Tensor, _repeated, (raw.input, *raw.args))
            calls = [_call(*long, **raw.kwargs)]
            for length in TAILS:
                part = [one[:length] if isinstance(one, torch.Tensor) else one for one in long]
                calls.append(_call(*part, **raw.kwargs))
            if torch_testing.shape_rule(operator) == "binary" and len(tensors_of(long)) == 2:
                row, matrix = long[0][:3].expand(4, 3), long[1][:12].view(4, 3)
                calls.append(_call(row, matrix, *long[2:], **raw.kwargs))
            return calls
    return []


def _in_whole_numbers(call: Call) -> list[Call]:
    """A call of floating numbers that are whole, with integers in their place."""
    tensors = [one for one in tensors_of(call) if one.is_floating_point()]
    small = 0 < sum(one.numel() for one in tensors) <= axes.ELEMENTS_MAX
    if not small or any(one.requires_grad for one in tensors):
        return []
    if not all(bool((one.isfinite() & (one == one.trunc())).all()) for one in tensors):
        return []
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda one: one.long() if one.is_floating_point() else one, call
    )
    return [(args, kwargs)]


def _large_whole_numbers(operator: torch_testing.Operator) -> list[Call]:
    """Integers that neither float32 nor float64 holds, beside small ones."""
    if not torch_testing.is_elementwise(
        operator
    ) or torch.int64 not in torch_testing.operator_dtypes(operator):
        return []
    large = _whole(2**24 + 1, 2**40 + 7, 2**53 + 1, -(2**53) - 1, -7, 7)
    small = _whole(1, 3, 2, 3, 2, -2)
    for raw in torch_testing.sample_inputs(operator, torch.int64, False, 0):
        given = (raw.input, *raw.args)
        plain = not tensors_of(raw.kwargs) and all(isinstance(one, torch.Tensor) for one in given)
        if plain and len({one.shape for one in given}) == 1:
            return [_call(large, *(small for _ in raw.args), **raw.kwargs)]
    return []


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().repeat(LONG // tensor.numel() + 1)[:LONG]


# No fake tensor predicts their shape, but what views can be made of them is known.
BY_COLUMNS = frozenset({"nonzero", "argwhere"})
# torch's samples of these have one dimension only, so nothing of theirs can lie transposed.
for _name in """celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish
    relu relu6 selu silu softplus softshrink softsign tanhshrink threshold""".split():
    _more: tuple[Any, ...] = (0.5, -1.0) if _name == "threshold" else ()
    EDGES.setdefault(f"nn.functional.{_name}", []).append(_call((_grid() - 6).T, *_more))


class Edges(Property):
    """Ties, equal and wrong indexes, long and odd inputs give what the CPU gives."""

    name = "edges"
    profiles = in_profiles(smoke=Dtypes.NONE, standard=Dtypes.NONE, full=Dtypes.NONE)

    def subjects(self) -> dict[str, Subject]:
        """Operators in the table, elementwise ones, reductions, and those with axes."""
        return {
            name: one
            for name, one in super().subjects().items()
            if name in EDGES
            or torch_testing.is_elementwise(one.info)
            or _takes_several_dimensions(one.info)
            or axes.is_varied(one.info)
        }

    def check(self, run: Run) -> None:
        """One call after the other."""
        named = EDGES.get(run.subject.name, []) + _generated(run.subject.info)
        most = axes.CALLS_MAX_IF_SHORT if run.is_short else axes.CALLS_MAX
        varied = axes.varied(run.subject.info, most) if axes.is_varied(run.subject.info) else []
        varied += [call for one in named for call in _in_whole_numbers(one)]
        varied += _large_whole_numbers(run.subject.info)
        for number, call in enumerate(named + varied):
            turn = number - len(named)
            run.attempt(number, partial(self._examine, run, call, turn))
            if len(run.failures) >= FAILURES_MAX:
                return

    @staticmethod
    def _examine(run: Run, call: Call, turn: int, device: torch.device) -> None:
        """Calls along axes, whose turn is not negative, may be refused, and have another form."""
        operator = run.subject.info
        here = Transfer(CPU)(call)  # an operator may write to its own, as to running statistics
        expected, refused = tried(lambda: with_gradients(operator, here))
        if refused is not None and turn >= 0:
            return  # the CPU draws a line there that no device has to draw
        there = Transfer(device)(call)
        got, error = tried(lambda: with_gradients(operator, there))
        if refused is None:
            if error is not None:
                raise error
            _agreement(run, call).check(expected, got, device)
            _check_inputs(run, call, there, device)
            if run.subject.name in BY_COLUMNS or torch_testing.is_elementwise(operator):
                same_strides(tensors_of(expected)[0], tensors_of(got)[0])
            form = form_of(operator, call, expected, turn) if turn >= 0 else None
            if form is not None:
                form(run.agreement, device)
            return
        # With which exception is the property `errors`'s question, and no device's alone.
        require(error is not None, f"accepted; the CPU says: {str(refused).splitlines()[0]}")
        works_on(device)


def _check_inputs(run: Run, call: Call, there: Call, device: torch.device) -> None:
    """Raises Mismatch where the operands of a call are others after it."""
    try:
        run.agreement.check(tensors_of(call), tensors_of(there), device, "input after the call")
    except Mismatch:
        _check_untouched(run, call, device)
        raise


def _check_untouched(run: Run, call: Call, device: torch.device) -> None:
    """Raises Mismatch where the operands of a call come back wrong without a call."""
    untouched = tensors_of(Transfer(device)(call))
    try:
        run.agreement.check(tensors_of(call), untouched, device, "operand")
    except Mismatch as wrong:
        message = f"an operand comes back wrong before any call: {wrong}"
        raise Mismatch(message, wrong.error, is_cause=True) from wrong


def _agreement(run: Run, call: Call) -> Agreement:
    """That of the run, with float32's tolerance where torch's own kernel has steps in float32."""
    floats = {one.dtype for one in tensors_of(call) if one.is_floating_point()}
    steps = len(tensors_of(call)) > 2 and floats == {torch.float32, torch.float64}
    if not steps or run.agreement.rtol is not None or run.agreement.bitwise:
        return run.agreement
    return replace(run.agreement, rtol=1.3e-6, atol=1e-5)


PROPERTIES = [Edges]
