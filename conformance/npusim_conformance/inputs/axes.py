# SPDX-License-Identifier: BSD-3-Clause
"""Calls along axes: a sample of an operator, with one argument at a time set to each of its values.

The kind of an argument decides its axis: lengths of a tensor, orders and shapes of an index, every
dimension and its negative, modes, numbers, flags. Names and kinds are those of aten's schemas.
"""

import inspect
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import torch

from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.transfer import tensors_of

Call = tuple[tuple[Any, ...], dict[str, Any]]
SAMPLES = 2  # that are varied, of different shapes of arguments
ELEMENTS_MAX = 4096  # of a sample
CALLS_MAX = 64  # of an operator
CALLS_MAX_IF_SHORT = 44
PAIRS_MAX = 8  # of a sample

SHAPES = ((), (0,), (1,), (7,), (67,), (130,), (0, 3), (5, 1), (3, 35), (35, 3), (2, 3, 5))
LONG = 70_001  # more than 16 bits count
NUMBERS = (0, 1, 2, -1, 0.5)
MODES = {
    "reduce": ("sum", "prod", "mean", "amax", "amin"),
    "reduction": ("none", "mean", "sum"),
    "rounding_mode": (None, "trunc", "floor"),
    "side": ("left", "right"),
    "correction": (0, 1, 2),
    "approximate": ("none", "tanh"),
    "indexing": ("ij", "xy"),
    "interpolation": ("linear", "lower", "higher", "midpoint", "nearest"),
    "norm": ("forward", "backward", "ortho"),
    "padding_mode": ("zeros", "border", "reflection"),
}
DIMENSIONS = ("dim", "dim0", "dim1", "axis", "dims")
INDEXES = ("index", "indices", "repeats")
# Which of two equal indexes is written last is open; these add up, or read.
TAKE_EQUAL = ("add", "gather", "select", "take", "reduce", "embedding", "fill")
# Results that are open: signs of vectors, memory that is not written, shapes of other tensors.
# torch's gradient of pdist() of no rows reads memory that is not its own.
OPEN = ("linalg.", "sparse", "masked.", "empty", "svd", "qr", "eig", "lu", "resize", "as_strided",
        "set_", "to_sparse", "fft.", "cholesky", "pinverse", "ormqr", "lstsq", "triangular",
        "jiterator", "new_", "_like", "item", "special.", "nn.functional.fractional", "polar",
        "unique", "mode", "view_as", "ctc", "data", "uninitialized",
        "feature_alpha_dropout", "pdist")  # fmt: skip


def is_varied(operator: torch_testing.Operator) -> bool:
    """Whether each call of an operator has one right answer."""
    name = operator.full_name
    plain = not any(part in name for part in OPEN) and name not in torch_testing.RANDOM
    defined = not getattr(operator, "has_nondeterministic_output", False)
    return plain and defined and name not in torch_testing.HOST_ARGUMENTS


def varied(operator: torch_testing.Operator, most: int = CALLS_MAX) -> list[Call]:
    """Calls that differ from a sample in one argument. Refused inputs are among them."""
    kinds = torch_testing.operator_dtypes(operator)
    if not kinds or operator.full_name in torch_testing.RANDOM_IF_DROPOUT:
        return []
    dtype = torch.float32 if torch.float32 in kinds else kinds[0]
    seen: set[Any] = set()
    found: list[Iterator[Call]] = []
    samples = torch_testing.sample_inputs(operator, dtype, False, 0)
    for raw in sorted(samples, key=_size, reverse=True):  # a length of 1 has few orders
        call = (raw.input, *raw.args), raw.kwargs
        kind = len(raw.args), tuple(raw.kwargs), getattr(raw.input, "ndim", None)
        if kind in seen or not 1 < _size(raw) <= ELEMENTS_MAX or len(found) == SAMPLES:
            continue
        seen.add(kind)
        found.append(_variants(operator, call))
    share = most // max(1, len(found))
    return [call for calls in found for call in _spread(list(calls), share)]


def _size(raw: torch_testing.Sample) -> int:
    return sum(tensor.numel() for tensor in tensors_of((raw.input, raw.args, raw.kwargs)))


