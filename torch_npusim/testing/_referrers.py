# SPDX-License-Identifier: BSD-3-Clause
"""The way from an object to a name: who refers to it, and who to that, up to a variable.

The garbage collector knows every reference that Python holds. Holdings of C++ come from
_graph_owners; the local variables of running functions, which the collector does not show, from
the stacks of the threads.
"""

import gc
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

MOST_STEPS = 14
MOST_OBJECTS = 5_000  # looked at on the way; a module's dictionary ends it long before

# What C++ holds: for an object, the next one on the way to a name and the words for the step.
Foreign = Callable[[Any], tuple[Any, str] | None]


@dataclass(slots=True)
class Step:
    """One step on the way: `owner` refers to the object before it.

    Attributes:
        owner: The object that refers to the one before.
        how: Words for the step if C++ holds the reference; else None.
    """

    owner: Any
    how: str | None = None


def way_to_a_name(
    start: Any, foreign: Foreign, ignored: Iterable[Any] = ()
) -> tuple[list[Step], bool]:
    """Returns the shortest way from `start` to something with a name of its own, and True.

    It ends at a module, a class, or a local variable of a running function; if none is reached, at
    the last object found, with False. Empty if nothing refers to `start`.

    Args:
        start: Where the way begins.
        foreign: Tells what the collector cannot see.
        ignored: Objects that are not on the way, such as the caller's own lists.
    """
    kept: list[Any] = [start]  # everything looked at stays alive, so that ids stay true
    level: list[Any] = [start]
    toward: dict[int, int] = {}
    steps: dict[int, Step] = {}
    seen = {id(start), *map(id, ignored)}
    seen |= {id(own) for own in (kept, level, toward, steps, seen)}
    last = start
    for _ in range(MOST_STEPS):
        following: list[Any] = []
        seen.add(id(following))
        for owner, child, how in _owners(level, foreign, seen):
            kept.append(owner)
            following.append(owner)
            toward[id(owner)] = id(child)
            steps[id(owner)] = step = Step(owner, how)
            seen.update((id(owner), id(step)))
            last = owner
            if has_a_name(owner):
                return _traced(owner, id(start), toward, steps), True
        if not following or len(kept) > MOST_OBJECTS:
            break
        level = following
    for reached in reversed(kept):
        if (frame := _frame_with(reached)) is not None:
            way = _traced(reached, id(start), toward, steps)
            return [*way, Step(frame)], True
    return _traced(last, id(start), toward, steps), False


def _traced(last: Any, start: int, toward: dict[int, int], steps: dict[int, Step]) -> list[Step]:
    way = []
    here = id(last)
    while here != start:
        way.append(steps[here])
        here = toward[here]
    return way[::-1]


def _owners(
    level: list[Any], foreign: Foreign, seen: set[int]
) -> list[tuple[Any, Any, str | None]]:
    """Returns (owner, the object of `level` that it owns, how) for owners not seen before."""
    children = {id(child): child for child in level}
    asked = tuple(level)  # from Python 3.13 on, the arguments of the call are among its results
    referrers = gc.get_referrers(*asked)
    seen.update(map(id, (children, asked, referrers)))
    owners: list[tuple[Any, Any, str | None]] = []
    for child in level:
        if (found := foreign(child)) is not None and id(found[0]) not in seen:
            owners.append((found[0], child, found[1]))
    for owner in referrers:
        if id(owner) in seen or _is_ours(owner):
            continue
        held = next((known for known in map(id, gc.get_referents(owner)) if known in children), 0)
        if held:
            owners.append((owner, children[held], None))
    return owners


def _is_ours(owner: Any) -> bool:
    frame = owner.gi_frame if isinstance(owner, types.GeneratorType) else owner
    if not isinstance(frame, types.FrameType):
        return False
    return bool(frame.f_globals.get("__name__", "").startswith("torch_npusim.testing"))


def has_a_name(owner: Any) -> bool:
    """Returns whether the way ends here: at a module, its variables, or a class."""
    return isinstance(owner, types.ModuleType | type) or module_of(owner) is not None


def module_of(variables: Any) -> types.ModuleType | None:
    """Returns the module whose dictionary of variables this is."""
    if type(variables) is not dict:
        return None
    name = variables.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module if getattr(module, "__dict__", None) is variables else None


def _frame_with(target: Any) -> types.FrameType | None:
    """Returns the running frame that has `target` in a local variable."""
    here = threading.get_ident()
    starts = [frame for thread, frame in sys._current_frames().items() if thread != here]
    # Not this function's own frame: an object that refers to its own frame is a cycle.
    starts.append(sys._getframe(1))
    for start in starts:
        frame: types.FrameType | None = start
        while frame is not None:
            if not _is_ours(frame) and variables_with(target, frame):
                return frame
            frame = frame.f_back
    return None


def variables_with(target: Any, frame: types.FrameType) -> list[str]:
    """Returns the names of the local variables of a function that have `target`."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return []  # the body of a module or a class
    variables = frame.f_locals
    names = [name for name, value in variables.items() if value is target]
    # Before Python 3.13 this is a copy that lives as long as the frame, and so would what is in it.
    # A debugger writes it back.
    if type(variables) is dict and sys.gettrace() is None:
        variables.clear()
    return names
