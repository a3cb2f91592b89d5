# SPDX-License-Identifier: BSD-3-Clause
"""Words for a way from an object to a name: which item, attribute, variable or closure it is."""

import threading
import types
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from torch_npusim._blame import file_line
from torch_npusim.testing._referrers import Step, module_of, variables_with

_OF_MODULES = {"_buffers": "buffer", "_parameters": "parameter", "_modules": "submodule"}


def in_words(start: Any, way: list[Step]) -> list[str]:
    """Returns one line per step of `way`, which begins at `start`; empty if there is no way."""
    lines: list[str] = []
    child = start
    at = 0
    while at < len(way):
        taken, line = _step(child, way, at)
        if [line] != lines[-1:]:  # a traceback is a chain of its kind
            lines.append(line)
        at += taken
        child = way[at - 1].owner
    return lines


def _step(child: Any, way: list[Step], at: int) -> tuple[int, str]:
    """Returns how many steps one line covers, and the line."""
    owner, how = way[at].owner, way[at].how
    if how is not None:
        return 1, how
    above = way[at + 1].owner if at + 1 < len(way) else None
    if (module := module_of(owner)) is not None:
        return 1, f"global variable {_key(owner, child)} of {_module(module)}"
    if isinstance(owner, dict):
        return _in_dict(child, owner, above, way, at)
    if isinstance(owner, types.CellType):
        return _in_cell(owner, above, way, at)
    if isinstance(owner, types.FrameType):
        return 1, f"local variable {_local(owner, child)} of {_code(owner.f_code, owner.f_lineno)}"
    if isinstance(owner, types.GeneratorType | types.CoroutineType):
        return 1, _in_generator(owner, child)
    if isinstance(owner, types.TracebackType):
        return 1, "traceback"
    if isinstance(owner, BaseException):
        return 1, f"exception {type(owner).__name__}({str(owner)[:60]!r})"
    if isinstance(owner, types.MethodType):
        return 1, f"bound method {owner.__qualname__}"
    if isinstance(owner, types.FunctionType):
        return 1, f"function {_function(owner)}"
    if isinstance(owner, partial):
        return 1, f"functools.partial of {thing(owner.func)}"
    if isinstance(owner, list | tuple | deque):
        return _in_sequence(child, owner, above)
    if isinstance(owner, set | frozenset):
        return 1, f"element of a {type(owner).__name__} of {len(owner)}"
    if isinstance(owner, type):
        return 1, f"attribute {_key(vars(owner), child)} of class {_class(owner)}"
    if hasattr(owner, "cache_info") and hasattr(owner, "__wrapped__"):
        return 1, f"results cached by functools.lru_cache of {_function(owner.__wrapped__)}"
    if isinstance(owner, types.ModuleType):
        return 1, _module(owner)
    return 1, _in_instance(child, owner)


def _in_dict(
    child: Any, owner: dict[Any, Any], above: Any, way: list[Step], at: int
) -> tuple[int, str]:
    key = _key(owner, child)
    if isinstance(above, types.ModuleType):
        return 2, f"global variable {key} of {_module(above)}"
    if isinstance(above, type):
        return 2, f"attribute {key} of class {_class(above)}"
    if isinstance(above, types.FunctionType) and above.__dict__ is owner:
        return 2, f"attribute {key} of function {_function(above)}"
    if (holder := _thread_local_above(way, at)) is not None:
        return holder, f"attribute {key} of a threading.local"
    if above is not None and getattr(above, "__dict__", None) is owner:
        return 2, f"attribute {key} of {thing(above)}"
    for name, word in _OF_MODULES.items():
        for steps, module in enumerate((step.owner for step in way[at + 1 : at + 3]), 2):
            if isinstance(module, torch.nn.Module) and module.__dict__.get(name) is owner:
                return steps, f"{word} {key} of {thing(module)}"
    return 1, f"item {key} of a {type(owner).__name__} of {len(owner)}"


def _in_sequence(
    child: Any, owner: list[Any] | tuple[Any, ...] | deque[Any], above: Any
) -> tuple[int, str]:
    place = next((f"[{place}]" for place, item in enumerate(owner) if item is child), "[?]")
    if isinstance(above, types.FunctionType) and above.__defaults__ is owner:
        return 2, f"default argument {place} of {_function(above)}"
    return 1, f"item {place} of a {type(owner).__name__} of {len(owner)}"


def _thread_local_above(way: list[Step], at: int) -> int | None:
    """Returns how many steps lead to a thread-local object whose dictionary way[at] is."""
    for steps, step in enumerate(way[at + 1 : at + 4], 2):
        if isinstance(step.owner, threading.local):
            return steps
    return None


def _in_cell(cell: types.CellType, above: Any, way: list[Step], at: int) -> tuple[int, str]:
    function = way[at + 2].owner if at + 2 < len(way) else None
    if isinstance(function, types.FunctionType) and function.__closure__ is above:
        closure = function.__closure__ or ()
        names = [
            name
            for name, other in zip(function.__code__.co_freevars, closure, strict=True)
            if other is cell
        ]
        return 3, f"variable {names[0]!r} in the closure of {_function(function)}"
    return 1, "variable that functions share (a cell)"


def _in_generator(generator: Any, child: Any) -> str:
    frame = getattr(generator, "gi_frame", None) or getattr(generator, "cr_frame", None)
    kind = "generator" if isinstance(generator, types.GeneratorType) else "coroutine"
    if frame is None:
        return f"{kind} {generator.__qualname__}"
    name = _local(frame, child)
    return f"local variable {name} of suspended {kind} {_code(frame.f_code, frame.f_lineno)}"


def _in_instance(child: Any, owner: Any) -> str:
    if isinstance(owner, torch.Tensor) and owner.grad_fn is child:
        return f"autograd graph (.grad_fn) of {thing(owner)}"
    for name, value in getattr(owner, "__dict__", {}).items():
        if value is child:
            return f"attribute {name!r} of {thing(owner)}"
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if getattr(owner, name, None) is child:
                return f"attribute {name!r} of {thing(owner)}"
    return f"{thing(owner)}"


def _key(variables: Mapping[Any, Any], child: Any) -> str:
    for key, value in variables.items():
        if value is child:
            return repr(key) if isinstance(key, str | int | float) else f"[{thing(key)}]"
    return f"a key, {thing(child)}," if any(key is child for key in variables) else "?"


def _local(frame: types.FrameType, child: Any) -> str:
    names = variables_with(child, frame)
    return repr(names[0]) if names else "(unnamed)"


def _code(code: types.CodeType, line: int) -> str:
    return f"{code.co_qualname}() ({file_line(code.co_filename, line)})"


def _function(function: Any) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return _code(code, code.co_firstlineno) if code is not None else f"{name}()"


def _module(module: types.ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return f"module {module.__name__}" + (f" ({file})" if file else "")


def _class(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def thing(what: Any) -> str:
    """Returns what an object is, with the shape of a tensor; never what is in it."""
    if isinstance(what, torch.Tensor):
        return f"a {type(what).__name__} of shape {list(what.shape)} on {what.device}"
    return f"a {_class(type(what))}"
