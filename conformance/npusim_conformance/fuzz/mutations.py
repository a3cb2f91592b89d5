# SPDX-License-Identifier: BSD-3-Clause
"""The fuzzer's changes of a call: tensors of unusual kinds, numbers out of range, lists too short.

One table, MUTATIONS, of what can happen to a tensor; integers, floats and lists have theirs.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from npusim_conformance.fuzz.calls import (
    COMPLEX,
    DTYPES,
    QUANTIZED,
    SPARSE,
    Call,
    TensorSpec,
    Word,
    specs_in,
)

SMALL_VALUES = (-1, 0, 1, 2, 3, 7, -2, -7, 100)
HUGE_VALUES = (2**31 - 1, 2**31, -(2**31), 2**62, -(2**63))
FLOAT_VALUES = (0.0, -1.0, 0.5, 2.0, 1e30, float("inf"), float("nan"), -1e-30)
INDEX_RANGES = ((0, 1), (-1, 0), (5, 9), (1000, 1001), (-1000, -999), (2**31, 2**31 + 1))
HUGE_RANGE = (2**62, 2**62 + 1)

Change = Callable[[random.Random, TensorSpec], TensorSpec]


def _plain(spec: TensorSpec, **changes: Any) -> TensorSpec:
    """With another shape, and so without literals and geometry of the old one."""
    return replace(spec, values="", strides=None, expanded=None, **changes)


def _empty(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    return _plain(spec, shape=(0,) * rng.choice((1, 1, max(1, spec.dim))))


def _zero_size(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    if not spec.shape:
        return _plain(spec, shape=(0,))
    zero = rng.randrange(spec.dim)
    return _plain(spec, shape=(*spec.shape[:zero], 0, *spec.shape[zero + 1 :]))


def _resized(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    if not spec.shape:
        return _plain(spec, shape=(3,))
    one = rng.randrange(spec.dim)
    size = rng.choice((1, spec.shape[one] + 1, max(1, spec.shape[one] - 1), 17))
    return _plain(spec, shape=(*spec.shape[:one], size, *spec.shape[one + 1 :]))


def _another_rank(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    if spec.shape and rng.random() < 0.5:
        return _plain(spec, shape=spec.shape[1:])
    return _plain(spec, shape=(rng.choice((1, 2)), *spec.shape))


def _scalar(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    return _plain(spec, shape=())


def _expanded(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    shape = spec.shape or (3,)
    one = rng.randrange(len(shape))
    small = (*shape[:one], 1, *shape[one + 1 :])
    return replace(_plain(spec, shape=small), expanded=shape)


def _overlapping(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    strides = tuple(rng.choice((0, 1, 1, 2)) for _ in spec.shape)
    return _strided(spec, strides, rng.choice((0, 1)))


def _transposed(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    strides, step = [], rng.choice((1, 2))
    for size in spec.shape:
        strides.append(step)
        step *= max(1, size)
    return _strided(spec, tuple(strides), rng.choice((0, 3)))


def _strided(spec: TensorSpec, strides: tuple[int, ...], offset: int) -> TensorSpec:
    reach = sum(
        (size - 1) * stride for size, stride in zip(spec.shape, strides, strict=True) if size
    )
    if spec.layout or spec.dtype in QUANTIZED:
        return spec
    return replace(
        spec, values="", expanded=None, strides=strides, offset=offset, storage=reach + offset + 1
    )


def _another_dtype(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    return replace(spec, values="", bit="", dtype=rng.choice(DTYPES))


def _quantized(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    return replace(_plain(spec), layout="", bit="", dtype=rng.choice(QUANTIZED))


def _sparse(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    layout = rng.choice((*SPARSE, "sparse_coo", "uncoalesced"))
    shape = spec.shape if layout in ("sparse_coo", "uncoalesced") or spec.dim >= 2 else (2, 3)
    return _plain(spec, shape=shape, layout=layout, bit="")


def _conj(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    dtype = spec.dtype if spec.dtype in COMPLEX else "complex64"
    return replace(spec, values="", dtype=dtype, bit="conj")


def _out_of_range(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    if spec.dtype not in ("int64", "int32"):
        spec = replace(spec, dtype="int64")
    ranges = (*INDEX_RANGES, HUGE_RANGE) if spec.dtype == "int64" else INDEX_RANGES[:-1]
    low, high = rng.choice(ranges)
    return replace(spec, values="", low=low, high=high)


def _mixed(rng: random.Random, spec: TensorSpec) -> TensorSpec:
    return replace(spec, low=min(spec.low, -2), high=max(spec.high, 6), values="")


# Changes of a tensor, with their relative frequency.
MUTATIONS: tuple[tuple[int, Change], ...] = (
    (4, _empty),
    (4, _zero_size),
    (4, _resized),
    (4, _another_rank),
    (2, _scalar),
    (2, _expanded),
    (2, _overlapping),
    (2, _transposed),
    (4, _another_dtype),
    (1, _quantized),
    (2, _sparse),
    (1, _conj),
    (3, _out_of_range),
    (2, _mixed),
    (1, lambda rng, spec: replace(spec, place="cpu")),
    (1, lambda rng, spec: replace(spec, place="meta")),
    (1, lambda rng, spec: replace(spec, bit="neg")),
    (1, lambda rng, spec: replace(spec, requires_grad=True)),
)
_WEIGHTS = [weight for weight, _ in MUTATIONS]
_CHANGES = [change for _, change in MUTATIONS]


def mutated(rng: random.Random, call: Call, kinds: dict[str, str]) -> Call:
    """The call with one to three arguments changed. `kinds`: argument -> type in the schema."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not call.values:
            return call
        if rng.random() < 0.08:
            call = _aliased(rng, call)
            continue
        tensors = [i for i, (_, _, value) in enumerate(call.values) if specs_in(value)]
        some = tensors if tensors and rng.random() < 0.6 else range(len(call.values))
        index = rng.choice(some)
        name, _, value = call.values[index]
        call = call.with_value(index, changed(rng, value, kinds.get(name, "")))
    return call


