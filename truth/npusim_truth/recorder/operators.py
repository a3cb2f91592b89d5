# SPDX-License-Identifier: BSD-3-Clause
"""Torch's own table of operators and samples, as it is without a GPU."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator
from typing import Any, Callable

from .batches import Question
from .device import moved, shape

DTYPES = (
    "float32 float16 bfloat16 float64 int64 int32 int16 int8 uint8 bool complex64 complex128 "
    "complex32 float8_e4m3fn uint16"
).split()


@functools.lru_cache(None)
def operators() -> dict[str, Any]:
    """Returns torch's own table of operators, as it is without a GPU: the same everywhere."""
    import types
    import unittest

    import torch

    for name in ("expecttest",):  # what torch's tests import and the table does not need
        try:
            __import__(name)
        except ImportError:
            stand_in: Any = types.ModuleType(name)
            stand_in.TestCase = unittest.TestCase
            stand_in.assert_expected_inline = None
            sys.modules[name] = stand_in
    # Without a GPU the table is the same everywhere, and asking for one would begin to use it.
    compilers = "_create_jit_fn", "_create_multi_output_jit_fn"
    kept: list[tuple[Any, str, Any]] = [(torch.cuda, "is_available", lambda: False)]
    kept += [(torch.cuda.jiterator, name, lambda *_, **__: print) for name in compilers]
    before = [(of, name, getattr(of, name)) for of, name, _ in kept]
    argv, sys.argv = sys.argv, sys.argv[:1]
    hidden = [n for n in ("numba", "cupy", "cuda.bindings") if n not in sys.modules]
    try:
        for place in kept:
            setattr(*place)
        # torch's tests ask these whether there is a GPU: a fork of that process can use none.
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
        from torch.testing._internal.common_methods_invocations import op_db
    finally:
        sys.argv = argv
        for place in before:
            setattr(*place)
        for name in hidden:
            del sys.modules[name]
    found: dict[str, Any] = {}
    for info in op_db:
        if "jiterator" not in info.full_name:
            found.setdefault(info.full_name, info)
    return found


def samples(name: str, dtype: str, count: int, grad: bool = False) -> list[Any]:
    """Returns torch's first samples of an operator, on the CPU; [] where it has none."""
    import torch

    torch.manual_seed(0)
    with contextlib.suppress(Exception):
        made = operators()[name].sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)
        return list(itertools.islice(made, count))
    return []


def called(name: str, sample: Any, grad: bool = False) -> Callable[[], Any]:
    """Returns a function that calls an operator on a sample's copy on the device."""
    args = moved((sample.input, *sample.args), grad)
    kwargs = moved(dict(sample.kwargs), grad)
    info = operators()[name]
    return lambda: info(*args, **kwargs)


def described(name: str, sample: Any) -> str:
    """Returns the call as a text."""
    words = [shape(value) for value in (sample.input, *sample.args)]
    words += [f"{key}={shape(value)}" for key, value in sample.kwargs.items()]
    return f"{name}({', '.join(words)})"


def one_per_operator(kind: str, ask: Callable[[str, Any], Any]) -> Iterator[Question]:
    """Yields a question per operator, about its first sample of the first of a few dtypes."""

    def first(name: str) -> Any:
        for dtype in ("float32", "int64", "bool", "complex64"):
            for sample in samples(name, dtype, 1):
                with contextlib.suppress(Exception):
                    called(name, sample)()
                    return ask(name, sample)
        return None

    for name in operators():
        yield f"{kind}|{name}", functools.partial(first, name)
