# SPDX-License-Identifier: BSD-3-Clause
"""The calls that the fuzzer starts from: those below the operators of torch's databases.

Recorded on the CPU, forward and backward. An overload that nothing reaches takes what its kin take:
overloads of the same name, and those with the same arguments.
"""

import math
import random
import re
from collections import defaultdict
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from npusim_conformance.fuzz.arguments import drawn, kinds, schema
from npusim_conformance.fuzz.calls import QUANTIZED, SPARSE, Call, TensorSpec, Word
from npusim_conformance.fuzz.mutations import mutated
from npusim_conformance.inputs import torch_testing

SAMPLES = 4  # of one operator
PER_OVERLOAD = 8  # distinct calls that are kept
LITERALS_MAX = 16

Arguments = dict[str, Any]  # name -> value
Seeds = dict[str, list[Arguments]]  # overload -> calls


class _Unwritable(Exception):
    pass


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """A tensor like this one. Raises _Unwritable."""
    dtype = torch_testing.dtype_name(tensor.dtype)
    plain = tensor.detach()
    layout = str(tensor.layout).removeprefix("torch.")
    if layout != "strided":
        if layout not in SPARSE:
            raise _Unwritable(layout)
        return TensorSpec(tuple(tensor.shape), dtype, layout=layout)
    if plain.is_nested or (plain.is_quantized and dtype not in QUANTIZED):
        raise _Unwritable("nested")
    spec = TensorSpec(tuple(plain.shape), dtype, bit="conj" if plain.is_conj() else "")
    if plain.is_quantized or plain.numel() == 0:
        return spec
    low, high, values = 0, 3, ""
    if not (plain.is_floating_point() or plain.is_complex()):
        low, high = int(plain.min()), int(plain.max()) + 1
    if plain.numel() <= LITERALS_MAX and not plain.is_complex():
        flat = plain.to(torch.float64 if plain.is_floating_point() else plain.dtype)
        numbers = flat.flatten().tolist()
        if all(math.isfinite(number) for number in numbers):
            values = repr(numbers)
    return TensorSpec(spec.shape, dtype, values, low, high, bit=spec.bit)


def value_of(value: Any) -> Any:
    """An argument as the fuzzer writes it down. Raises _Unwritable."""
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, list | tuple):
        return [value_of(item) for item in value]
    if isinstance(value, torch.device):
        return Word("device")
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return Word(str(value))
    if isinstance(value, torch.Generator):
        return None
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    raise _Unwritable(type(value).__name__)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, seeds: Seeds) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seeds = seeds
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if func.namespace == "aten" and name not in self.seen:
            self.seen.add(name)
            add(self.seeds, name, args, kwargs)
        return func(*args, **kwargs)


def add(seeds: Seeds, overload: str, args: Any, kwargs: Any) -> None:
    """Keeps a call, unless it cannot be written down or there are enough."""
    kept = seeds[overload]
    if len(kept) >= PER_OVERLOAD:
        return
    names = [argument.name for argument in schema(overload).arguments]
    with suppress(_Unwritable):
        found = {name: value_of(arg) for name, arg in zip(names, args, strict=False)}
        found |= {name: value_of(value) for name, value in kwargs.items()}
        if found not in kept:
            kept.append(found)


def record(operators: list[str], seed: int) -> Seeds:
    """Calls below these operators of torch's database."""
    seeds: Seeds = defaultdict(list)
    database = torch_testing.operators()
    for name in operators:
        operator = database[name]
        dtype = torch_testing.default_dtype(operator)
        if dtype is None or name.startswith(torch_testing.CUDA_SOURCE):
            continue
        differentiable = operator.supports_autograd and (dtype.is_floating_point)
        with suppress(Exception):
            samples = torch_testing.sample_inputs(operator, dtype, differentiable, seed)
            step = max(1, len(samples) // SAMPLES)
            for sample in samples[::step][:SAMPLES]:
                _direct(seeds, operator, sample)
                with suppress(Exception), _Recorder(seeds):
                    _backward(operator(sample.input, *sample.args, **sample.kwargs))
    return dict(seeds)


def _backward(result: Any) -> None:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    total = [leaf.abs().sum() for leaf in leaves if leaf.requires_grad]
    if total:
        torch.stack(total).sum().backward()  # type: ignore[no-untyped-call]


def _direct(seeds: Seeds, operator: Any, sample: Any) -> None:
    """The sample as a call of the overloads of its name, which composites never let one see."""
    packet = getattr(torch.ops.aten, operator.aten_name, None)
    if packet is None:
        return
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    for overload_name in packet.overloads():
        overload = operator.aten_name + (f".{overload_name}" if overload_name != "default" else "")
        arguments = schema(overload).arguments
        positional = [argument for argument in arguments if not argument.kwarg_only]
        if len(args) > len(positional) or any(
            key not in {argument.name for argument in arguments} for key in kwargs
        ):
            continue
        pairs = zip(positional, args, strict=False)
        if all(_fits(str(argument.type), value) for argument, value in pairs):
            add(seeds, overload, args, kwargs)


def _fits(kind: str, value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return kind in ("Tensor", "Optional[Tensor]")
    if isinstance(value, list | tuple):
        return "List" in kind and ("Tensor" in kind) == any(
            isinstance(item, torch.Tensor) for item in value
        )
    return (kind != "Tensor" and "List" not in kind) or (value is None and "Optional" in kind)


def _base(overload: str) -> str:
    """The name that kin share: "_foo_backward.out" and "foo_" are kin of "foo"."""
    name = overload.partition(".")[0].strip("_")
    return re.sub(r"_(copy|backward|double_backward|cpu_fallback)$", "", name).rstrip("_")


@cache
def _signature(overload: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (argument.name, str(argument.type))
        for argument in schema(overload).arguments
        if not argument.is_out
    )


class Corpus:
    """Seeds, and calls made of them: the same for the same seed, whatever else is fuzzed."""

    def __init__(self, seeds: Seeds, seed: int) -> None:
        self.seeds = seeds
        self.seed = seed
        self._kin: dict[Any, list[Arguments]] = defaultdict(list)
        for overload in sorted(seeds):
            for key in (_base(overload), _signature(overload)):
                self._kin[key] += seeds[overload]

    def starts(self, overload: str) -> list[Arguments]:
        """Calls to mutate, the overload's own or those of its kin."""
        own = self.seeds.get(overload, [])
        if own:
            return own
        names = {argument.name for argument in schema(overload).arguments}
        found: list[Arguments] = []
        for key in (_signature(overload), _base(overload)):
            for arguments in self._kin.get(key, []):
                known = {name: value for name, value in arguments.items() if name in names}
                if known and known not in found:
                    found.append(known)
                if len(found) == PER_OVERLOAD:
                    return found
        return found

    def calls(self, overload: str, count: int) -> list[Call]:
        """Calls of one overload: its starts as they are, then mutated ones and drawn ones."""
        rng = random.Random(f"{self.seed}/{overload}")
        starts = self.starts(overload)
        calls = []
        for number in range(count):
            known = None
            if starts and (number < len(starts) or rng.random() < 0.8):
                known = starts[number % len(starts)]
            call = drawn(rng, overload, known)
            if number >= min(4, len(starts)) and rng.random() < 0.85:
                call = mutated(rng, call, kinds(overload))
            calls.append(call)
        return calls
