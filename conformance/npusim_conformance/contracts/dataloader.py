# SPDX-License-Identifier: BSD-3-Clause
"""DataLoader: batches made by this process or by others, pinned, and brought to the device."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from npusim_conformance.contracts import contract, same
from npusim_conformance.properties.base import Run
from npusim_conformance.verdict import NotApplicable

_NO_CPU = "memory is pinned for an accelerator"
_COUNT = 20


class Numbers(Dataset[dict[str, Any]]):
    """Items that hold a tensor in a container."""

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "more": [index, torch.tensor(index)]}


class Stream(IterableDataset[torch.Tensor]):
    """Numbers without an index."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(index)]) for index in range(_COUNT))


def _check(run: Run, loader: DataLoader[Any], pinned: bool = False) -> None:
    seen = []
    for batch in loader:
        same("is_pinned() of a batch", batch["x"].is_pinned(), pinned)
        same("is_pinned() inside a list", batch["more"][1].is_pinned(), pinned)
        there = batch["x"].to(run.device, non_blocking=True)
        same("device", there.device, run.device)
        seen += (there + 1)[:, 0].cpu().tolist()
    same("the numbers that came", seen, [index + 1.0 for index in range(_COUNT)])


def _is_accelerator(run: Run) -> None:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != run.device.type:
        raise NotApplicable(f"memory is pinned for torch's accelerator, which is {accelerator}")


@contract()
def loads_in_this_process(run: Run) -> None:
    """Batches of this process reach the device in order."""
    _check(run, DataLoader(Numbers(), batch_size=6))


@contract()
def loads_with_two_workers(run: Run) -> None:
    """Batches of two forked workers reach the device in order, in two epochs."""
    loader = DataLoader(Numbers(), batch_size=6, num_workers=2, persistent_workers=True, timeout=30)
    _check(run, loader)
    _check(run, loader)


@contract(no_cpu=_NO_CPU)
def pins_batches(run: Run) -> None:
    """pin_memory=True pins every tensor of a batch, in containers too."""
    _is_accelerator(run)
    _check(run, DataLoader(Numbers(), batch_size=6, pin_memory=True), pinned=True)


@contract(no_cpu=_NO_CPU)
def pins_batches_of_workers(run: Run) -> None:
    """pin_memory=True pins the batches of two workers, in a thread of its own."""
    _is_accelerator(run)
    loader = DataLoader(Numbers(), batch_size=6, num_workers=2, pin_memory=True, timeout=30)
    _check(run, loader, pinned=True)


@contract(no_cpu=_NO_CPU)
def takes_pin_memory_device(run: Run) -> None:
    """pin_memory_device may still be given."""
    _is_accelerator(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated since torch 2.9
        loader = DataLoader(
            Numbers(), batch_size=6, pin_memory=True, pin_memory_device=run.device.type
        )
        _check(run, loader, pinned=True)


@contract()
def streams_from_workers(run: Run) -> None:
    """An IterableDataset works with a worker."""
    loader = DataLoader(Stream(), batch_size=4, num_workers=1, timeout=30)
    numbers = torch.cat([batch.to(run.device) for batch in loader])
    same("the numbers", numbers, torch.arange(float(_COUNT)).view(-1, 1))


@contract()
def data_on_the_device(run: Run) -> None:
    """A dataset whose tensors lie on the device works, shuffled, without workers."""
    data = TensorDataset(torch.arange(float(_COUNT)).to(run.device))
    batches = [batch for (batch,) in DataLoader(data, batch_size=8, shuffle=True)]
    same("devices", {batch.device for batch in batches}, {run.device})
    same("all numbers", torch.cat(batches).cpu().sort().values, torch.arange(float(_COUNT)))
