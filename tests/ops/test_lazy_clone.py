# SPDX-License-Identifier: BSD-3-Clause
"""Lazy copies: storages that share their bytes until one of them is written to.

The oracle is the CPU: the same steps must copy at the same moments there, and give the same values.
"""

import gc
import threading

import pytest
import torch

DEVICES = ["cpu", "npusim"]


def is_lazy(tensor: torch.Tensor) -> bool:
    return torch._C._is_cow_tensor(tensor)


def address(tensor: torch.Tensor) -> int:
    """Without writing: data_ptr() would make the tensor's bytes its own."""
    return torch._C._data_address(tensor)


def made(device: str) -> torch.Tensor:
    return torch.arange(6.0, device=device).reshape(2, 3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_lazy_copy_shares_until_one_is_written(device):
    for write_original in (True, False):
        original = made(device)
        copy = original._lazy_clone()
        assert copy.device == original.device
        assert is_lazy(original)
        assert is_lazy(copy)
        assert address(copy) == address(original)
        written, other = (original, copy) if write_original else (copy, original)
        written.add_(1)
        assert not is_lazy(written)
        assert is_lazy(other)
        assert address(written) != address(other)
        assert torch.equal(other.cpu(), made("cpu"))
        assert torch.equal(written.cpu(), made("cpu") + 1)
        kept = address(other)
        other.mul_(2)  # the last one takes the bytes as they are
        assert address(other) == kept
        assert not is_lazy(other)
        assert torch.equal(other.cpu(), made("cpu") * 2)


WRITES = {
    "route i": lambda x: x.add_(x),
    "typed kernel": lambda x: x.masked_fill_(x > 2, 0),
    "boxed kernel": lambda x: x.cumsum_(0),
    "number": lambda x: x.mul_(2),
    "fill": lambda x: x.fill_(3),
    "zero": lambda x: x.zero_(),
    "copy": lambda x: x.copy_(torch.ones(2, 3)),
    "copy on the device": lambda x: x.copy_(torch.ones(2, 3, device=x.device)),
    "strided copy": lambda x: x.t().copy_(torch.ones(3, 2, device=x.device)),
    "out": lambda x: torch.exp(x.clone(), out=x),
    "out of itself": lambda x: torch.cumsum(x, 0, out=x),
    "out of its parts": lambda x: torch.sub(x[0].clone(), x[1], out=x[0]),
    "two outs": lambda x: torch.sort(x.clone(), out=(x, torch.empty(0, device=x.device).long())),
    "setitem": lambda x: x.__setitem__(0, 7),
    "index_put": lambda x: x.index_put_((torch.tensor([1], device=x.device),), x[0].clone()),
    "foreach": lambda x: torch._foreach_add_([x, x.clone()], 1),
    "foreach by one": lambda x: torch._foreach_pow_([x], 2),
    "optimizer": lambda x: torch._fused_sgd_(
        [x], [torch.ones_like(x)], [],
        weight_decay=0, momentum=0, lr=0.1, dampening=0, nesterov=False, maximize=False,
        is_first_step=True,
    ),
    "view": lambda x: x[1:].neg_(),
    "bits": lambda x: x.view(torch.int32).bitwise_or_(1),
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage().data_ptr(),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WRITES)
def test_every_kind_of_write_copies_first(name, device):
    original = made(device)
    copy = original._lazy_clone()
    WRITES[name](copy)
    assert not is_lazy(copy)
    assert torch.equal(original.cpu(), made("cpu"))
    expected = made("cpu")
    WRITES[name](expected)
    assert torch.equal(copy.cpu(), expected)


READS = {
    "route i": lambda x: x + x,
    "structured": lambda x: x.sum(0),
    "typed kernel": lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64, device=x.device)),
    "boxed kernel": lambda x: x.cumsum(0),
    "written beside it": lambda x: torch.ones_like(x).add_(x),
    "out beside it": lambda x: torch.cumsum(x, 0, out=torch.empty_like(x)),
    "product": lambda x: x @ x.t(),
    "copy": lambda x: torch.empty_like(x).copy_(x),
    "to the host": lambda x: x.cpu(),
    "clone": lambda x: x.clone(),
    "item": lambda x: x[0, 1].item(),
    "print": repr,
    "foreach": lambda x: torch._foreach_exp([x]),
    "convolution": lambda x: torch.conv1d(x[None], x[None, :, :1]),
    "view": lambda x: x.t()[1:],
    "equal": lambda x: torch.equal(x, x),
    "sparse": lambda x: x.to_sparse(),
    "const_data_ptr": lambda x: torch._C._data_address(x),
    "record_stream": lambda x: x.record_stream(torch.Stream(x.device)) if x.is_npusim else None,
}


