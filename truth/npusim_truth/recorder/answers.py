# SPDX-License-Identifier: BSD-3-Clause
"""Section answers: public names, their values, texts of wrong calls, the order of streams."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from .asked import ASKED, MODULES, ORDERS
from .batches import Question, batch
from .device import device


def plain(value: Any) -> Any:
    """Returns a value for JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and len(value) < 400:
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(repr(item) for item in value)
    text = repr(value)
    return text[:300] if not callable(value) else type(value).__name__


def _kind(value: Any) -> str:
    import types

    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{type(value).__name__}: {plain(value)}"
    return "callable" if callable(value) else type(value).__name__


def _name_questions() -> Iterator[Question]:
    import importlib

    def kinds(name: str) -> Any:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [n for n in dir(module) if n[0] != "_"]
        return {
            n: _kind(getattr(module, n)) if hasattr(module, n) else "missing"
            for n in sorted(public)
        }

    for module in MODULES:
        yield f"names|{module}", functools.partial(kinds, module)


#: Public functions without arguments that begin so are called, but for those that name a machine.
GETTERS = ("is_", "get_", "has_", "current_", "device_count", "initial_seed")
NOT_CALLED = ("get_device_properties", "current_blas_handle", "get_results", "get_filename")


def _value_questions() -> Iterator[Question]:
    import importlib
    import inspect

    def value(module: str, name: str) -> Any:
        import torch

        torch.cuda.init()
        return plain(getattr(importlib.import_module(module), name)())

    for module in MODULES:
        of = importlib.import_module(module)
        public = getattr(of, "__all__", None) or [n for n in dir(of) if n[0] != "_"]
        for name in sorted(n for n in set(public) - set(NOT_CALLED) if n.startswith(GETTERS)):
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                inspect.signature(getattr(of, name)).bind()
                yield f"value|{module}.{name}()", functools.partial(value, module, name)


def _answer_questions() -> Iterator[Question]:
    import torch

    def ask(text: str) -> Any:
        torch.cuda.init()
        found = plain(eval(text, {"torch": torch}))
        torch.cuda.synchronize()  # a device assert belongs to its own question
        return found

    for text in ASKED:
        yield f"says|{text}", functools.partial(ask, text)


def _order_questions() -> Iterator[Question]:
    import torch

    def ask(text: str) -> Any:
        torch.cuda.synchronize()
        timing = functools.partial(torch.cuda.Event, enable_timing=True)
        names: dict[str, Any] = {
            "torch": torch,
            "s": torch.cuda.current_stream(),
            "o": torch.cuda.Stream(),
        }
        names.update(e=torch.cuda.Event(), f=torch.cuda.Event(), t=timing(), u=timing())
        names.update(x=torch.ones(1, device=device()), p=torch.ones(1).pin_memory())
        names["a"] = names["x"].data_ptr()
        torch.cuda.synchronize()
        *first, last = text.split("; ")
        before = torch.cuda.current_stream()
        try:
            for statement in first:
                exec(statement, names)
            return plain(eval(last, names))
        finally:
            torch.cuda.set_stream(before)
            torch.cuda.synchronize()

    for name, text in ORDERS.items():
        yield f"order|{name}: {text}", functools.partial(ask, text)


@batch("answers", "asked")
def _answers_asked() -> Iterator[Question]:
    for questions in (_name_questions, _value_questions, _answer_questions, _order_questions):
        yield from questions()
