# SPDX-License-Identifier: BSD-3-Clause
"""Copy-on-write: lazy clones share memory until one of them is written to."""

import threading

import torch

from npusim_conformance.contracts import contract, on, same
from npusim_conformance.properties.base import Run, require

_NEEDS = ("torch._C._is_cow_tensor", "torch._C._data_address")


def _is_shared(tensor: torch.Tensor) -> bool:
    return bool(torch._C._is_cow_tensor(tensor))  # type: ignore[attr-defined]


def _address(tensor: torch.Tensor) -> int:
    """As data_ptr(), which would end the sharing."""
    return int(torch._C._data_address(tensor))  # type: ignore[attr-defined]


@contract(needs=_NEEDS)
def lazy_clone_shares_memory(run: Run) -> None:
    """Tensor._lazy_clone() copies nothing, and holds the original's values."""
    tensor = on(run.device, 1, 2, 3)
    clone = tensor._lazy_clone()
    same("device", clone.device, run.device)
    same("its address", _address(clone), _address(tensor))
    require(_is_shared(tensor) and _is_shared(clone), "one of them is not marked as shared")
    same("values", clone + 0, torch.tensor([1.0, 2.0, 3.0]))
    require(_is_shared(tensor) and _is_shared(clone), "reading ended the sharing")


@contract(needs=_NEEDS)
def write_to_a_lazy_clone(run: Run) -> None:
    """A write to a lazy clone, or to its original, is not seen by the other."""
    for number in (0, 1):
        tensor = on(run.device, 1, 2, 3)
        pair = (tensor, tensor._lazy_clone())
        pair[number].add_(1)
        same("what was written to", pair[number], torch.tensor([2.0, 3.0, 4.0]))
        same("the other", pair[1 - number], torch.tensor([1.0, 2.0, 3.0]))
        require(not _is_shared(pair[number]), "it is still marked as shared")
        pair[1 - number].mul_(2)
        same("the first after a write to the other", pair[number], torch.tensor([2.0, 3.0, 4.0]))


@contract(needs=_NEEDS)
def view_of_a_lazy_clone(run: Run) -> None:
    """Views of a lazy clone are views: a write through one shows in it, and not in the original."""
    tensor = on(run.device, 1, 2, 3, 4)
    clone = tensor._lazy_clone()
    view = clone.view(2, 2)[1]
    view.fill_(0)
    same("the clone", clone, torch.tensor([1.0, 2.0, 0.0, 0.0]))
    same("the original", tensor, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    first = on(run.device, 1, 2, 3, 4)
    part = first[2:]._lazy_clone()
    part.zero_()
    same("the original of a clone of a view", first, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    same("the clone of a view", part, torch.zeros(2))


@contract(needs=_NEEDS)
def data_ptr_of_a_lazy_clone(run: Run) -> None:
    """data_ptr() of a lazy clone ends the sharing: whoever asks may write there."""
    tensor = on(run.device, 1, 2, 3)
    clone = tensor._lazy_clone()
    require(clone.data_ptr() != _address(tensor), "the address is the original's")
    require(not _is_shared(clone), "the clone is still marked as shared")
    same("its values", clone, torch.tensor([1.0, 2.0, 3.0]))


@contract(needs=_NEEDS)
def lazy_clones_of_threads(run: Run) -> None:
    """Threads that write to lazy clones of one tensor at once each have memory of their own."""
    tensor = torch.zeros(1000).to(run.device)
    clones = [tensor._lazy_clone() for _ in range(8)]

    def write(number: int) -> None:
        clones[number].add_(number + 1)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(clones))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.under_test.synchronize()  # the threads' streams are not this one's
    same("the original", tensor, torch.zeros(1000))
    for number, clone in enumerate(clones):
        same(f"clone {number}", clone, torch.full((1000,), number + 1.0))


@contract(needs=_NEEDS)
def lazy_clones_have_all_their_bytes(run: Run) -> None:
    """A lazy clone that is written to has each byte of its original, however many there are."""
    for size in (*range(1, 18), 4095, 4097):
        values = (torch.arange(size) % 250 + 1).to(torch.uint8)
        tensor = values.to(run.device)
        clone = tensor._lazy_clone()
        clone.add_(1)
        same(f"a lazy clone of {size} bytes, raised by 1", clone, values + 1)
        same(f"its original of {size} bytes", tensor, values)
        storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
        copied = torch.empty(0, dtype=torch.uint8, device=run.device).set_(storage)
        same(f"a clone of a storage of {size} bytes", copied[:size], values)
