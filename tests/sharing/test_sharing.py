# SPDX-License-Identifier: BSD-3-Clause
"""Device tensors in several processes: what arrives, who keeps it, and what is refused."""

import gc
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from sharing import partners
from sharing.partners import PartnerError, partner
from torch import nn

from torch_npusim import _C


@pytest.fixture(scope="module")
def other():
    with partner() as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_is_left(other):
    """(rules M9, M10)"""
    gc.collect()
    torch.npusim.ipc_collect()
    before = torch.npusim.memory_allocated(), torch.npusim.memory_allocated(1)
    yield
    other.call(partners.drop)
    gc.collect()
    torch.npusim.ipc_collect()
    assert (torch.npusim.memory_allocated(), torch.npusim.memory_allocated(1)) == before


def arange(*shape, device="npusim"):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32, device=device).view(shape)


# --- what arrives

SENT = {
    "whole": lambda: arange(4, 5),
    "other device": lambda: arange(3, device="npusim:1"),
    "number": lambda: torch.tensor(3.5, device="npusim"),
    "view": lambda: arange(4, 5)[1:3, 2:],
    "transposed": lambda: arange(4, 5).t(),
    "expanded": lambda: arange(3).expand(2, 3),
    "requires a gradient": lambda: arange(3).requires_grad_(),
    "parameter": lambda: nn.Parameter(arange(3)),
    "frozen parameter": lambda: nn.Parameter(arange(3), requires_grad=False),
    "nothing": lambda: torch.empty(0, 3, device="npusim"),
    "larger than a huge page": lambda: arange(3, 1 << 20),
}


@pytest.mark.parametrize("name", SENT)
def test_a_tensor_arrives_as_it_is(other, name):
    sent = SENT[name]()
    found, expected = other.call(partners.describe, sent), partners.describe(sent)
    assert torch.equal(found.pop("values"), expected.pop("values"))
    assert found == expected


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int64", "float16", "bfloat16", "complex64", "float8_e4m3fn"],
)
def test_every_dtype_arrives(other, dtype):
    dtype = getattr(torch, dtype)
    sent = torch.tensor([0.0, 1.0, 1.0]).to(dtype).to("npusim")
    found = other.call(partners.describe, sent)
    assert found["dtype"] == dtype
    assert found["values"].tolist() == sent.tolist()


def test_sparse_and_nested_tensors_arrive(other):
    dense = torch.eye(3, device="npusim")
    for layout in (dense.to_sparse(), dense.to_sparse_csr()):
        assert torch.equal(other.call(to_dense, layout), dense.cpu())
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("npusim")
    assert other.call(unbound, nested) == [[1.0] * 2, [1.0] * 3]


def to_dense(tensor):
    assert tensor.device.type == "npusim"
    return tensor.to_dense().cpu()


def unbound(nested):
    return [part.tolist() for part in nested.unbind()]


def test_modules_and_storages_arrive(other):
    model = nn.Linear(3, 2).npusim()
    rows = torch.ones(1, 3, device="npusim")
    assert torch.equal(other.call(output_of, model, rows), model(rows).detach().cpu())
    storage = arange(3).untyped_storage()
    assert other.call(bytes_of, storage) == list(storage)


def output_of(model, rows):
    return model(rows).detach().cpu()


def bytes_of(storage):
    return list(storage)


def test_a_lazy_copy_is_a_copy(other):
    x = arange(3)
    y = x._lazy_clone()
    other.call(partners.keep, "y", y)
    other.call(partners.fill, "y", 7.0)
    assert (x.tolist(), y.tolist()) == ([0, 1, 2], [7, 7, 7])


# --- one memory


def test_what_is_sent_twice_is_one_storage(other):
    x = arange(6)
    for name, view in (("a", x), ("b", x[2:]), ("c", x)):
        other.call(partners.keep, name, view)
    assert other.call(partners.same_storage, "a", "b", "c")
    both = x, x[1:]
    other.call(partners.keep, "pair", both)
    assert other.call(pair_is_one, "pair")


def pair_is_one(name):
    first, second = partners.kept.pop(name)
    return first.untyped_storage()._cdata == second.untyped_storage()._cdata


def test_what_comes_back_to_its_sender_is_its_own_storage():
    x = arange(3)
    back = pickle.loads(ForkingPickler.dumps(x[1:]))
    assert back.untyped_storage()._cdata == x.untyped_storage()._cdata
    del x, back
    alone = pickle.loads(ForkingPickler.dumps(arange(3)))  # nobody has the sender's any more
    assert alone.tolist() == [0, 1, 2]


def test_the_importer_counts_nothing_of_it(other):
    """(rule M12)"""
    before = other.call(stats)
    other.call(partners.keep, "x", arange(1 << 20))
    assert other.call(stats) == before


