# SPDX-License-Identifier: BSD-3-Clause
"""Whether a model trains or runs on a chip, asked in one call: `torch_npusim.estimate()`."""

import copy
import difflib
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from torch_npusim import npusim
from torch_npusim._names import is_npusim
from torch_npusim.fit.result import Fit

STEPS = 3  # the first allocates the optimizer's state; the median of the others is the time
_ALLOCATOR = "cuda-2.13"
_Maker = Callable[[Any], torch.optim.Optimizer]


@dataclass
class Estimate(Fit):
    """The answer of estimate(): a Fit, which prints itself; a notebook shows its page."""

    def __str__(self) -> str:
        """The text of `npusim fit`."""
        from torch_npusim.fit.text import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from torch_npusim.fit.page import as_page

        return f'<iframe srcdoc="{escape(as_page(self))}" width="100%" height="640"></iframe>'

    def chips(self) -> list[str]:
        """Returns names of specifications that hold the same peak beside a context, least first.

        Temporaries are those of the chip that was asked about.
        """
        from torch_npusim.fit.outside import chips_with

        return [name for _, name in chips_with(self.need or self.peak_reserved)]


def estimate(
    model: nn.Module,
    inputs: Any,
    *,
    chip: str,
    optimizer: str | torch.optim.Optimizer | _Maker | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    autocast: torch.dtype | None = None,
    memory: str | None = None,
    find_batch: bool = False,
) -> Estimate:
    """Says whether a model's training, or its inference, fits a chip, and how long a step takes.

    Nothing is computed and the model is left as it is: parameters of the CPU or of the meta device
    are not copied. The work is done in a fork of this process; in this process, and under its
    allocator's rules, where it has used npusim.

    Args:
        model: A module of the CPU or of the meta device.
        inputs: Its arguments: a tensor, a tuple, or a dict of keyword arguments. Tensors of the
            meta device will do.
        chip: A name of `npusim specs`, or a file.
        optimizer: That of the model's parameters, a class of torch.optim by name, such as "AdamW",
            or a function of the parameters that makes one. It begins without state. None:
            inference, without gradients.
        loss: Of the model's result; None: `result.loss`, or the sum of all its floats.
        autocast: The dtype of an autocast around the model; None: none.
        memory: The chip's capacity, such as "24GiB", if not the specification's.
        find_batch: Whether to find the largest batch that fits too: `batch` of the answer. The
            first size of the first tensor is the batch, of all tensors that have the same.

    Raises:
        ValueError: For an optimizer, a chip or inputs that cannot be.
        RuntimeError: If the fork ends without an answer.

    Example:
        >>> model = torch.nn.Linear(4096, 4096, device="meta")
        >>> found = estimate(model, torch.empty(8, 4096, device="meta"), chip="t4")
        >>> found.fits, found.peak_reserved >> 20
        (True, 86)
    """
    if isinstance(optimizer, str):
        optimizer = _of_torch(optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        own = {id(parameter) for parameter in model.parameters()}
        if any(id(each) not in own for group in optimizer.param_groups for each in group["params"]):
            raise ValueError("the optimizer has a parameter that the model does not have")
    tensors = [each for each in tree_leaves(inputs) if isinstance(each, torch.Tensor)]
    for device in {each.device for each in [*model.parameters(), *model.buffers(), *tensors]}:
        if device.type not in ("cpu", "meta"):
            raise ValueError(f"estimate() takes tensors of cpu and meta, got one of {device}")
    if find_batch and not (tensors and tensors[0].dim()):
        raise ValueError("find_batch needs a tensor with a first size among the inputs")

    def fitted(batch: int | None = None, memory: str | None = memory) -> Estimate:
        from torch_npusim.fit.run import fit_call

        given = inputs if batch is None else _of_batch(inputs, tensors[0].shape[0], batch)
        fit = Estimate(type(model).__name__)
        fit_call(
            fit,
            lambda: _steps(model, given, optimizer, loss, autocast),
            spec=chip,
            memory=memory,
            outside="high",
        )
        return fit

    def ask(batch: int) -> tuple[bool, int]:
        found = fitted(batch)
        return found.fits, found.peak_reserved

    def run() -> Estimate:
        from torch_npusim.fit.remedies import WITHOUT_LIMIT
        from torch_npusim.fit.trials import largest_that_fits

        fit = fitted()
        if not fit.fits and not fit.error:
            fit.need = fitted(memory=WITHOUT_LIMIT).peak_reserved
        if find_batch and not fit.error:
            fit.batch = largest_that_fits(ask, fit, tensors[0].shape[0])
        return fit

    return run() if npusim.is_initialized() else _in_fork(run)


def _of_batch(inputs: Any, now: int, batch: int) -> Any:
    def sized(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim() or leaf.shape[0] != now:
            return leaf
        return torch.empty((batch, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")

    return tree_map(sized, inputs)


def _of_torch(name: str) -> type[torch.optim.Optimizer]:
    found = {
        name: each
        for name, each in vars(torch.optim).items()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    }
    if name not in found:
        small = {each.lower(): each for each in found}
        near = difflib.get_close_matches(name.lower(), small, 1)
        meant = f"; did you mean {small[near[0]]!r}?" if near else ""
        raise ValueError(f"torch.optim has no optimizer {name!r}{meant}")
    return found[name]


def _steps(
    model: nn.Module,
    inputs: Any,
    optimizer: torch.optim.Optimizer | _Maker | None,
    loss: Callable[[Any], torch.Tensor] | None,
    autocast: torch.dtype | None,
) -> None:
    """Runs the steps; a dry run is on."""
    made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    twin, chosen = _on_device(model, made)
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        chosen = optimizer([p for p in twin.parameters() if p.requires_grad])
        if not all(is_npusim(p.device) for g in chosen.param_groups for p in g["params"]):
            raise ValueError("the function of `optimizer` has taken other parameters than its own")
    args, named = _arguments(tree_map(_moved, inputs))
    cast = torch.autocast("npusim", autocast) if autocast else nullcontext()
    for _ in range(STEPS):
        with torch.set_grad_enabled(chosen is not None):
            with cast:
                result = twin(*args, **named)
                value = None if chosen is None else (loss or _loss)(result)
            if chosen is not None and value is not None:
                torch.autograd.backward(value)
                chosen.step()
                chosen.zero_grad()
        del result, value


def _on_device(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Returns twins whose parameters and buffers lie on the device: no number is copied."""
    memo: dict[int, Any] = {}
    if optimizer is not None:
        memo[id(optimizer.state)] = defaultdict(dict)
    for tensor in [*model.parameters(), *model.buffers()]:
        made = torch.empty_like(tensor, device="npusim")
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, tensor.requires_grad)
        memo[id(tensor)] = made
    return copy.deepcopy((model, optimizer), memo)


def _moved(leaf: Any) -> Any:
    return torch.empty_like(leaf, device="npusim") if isinstance(leaf, torch.Tensor) else leaf


def _arguments(inputs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), inputs
    return (inputs if isinstance(inputs, tuple | list) else (inputs,)), {}


def _loss(result: Any) -> torch.Tensor:
    if isinstance(own := getattr(result, "loss", None), torch.Tensor):
        return own
    sums = [
        each.float().sum()
        for each in tree_leaves(result)
        if isinstance(each, torch.Tensor) and each.requires_grad
    ]
    if not sums:
        raise ValueError("the model's result has no tensor with a gradient: give a loss")
    return sum(sums[1:], sums[0])


def _in_fork(run: Callable[[], Estimate]) -> Estimate:
    receiver, sender = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_answer, args=(run, receiver, sender))
    child.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"the fork of estimate() ended with {child.exitcode}") from None
    finally:
        receiver.close()
    child.join()
    if isinstance(answer, Estimate):
        return answer
    raise answer


def _answer(run: Callable[[], Estimate], receiver: Connection, sender: Connection) -> None:
    receiver.close()
    torch.set_num_threads(1)  # those of the parent are not here
    os.environ.setdefault("NPUSIM_ALLOCATOR", _ALLOCATOR)
    os.environ.setdefault("NPUSIM_DEVICE_COUNT", "1")
    try:
        answer: Any = run()
    except Exception as error:
        answer = error
    try:
        sender.send(answer)
    except (pickle.PicklingError, TypeError, AttributeError):
        sender.send(RuntimeError(str(answer)))