def _integer(rng: random.Random) -> int:
    return rng.choice(SMALL_VALUES if rng.random() < 0.75 else HUGE_VALUES)


def changed(rng: random.Random, value: Any, kind: str) -> Any:
    """Another value for an argument of a type such as "List[int]" or "Optional[Tensor]"."""
    if isinstance(value, TensorSpec):
        if rng.random() < (0.2 if kind.startswith("Optional") else 0.03):
            return None
        return rng.choices(_CHANGES, _WEIGHTS)[0](rng, value)
    if isinstance(value, list):
        return _changed_list(rng, value)
    if kind.startswith("Optional") and value is not None and rng.random() < 0.3:
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return _integer(rng)
    if isinstance(value, float):
        return rng.choice(FLOAT_VALUES)
    if value is None and "Tensor" in kind:
        return TensorSpec(rng.choice(((), (0,), (1,), (2, 3))), rng.choice(("float32", "int64")))
    if value is None and "int" in kind and "List" not in kind:
        return _integer(rng)
    if value is None and "float" in kind and "List" not in kind:
        return rng.choice(FLOAT_VALUES)
    if isinstance(value, Word) and value.text.removeprefix("torch.") in DTYPES:
        return Word(f"torch.{rng.choice((*DTYPES, *QUANTIZED))}")
    return value


def _changed_list(rng: random.Random, values: list[Any]) -> list[Any]:
    what = rng.randrange(4)
    if what == 0 or not values:
        return [*values, *values[-1:]] if values and rng.random() < 0.7 else []
    if what == 1:
        return values[:-1]
    index = rng.randrange(len(values))
    return [*values[:index], changed(rng, values[index], ""), *values[index + 1 :]]


def _aliased(rng: random.Random, call: Call) -> Call:
    """One tensor in the places of two."""
    tensors = [i for i, (_, _, value) in enumerate(call.values) if isinstance(value, TensorSpec)]
    if len(tensors) < 2:
        return call
    one, other = rng.sample(tensors, 2)
    spec = replace(call.values[one][2], name="x")
    return call.with_value(one, spec).with_value(other, spec)
