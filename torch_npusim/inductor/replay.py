# SPDX-License-Identifier: BSD-3-Clause
"""mode="reduce-overhead": compiled code that runs as one replayed graph (docs/use/graphs.md).

The first calls run as they are; then one is captured, and later ones replay it. Arguments whose
address changes are copied to where the capture found them; others, such as parameters, are used
in place. A caller may keep what a call returned for as long as it likes: while it
does, the next call is captured anew, into memory of its own.

Under the rules for CUDA results end with their step (steps.py).
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

from torch_npusim import _C
from torch_npusim.inductor import steps
from torch_npusim.npusim import graphs
from torch_npusim.sim import rules

# Of one function: captures, and combinations of sizes. More runs as without graphs.
_MOST_CAPTURES = 4
_MOST_SIZES = 8
Call = Callable[[list[Any]], Sequence[Any]]


def replayed(
    call: Call, mutated: tuple[int, ...], is_backward: bool, is_inference: bool, device: int
) -> Call:
    """Returns a function that does what `call` does, by replays where it can.

    Args:
        call: The code that Inductor generated; it empties the list of its arguments.
        mutated: Which arguments it changes.
        is_backward: Whether it is a backward pass, whose arguments are where they stay only when
            the forward pass is replayed.
        is_inference: Whether no backward pass belongs to it.
        device: The index of its device.
    """
    by_sizes: dict[tuple[Any, ...], _Captures] = {}
    warm_up = 3 if is_backward else 1

    def run(arguments: list[Any]) -> Sequence[Any]:
        if graphs.is_current_stream_capturing():
            return call(arguments)
        sizes = tuple(x for x in arguments if not isinstance(x, torch.Tensor))
        captures = by_sizes.get(sizes)
        if captures is None:
            if len(by_sizes) == _MOST_SIZES:
                log_cudagraph_skip_and_bump_counter(
                    f"skipping npusim graphs: more than {_MOST_SIZES} combinations of sizes"
                )
            if len(by_sizes) >= _MOST_SIZES:
                return call(arguments)
            captures = by_sizes[sizes] = _Captures(call, mutated, warm_up)
        if rules.get_rules() != "cuda":
            return captures.run(arguments)
        path = steps.path_of(device)
        given = {x.untyped_storage()._cdata for x in arguments if isinstance(x, torch.Tensor)}
        path.begin(given)
        is_replay = captures.is_warm()
        results = captures.run(arguments)
        path.has_run(is_inference, is_backward)
        if not mutated and not captures.refused:
            path.end_later(results, given, is_backward, is_replay)
        return results

    return run


def captured_memory() -> list[torch.Tensor]:
    """Returns the tensors of all captures."""
    return [x for captures in _Captures.alive for x in captures.memory()]


class _Captures:
    """The captures of a function for arguments of one size."""

    alive: ClassVar["weakref.WeakSet[_Captures]"] = weakref.WeakSet()

    def __init__(self, call: Call, mutated: tuple[int, ...], warm_up: int) -> None:
        self._call, self._mutated, self._warm_up = call, mutated, warm_up
        self._captures: list[_Capture] = []
        self._addresses: tuple[int, ...] = ()
        self._moving: frozenset[int] = frozenset()
        self.refused = False
        self.alive.add(self)

    def memory(self) -> list[torch.Tensor]:
        """Returns the tensors of the captures, which live as long as the compiled code."""
        return [x for one in self._captures for x in one.memory()]

    def is_warm(self) -> bool:
        """Whether the next call is a replay, unless it is refused."""
        return self._warm_up == 0

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        if self.refused:
            return self._call(arguments)
        addresses = tuple(x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in arguments)
        if self._warm_up > 0:
            self._warm_up -= 1
            self._addresses = addresses
            return self._call(arguments)
        for capture in self._captures:
            if capture.fits(addresses):
                return capture.replay(arguments)
        before, self._addresses = self._addresses, addresses
        pairs = enumerate(zip(addresses, before, strict=True))
        self._moving |= {i for i, (now, then) in pairs if now != then}
        moved = sorted(self._moving.intersection(self._mutated))
        if moved:
            return self._refuse(f"argument {moved[0]} is changed and is elsewhere", arguments)
        if len(self._captures) == _MOST_CAPTURES:
            # Those that nobody reads any more make room, for one that copies more.
            self._captures = [one for one in self._captures if not one.is_free()]
        if len(self._captures) == _MOST_CAPTURES:
            return self._refuse(f"the results of {_MOST_CAPTURES} calls are kept", arguments)
        try:
            capture = _Capture(self._call, arguments, addresses, self._moving)
        except (RuntimeError, NotImplementedError) as error:
            return self._refuse(str(error).splitlines()[0], arguments)
        self._captures.append(capture)
        return capture.replay(arguments)

    def _refuse(self, why: str, arguments: list[Any]) -> Sequence[Any]:
        self.refused = True
        self._captures.clear()
        log_cudagraph_skip_and_bump_counter(f"skipping npusim graphs: {why}")
        return self._call(arguments)


class _Capture:
    """A captured call, with the memory of its arguments and results."""

    def __init__(
        self,
        call: Call,
        arguments: list[Any],
        addresses: tuple[int, ...],
        moving: frozenset[int],
    ) -> None:
        self._fixed = {
            i: address for i, address in enumerate(addresses) if address and i not in moving
        }
        self._copied = {i: _room_for(arguments[i]) for i in moving}
        # The graph keeps its operands. Of arguments it has the memory alone, which callers own:
        # a call is replayed while its arguments are there.
        inputs = [
            _alias(x) if i in self._fixed else self._copied.get(i, x)
            for i, x in enumerate(arguments)
        ]
        fixed = [inputs[i] for i in self._fixed if not inputs[i].is_cpu]
        _C.separate_storages(fixed, keeps=False)
        self._graph = graphs.NPUSIMGraph()
        with graphs.graph(self._graph, capture_error_mode="thread_local"):
            self._outputs = list(call(list(inputs)))
        given = {
            x.untyped_storage()._cdata: i
            for i, x in enumerate(inputs)
            if isinstance(x, torch.Tensor)
        }
        # What a result is a view of: the number of an argument, and the offset in it.
        self._views: dict[int, tuple[int, int]] = {}
        made = {}
        for n, x in enumerate(self._outputs):
            if not isinstance(x, torch.Tensor):
                continue
            storage = x.untyped_storage()
            i = given.get(storage._cdata)
            if i is None:
                made[storage._cdata] = storage
            else:
                self._views[n] = (i, x.storage_offset() - inputs[i].storage_offset())
        self._storages = tuple(made.values())
        self._unused = tuple(torch._C._storage_Use_Count(x._cdata) for x in self._storages)

    def memory(self) -> list[torch.Tensor]:
        """Returns the tensors for arguments and results."""
        tensors = [*self._copied.values(), *self._outputs]
        return [x for x in tensors if isinstance(x, torch.Tensor)]

    def is_free(self) -> bool:
        """Whether nobody has what the last replay returned."""
        counts = (torch._C._storage_Use_Count(x._cdata) for x in self._storages)
        return all(now <= unused for now, unused in zip(counts, self._unused, strict=True))

    def fits(self, addresses: tuple[int, ...]) -> bool:
        """Whether a call with arguments at `addresses` can be replayed now."""
        return self.is_free() and all(addresses[i] == at for i, at in self._fixed.items())

    def replay(self, arguments: list[Any]) -> Sequence[Any]:
        """Does the call; empties `arguments` as it would."""
        for i, room in self._copied.items():
            room.copy_(arguments[i])
        self._graph.replay()
        results = [
            self._view(arguments, n, x) if n in self._views else _alias(x)
            for n, x in enumerate(self._outputs)
        ]
        arguments.clear()
        return tuple(results)

    def _view(self, arguments: list[Any], n: int, like: torch.Tensor) -> torch.Tensor:
        i, offset = self._views[n]
        base: torch.Tensor = arguments[i]
        if offset == 0 and (like.size(), like.stride()) == (base.size(), base.stride()):
            return base
        return base.as_strided(like.size(), like.stride(), base.storage_offset() + offset)


def _alias(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _room_for(x: torch.Tensor) -> torch.Tensor:
    if torch._debug_has_internal_overlap(x) != 0:
        raise RuntimeError("an argument that moves has elements at one address")
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