def _spread(calls: list[Call], most: int) -> list[Call]:
    if len(calls) <= most:
        return calls
    return [calls[number * len(calls) // most] for number in range(most)]


def _variants(operator: torch_testing.Operator, call: Call) -> Iterator[Call]:
    args, kwargs = call
    names = _names(operator, call)
    rank = args[0].dim() if isinstance(args[0], torch.Tensor) else 0
    equal = any(part in operator.full_name for part in TAKE_EQUAL)
    if len(tensors_of(call)) == 1 and isinstance(args[0], torch.Tensor):
        shapes = [*SHAPES, *_long_shapes(operator, call)]
        yield from (((_shaped(args[0], shape), *args[1:]), kwargs) for shape in shapes)
        if args[0].is_floating_point():
            with_nan = _shaped(args[0], (7,)).index_fill(0, torch.tensor(3), float("nan"))
            yield (with_nan, *args[1:]), kwargs
    for place, (name, given) in enumerate(zip(names, args, strict=False)):
        for value in _axis(name, given, rank, equal):
            yield (*args[:place], value, *args[place + 1 :]), kwargs
    for name, given in kwargs.items():
        for value in _axis(name, given, rank, equal):
            yield args, kwargs | {name: value}
    left_out = _left_out(operator, names[: len(args)], kwargs)
    for name, values in left_out.items():
        for value in values:
            yield args, kwargs | {name: value}
    named = {name: _axis(name, given, rank, equal) for name, given in kwargs.items()} | left_out
    yield from (_spread(list(_pairs(args, kwargs, named)), PAIRS_MAX))


def _pairs(args: tuple[Any, ...], kwargs: dict[str, Any], named: dict[str, Any]) -> Iterator[Call]:
    """Two named arguments changed at once, each to its first and its last value."""
    for (one, some), (other, more) in combinations(named.items(), 2):
        for first, second in product(
            some[:: max(1, len(some) - 1)], more[:: max(1, len(more) - 1)]
        ):
            yield args, kwargs | {one: first, other: second}


def _long_shapes(operator: torch_testing.Operator, call: Call) -> list[tuple[int, ...]]:
    """Shapes of LONG elements, where a short one of their rank gives no more than it has."""
    args, kwargs = call
    ones = (1,) * max(0, args[0].dim() - 1)
    shapes = []
    for place in (0, len(ones)):
        try:
            short = _shaped(args[0], (*ones[:place], 67, *ones[place:]))
            results = tensors_of(operator(short, *args[1:], **kwargs))
        except Exception:  # it takes no such shape
            continue
        if len(results) <= 4 and all(tensor.numel() <= 67 for tensor in results):
            shapes.append((*ones[:place], LONG, *ones[place:]))
    return shapes


def _axis(name: str, given: Any, rank: int, equal: bool) -> list[Any]:
    """The values of one argument."""
    if isinstance(given, torch.Tensor):
        layouts = _layouts(given) if given.dim() > 1 else []
        whole = given.dtype in (torch.int64, torch.int32)
        if given.dtype == torch.float32:
            layouts += [given.long(), given.double()]
        return layouts + (_orders(given, equal) if whole and name in INDEXES else [])
    if isinstance(given, (list, tuple)) and len(tensors_of(given)) == len(given) > 1:
        return [[given[0].long(), *given[1:]], [given[0], given[1].double(), *given[2:]]]
    if name in DIMENSIONS and isinstance(given, int):
        return list(range(-rank, rank))
    if name in DIMENSIONS and isinstance(given, (list, tuple)):
        turned = type(given)(reversed(given))
        return [turned, type(given)(one - rank for one in given)] if rank else []
    if name in MODES and (given is None or isinstance(given, str) or name == "correction"):
        return list(MODES[name])
    if isinstance(given, bool):
        return [not given]
    if (isinstance(given, float) and name != "eps") or (
        name in ("alpha", "beta", "value") and isinstance(given, int)
    ):
        return [type(given)(number) for number in NUMBERS]
    return []


def _orders(index: torch.Tensor, equal: bool) -> list[torch.Tensor]:
    """An index backwards, with equal elements, falling, without dimensions and with one more."""
    flat = index.flatten()
    if not flat.numel():
        return []
    orders = [index.flip(0) if index.dim() else index, flat[0].reshape(()), flat[:1]]
    falling = flat.sort(descending=True)[0].view(index.shape)
    if equal:
        orders += [index * 0 + flat[-1], falling, torch.cat([flat, flat[:1]]), index[None]]
    return [*orders, index.int(), index - index.max() - 1, index[:0] if index.dim() else index]


def _layouts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The same values in falling memory order, with gaps, and from an offset."""
    last = tensor.mT.contiguous().mT
    gaps = torch.empty((*tensor.shape, 2), dtype=tensor.dtype).fill_(1)[..., 0].copy_(tensor)
    return [last, gaps, torch.cat([tensor[:1], tensor])[1:] if len(tensor) else tensor]


def _shaped(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers in the range of a tensor's, no two of them equal where its dtype has as many."""
    count = torch.Size(shape).numel()
    order = torch.arange(count) * 37 % 131 if count < 131 else torch.arange(count)
    if not tensor.is_floating_point():
        return tensor.flatten()[order % tensor.numel()].reshape(shape)
    low, high = tensor.min().item(), tensor.max().item()
    return (low + (high - low) * order / 131).to(tensor.dtype).reshape(shape)


def _schemas(operator: torch_testing.Operator) -> list[Any]:
    packet = getattr(torch.ops.aten, operator.name.rpartition(".")[2], None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return []
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    overloads = (getattr(packet, name) for name in names)
    return [one._schema for one in overloads if "out" not in one._overloadname]


def _names(operator: torch_testing.Operator, call: Call) -> list[str]:
    """The names of a call's positional arguments; empty ones where no schema takes it."""
    args, kwargs = call
    for schema in _schemas(operator):
        names = [argument.name for argument in schema.arguments if not argument.kwarg_only]
        every = {argument.name for argument in schema.arguments}
        if len(args) <= len(names) and every.issuperset(kwargs) and _fits(schema, args):
            return names
    try:
        return list(inspect.signature(operator.op).parameters)
    except (TypeError, ValueError):
        return [""] * len(args)


def _fits(schema: Any, args: tuple[Any, ...]) -> bool:
    kinds = (str(argument.type) for argument in schema.arguments)
    return all(
        ("Tensor" in kind) == bool(tensors_of(given)) or given is None
        for kind, given in zip(kinds, args, strict=False)
    )


def _left_out(
    operator: torch_testing.Operator, given: list[str], kwargs: dict[str, Any]
) -> dict[str, list[Any]]:
    """Flags, modes and factors that a call leaves to their defaults."""
    values: dict[str, list[Any]] = {}
    for schema in _schemas(operator):
        for argument in schema.arguments:
            if (
                argument.name in given
                or argument.name in kwargs
                or not argument.has_default_value()
            ):
                continue
            default, name = argument.default_value, argument.name
            if isinstance(default, bool) and name not in ("requires_grad", "pin_memory"):
                values[name] = [not default]
            elif name in MODES and name != "norm":
                values[name] = list(MODES[name])
            elif name in ("alpha", "beta", "value") and isinstance(default, (int, float)):
                values[name] = list(NUMBERS)
    return values