@pytest.mark.parametrize("name", READS)
def test_reading_copies_nothing(name):
    """Nowhere; on the CPU a convolution does copy."""
    original = made("npusim")
    copy = original._lazy_clone()
    READS[name](copy)
    READS[name](original)
    assert is_lazy(copy)
    assert is_lazy(original)
    assert address(copy) == address(original)


@pytest.mark.parametrize("device", DEVICES)
def test_views_follow_their_storage(device):
    original = made(device)
    before = original[1]
    copy = original._lazy_clone()
    after, of_copy = original.t(), copy[0]
    assert is_lazy(before)
    before.add_(10)  # writes to the original
    assert torch.equal(original.cpu(), made("cpu") + torch.tensor([[0.0], [10.0]]))
    assert torch.equal(after.cpu(), original.cpu().t())
    assert address(after) == address(original)
    assert torch.equal(copy.cpu(), made("cpu"))
    of_copy.zero_()
    assert copy[0].tolist() == [0, 0, 0]
    assert original[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("device", DEVICES)
def test_chains(device):
    first = made(device)
    second = first._lazy_clone()
    third = second._lazy_clone()
    fourth = third._lazy_clone()[:1]
    for number, tensor in enumerate((third, first, fourth, second)):
        tensor.fill_(number)
        assert not is_lazy(tensor)
    values = [tensor.unique().tolist() for tensor in (third, first, fourth, second)]
    assert values == [[0], [1], [2], [3]]


@pytest.mark.parametrize("size", [(4, 5), (1, 2), (0,)])
def test_resize(size):
    """On the CPU torch 2.13 forgets that the memory is no longer shared, and asserts."""
    device = "npusim"
    original = made(device)
    copy = original._lazy_clone()
    copy.resize_(size)
    copy.fill_(5)
    assert copy.shape == size
    assert torch.equal(original.cpu(), made("cpu"))
    out = original._lazy_clone()
    torch.cumsum(torch.ones(9, device=device), 0, out=out.resize_(0))
    assert out.shape == (9,)
    assert torch.equal(original.cpu(), made("cpu"))


def test_without_elements():
    original = torch.empty(0, 3, device="npusim")
    copy = original._lazy_clone()
    assert copy.shape == (0, 3)
    copy.resize_(1, 3).fill_(1)
    original.add_(1)
    assert copy.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("device", DEVICES)
def test_threads_write_their_own(device):
    original = torch.zeros(1000, device=device)
    copies = [original._lazy_clone() for _ in range(16)]
    start = threading.Barrier(len(copies))

    def write(number: int) -> None:
        start.wait(timeout=60)
        copies[number].add_(number)
        copies[number]._lazy_clone().mul_(-1)
        copies[number].mul_(2)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(copies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert [copy.unique().tolist() for copy in copies] == [[2.0 * n] for n in range(len(copies))]
    assert original.unique().tolist() == [0]


def test_members_of_sparse_and_nested_tensors():
    values = torch.tensor([1.0, 2.0], device="npusim")
    lazy = values._lazy_clone()
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]], device="npusim"), lazy, (2,))
    sparse.mul_(3)
    assert values.tolist() == [1, 2]
    assert sparse.to_dense().tolist() == [3, 6]


def test_gradients():
    def run(device):
        weight = made(device).requires_grad_()
        copy = weight._lazy_clone()
        (copy * copy).sum().backward()
        return weight.grad.cpu()

    assert torch.equal(run("npusim"), run("cpu"))


def test_memory_of_the_device():
    """A copy costs memory when it is made its own, on the device of the tensor, and is freed."""
    gc.collect()
    before = [torch.npusim.memory_allocated(device) for device in (0, 1)]
    original = torch.ones(1024, device="npusim:1")
    copy = original._lazy_clone()
    assert torch.npusim.memory_allocated(1) == before[1] + 4096
    copy.add_(1)
    assert copy.device == torch.device("npusim:1")
    assert torch.npusim.memory_allocated(1) == before[1] + 8192
    assert torch.npusim.memory_allocated(0) == before[0]
    third = copy._lazy_clone()
    del copy
    third.add_(1)
    assert third[0].item() == 3
    assert torch.npusim.memory_allocated(1) == before[1] + 8192
    del original, third
    assert torch.npusim.memory_allocated(1) == before[1]


def test_memory_of_others_is_not_shared():
    import numpy as np

    foreign = torch.from_numpy(np.ones(3, dtype=np.float32))
    with pytest.raises(RuntimeError):
        foreign._lazy_clone()
    ours = torch.ones(3, device="npusim")
    imported = torch.from_dlpack(ours)
    with pytest.raises(RuntimeError, match="use clone"):
        imported._lazy_clone()
