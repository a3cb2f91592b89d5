# SPDX-License-Identifier: BSD-3-Clause
"""Steps of a program whose compiled code is replayed: results of one end with the next.

Under the rules for CUDA (docs/reference/rules.md) results, what a forward pass saves and gradients
end when another step begins, as in CUDA's graph trees: who looks at them later gets their error.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.mutation_guard import GenerationTracker
from torch.multiprocessing.reductions import StorageWeakRef

from torch_npusim import _C

_PATHS = "npusim_replayed_steps"
_OVERWRITTEN = (
    "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. "
    "To prevent overwriting, clone the tensor outside of torch.compile() or call "
    "torch.compiler.cudagraph_mark_step_begin() before each model invocation. (NPUSIM_RULES=cuda)"
)
_GRADIENT_OVERWRITTEN = (
    "Error: accessing gradient tensor output of CUDAGraphs that has been overwritten by a "
    "subsequent run. If you need gradient accumulation, allocate stable .grad buffers before the "
    "compiled backward runs, for example zeros. If you do not, set .grad to None before each "
    "backward. (NPUSIM_RULES=cuda)"
)


class Path:
    """The calls since a step began: on one device, in one thread and its backward passes."""

    def __init__(self) -> None:
        self._step = 0
        self._awaits_backward = False
        self._results: list[tuple[StorageWeakRef, str]] = []

    def begin(self, given: set[int]) -> None:
        """Ends the results of the last step if a call is of another, but not its arguments.

        The program marks steps, or else each call of compiled code from outside begins one; but
        not while a forward pass awaits its backward pass.

        Args:
            given: Addresses of the arguments' storages.
        """
        trees = sys.modules.get("torch._inductor.cudagraph_trees")
        marked = trees.MarkStepBox.mark_step_counter if trees is not None else 0
        before, self._step = self._step, marked or GenerationTracker.generation
        if self._step == before or (self._awaits_backward and not marked):
            return
        for reference, message in self._results:
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is not None and storage._cdata not in given:
                _C.end_storage(storage, message)
        self._results.clear()

    def has_run(self, is_inference: bool, is_backward: bool) -> None:
        """Says what has run: a backward pass belongs to each forward pass that is no inference."""
        if not is_inference:
            self._awaits_backward = not is_backward

    def end_later(
        self, results: Sequence[Any], given: set[int], is_backward: bool, is_replay: bool
    ) -> None:
        """Has results end with the step; the memory of a capture stays the capture's."""
        made = [
            x
            for x in results
            if isinstance(x, torch.Tensor)
            and not x.is_cpu
            and x.untyped_storage()._cdata not in given
        ]
        if is_replay:
            _C.separate_storages(made)
        storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in made}
        message = _GRADIENT_OVERWRITTEN if is_backward else _OVERWRITTEN
        alive = [x for x in self._results if not x[0].expired()]  # type: ignore[no-untyped-call]
        made_now = [StorageWeakRef(x) for x in storages.values()]  # type: ignore[no-untyped-call]
        self._results = alive + [(x, message) for x in made_now]


def path_of(device: int) -> Path:
    """Returns the path of a device: one per thread, and that of its forward pass in a backward."""
    if not torch._C._is_key_in_tls(_PATHS):
        torch._C._stash_obj_in_tls(_PATHS, {})
    paths: dict[int, Path] = torch._C._get_obj_in_tls(_PATHS)
    return paths.setdefault(device, Path())