def stats():
    torch.npusim.init()  # before it, memory_stats() is empty, as on CUDA
    return torch.npusim.memory_stats(), torch.npusim.mem_get_info()


# --- who keeps it


def test_a_shortage_of_memory_finds_what_was_let_go(other):
    torch.npusim.empty_cache()
    half = torch.npusim.mem_get_info()[1] // 4 * 3
    x = torch.empty(half, dtype=torch.uint8, device="npusim")
    other.call(partners.keep, "x", x[:1])
    del x
    other.call(partners.drop, "x")
    x = torch.empty(half, dtype=torch.uint8, device="npusim")
    assert x.numel() == half


# --- what is refused


def test_received_memory_is_not_resized(other):
    other.call(partners.keep, "x", arange(3))
    with pytest.raises(PartnerError, match="not resizable"):
        other.call(resize, "x")


def resize(name):
    partners.kept[name].resize_(1000)


def test_non_leaves_are_refused():
    x = arange(3).requires_grad_() * 2
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        ForkingPickler.dumps(x)
    assert pickle.loads(ForkingPickler.dumps(x.detach())).tolist() == [0, 2, 4]


def test_memory_of_others_is_refused():
    x = arange(3)
    with pytest.raises(RuntimeError, match=r"not the allocator's own.*cloning"):
        ForkingPickler.dumps(torch.from_dlpack(x))


def test_a_capture_cannot_send():
    x = arange(3)
    graph = torch.npusim.NPUSIMGraph()
    with pytest.raises(RuntimeError, match="sending a tensor to another process"):
        with torch.npusim.graph(graph):
            ForkingPickler.dumps(x)


def test_a_device_that_the_importer_has_not():
    x = arange(3)
    message = _C.send_storage(x.untyped_storage())
    process, file, file_device, file_id, device, *rest = message
    assert device == 0
    with pytest.raises(RuntimeError, match=r"device 99 of its process, but this one has \d"):
        _C.receive_storage((process, file, file_device, file_id, 99, *rest), 12)
    _C.acknowledge_storage(message)


def test_a_file_that_is_not_the_senders():
    """Numbers of processes and descriptors are used again."""
    x = arange(3)
    process, file, file_device, file_id, *rest = message = _C.send_storage(x.untyped_storage())
    with pytest.raises(RuntimeError, match="has ended before it was received"):
        _C.receive_storage((process, file, file_device, file_id + 1, *rest), 12)
    with pytest.raises(RuntimeError, match="has ended before it was received"):
        _C.receive_storage((process, 1_000_000, file_device, file_id + 1, *rest), 12)
    _C.acknowledge_storage(message)


def test_events_are_refused_by_name():
    event = torch.npusim.Event()
    event.record()
    with pytest.raises(NotImplementedError, match="virtual clock of its own"):
        ForkingPickler.dumps(event)
    with pytest.raises(NotImplementedError, match=r"Event\(interprocess=True\): each process"):
        torch.npusim.Event(interprocess=True)
    with pytest.raises(NotImplementedError, match="from_ipc_handle"):
        torch.npusim.Event.from_ipc_handle(0, b"")
    with pytest.raises(NotImplementedError, match="ipc"):
        event.ipc_handle()


# --- order


@pytest.fixture
def _races_are_errors():
    before = torch.npusim.get_race_detection()
    torch.npusim.set_race_detection("error")
    yield
    torch.npusim.set_race_detection(before)


@pytest.mark.usefixtures("_races_are_errors")
def test_sending_reads_on_the_current_stream(other):
    """(rule M9)"""
    side = torch.npusim.Stream()
    x = torch.zeros(1000, device="npusim")
    side.wait_stream(torch.npusim.current_stream())
    with torch.npusim.stream(side):
        x.add_(1)
    with pytest.raises(RuntimeError, match="race"):
        ForkingPickler.dumps(x)
    torch.npusim.current_stream().wait_stream(side)
    assert other.call(partners.describe, x)["values"].sum() == 1000
    del x
    gc.collect()
    torch.npusim.ipc_collect()


def test_sending_waits_for_what_the_stream_was_given(other):
    """(rule M9)"""
    x = arange(1 << 20).mul_(2)
    assert not torch.npusim.current_stream().query()
    other.call(partners.keep, "x", x)
    assert torch.npusim.current_stream().query()


# --- what torch.cuda's users call


def test_share_memory_does_nothing():
    x = nn.Parameter(arange(3))
    assert x.share_memory_() is x
    assert x.is_shared()
    assert x.untyped_storage().is_shared()
    model = nn.Linear(2, 2).npusim()
    assert model.share_memory() is model
    assert not torch.ones(3).is_shared()
    assert torch.ones(3).share_memory_().is_shared()


def test_host_tensors_are_sent_as_ever(other):
    assert other.call(partners.describe, torch.arange(3))["values"].tolist() == [0, 1, 2]
