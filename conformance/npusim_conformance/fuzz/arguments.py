# SPDX-License-Identifier: BSD-3-Clause
"""Arguments for an overload from its schema alone, and which overloads are left out."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from npusim_conformance.fuzz.calls import COMPLEX, FLOATS, Call, TensorSpec, Word, specs_in

# Overloads that are not called, by name without namespace, and why.
EXCLUDED = {
    "from_file": "maps a file",
    "from_file.out": "maps a file",
    "record_stream": "takes a stream, which has no literal; see the contract of streams",
    "quantized_gru.data": "takes packed weights",
    "quantized_gru.input": "takes packed weights",
    "quantized_lstm.data": "takes packed weights",
    "quantized_lstm.input": "takes packed weights",
}
_UNWRITABLE = ("__torch__", "Stream")
_INTEGER_NAMES = (
    *("ind", "offset", "target", "length", "mapping", "repeats", "batch_sizes", "seq", "crow"),
    *("row", "col", "bucket", "zero_point", "labels", "step", "size", "bag"),
)
_WORDS = ("none", "mean", "ij", "floor", "trunc", "reflect", "constant", "right", "sum", "", "gelu")


@cache
def schema(overload: str) -> Any:
    """The schema of "add.Tensor" or "relu"."""
    name, _, rest = overload.partition(".")
    return torch._C._get_schema(f"aten::{name}", rest)


@cache
def overloads() -> dict[str, str]:
    """Overload -> why it is left out, or nothing; sorted. TorchScript's are not listed."""
    found = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, overload = qualified.partition("::")
        if namespace != "aten":
            continue
        types = [str(argument.type) for argument in schema(overload).arguments]
        if not any("Tensor" in kind or "Device" in kind for kind in types):
            continue
        why = EXCLUDED.get(overload, "")
        if not why and any(word in kind for kind in types for word in _UNWRITABLE):
            why = "takes an object that has no literal"
        found[overload] = why
    return dict(sorted(found.items()))


def kinds(overload: str) -> dict[str, str]:
    """Argument -> type, as "Optional[List[int]]"."""
    return {argument.name: str(argument.real_type) for argument in schema(overload).arguments}


def attribute(overload: str) -> str:
    """The overload below torch.ops.aten, as "relu.default"."""
    return overload if "." in overload else f"{overload}.default"


class World:
    """Shapes and a dtype that the tensors of one call have in common, more or less."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rank = rng.choice((1, 2, 2, 3, 4, 4, 5))
        self.sizes = [rng.choice((1, 2, 3, 4)) for _ in range(5)]
        self.square = rng.random() < 0.4
        self.dtype = rng.choices((*FLOATS, "int64", COMPLEX[0]), (12, 4, 1, 1, 2, 1))[0]

    def shape(self) -> tuple[int, ...]:
        """Mostly the common one."""
        rank = self.rank
        what = self.rng.random()
        if what > 0.9:
            rank = self.rng.randrange(5)
        elif what > 0.75:
            return (self.rng.choice(self.sizes),)
        sizes = [self.sizes[0]] * rank if self.square else self.sizes[:rank]
        return tuple(sizes)

    def tensor(self, name: str) -> TensorSpec:
        """A tensor for an argument of this name."""
        if "mask" in name or "cond" in name:
            return TensorSpec(self.shape(), "bool")
        if any(part in name for part in _INTEGER_NAMES) and self.rng.random() < 0.85:
            return TensorSpec(self.shape(), self.rng.choice(("int64", "int64", "int32")), high=2)
        return TensorSpec(self.shape(), self.dtype)

    def size(self) -> int:
        """A small size."""
        return self.rng.choice((*self.sizes, 1, 0))


def drawn_argument(world: World, name: str, kind: str) -> Any:
    """An argument of a type of the schema."""
    rng = world.rng
    if kind.startswith("Optional["):
        inner = kind.removeprefix("Optional[")[:-1]
        given = rng.random() < (0.9 if inner == "Device" else 0.5)
        return drawn_argument(world, name, inner) if given else None
    if kind.startswith("List["):
        inner = kind.removeprefix("List[")[:-1]
        if inner == "int" and ("size" in name or "shape" in name):
            return list(world.shape())
        length = rng.choice((1, 2, 2, 3, 4, world.rank))
        return [drawn_argument(world, name, inner) for _ in range(length)]
    scalars: dict[str, Callable[[], Any]] = {
        "Tensor": lambda: world.tensor(name),
        "int": lambda: rng.randrange(-2, 3) if name.startswith("dim") else world.size(),
        "float": lambda: rng.choice((0.0, 0.1, 0.5, 1.0, 2.0)),
        "bool": lambda: rng.random() < 0.5,
        "number": lambda: rng.choice((0, 1, 2, 0.5, -1)),
        "str": lambda: rng.choice(_WORDS),
        "Device": lambda: Word("device"),
        "Generator": lambda: None,
        "ScalarType": lambda: Word(f"torch.{rng.choice((*FLOATS, 'int64', 'bool'))}"),
        "Layout": lambda: Word(rng.choice(("torch.strided", "torch.sparse_coo"))),
        "MemoryFormat": lambda: Word(
            rng.choice(("torch.contiguous_format", "torch.channels_last", "torch.preserve_format"))
        ),
        "Storage": lambda: Word("torch.empty(8, device=device).untyped_storage()"),
    }
    return scalars[kind]()


def drawn(rng: random.Random, overload: str, known: dict[str, Any] | None = None) -> Call:
    """A call whose arguments are `known` ones of the right name, or drawn."""
    world = World(rng)
    values = []
    for argument in schema(overload).arguments:
        name, kind = argument.name, str(argument.real_type)
        if known is not None and name in known:
            value = known[name]
        elif known is not None and argument.is_out and kind == "Tensor":
            value = _out_like(rng, known)
        elif argument.has_default_value() and (known is not None or rng.random() < 0.5):
            value = argument.default_value
            if isinstance(value, int) and not isinstance(value, bool) and "int" not in kind:
                value = drawn_argument(world, name, kind)  # a dtype or layout as a number
        else:
            value = drawn_argument(world, name, kind)
        values.append((name, argument.kwarg_only, value))
    return Call(attribute(overload), tuple(values))


def _out_like(rng: random.Random, known: dict[str, Any]) -> TensorSpec:
    """Something to write to: empty, which is resized, or as the first tensor."""
    first = next((spec for value in known.values() for spec in specs_in(value)), TensorSpec(()))
    return TensorSpec((0,) if rng.random() < 0.5 else first.shape, first.dtype)
