# SPDX-License-Identifier: BSD-3-Clause
"""Storages: set_, resize_, deferred frees, what fresh and freed memory reads as, alignment."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import DEVICE, compare

from torch_npusim.sim import alignment, clock, poison

BOUNDARY = alignment.BOUNDARY_BYTES


def address(tensor):
    return tensor.untyped_storage().data_ptr()


# --- set_ and resize_ -----------------------------------------------------------------------------


def test_set_without_arguments_lets_go_of_the_memory():
    x = torch.zeros(1000, device=DEVICE)
    before = torch.npusim.memory_allocated()
    x.set_()
    assert x.shape == (0,)
    assert torch.npusim.memory_allocated() == before - 4000


def test_set_refuses_the_storage_of_another_device():
    with pytest.raises(RuntimeError, match=r"device|storage"):
        torch.empty(0, device=DEVICE).set_(torch.zeros(3).untyped_storage())


def test_resize_takes_a_memory_format_and_offset_views():
    compare(
        lambda x: x.resize_(1, 2, 3, 2, memory_format=torch.channels_last).zero_(), torch.rand(12)
    )
    compare(lambda x: x[4:].resize_(2), torch.arange(6.0))
    compare(lambda x: x[4:].resize_(5)[:2], torch.arange(6.0))


def test_resize_as():
    compare(lambda x, y: x.resize_as_(y).zero_(), torch.zeros(2), torch.zeros(3, 5))


def test_storage_resize_frees_and_brings_back_as_fsdp_does():
    x = torch.arange(1000.0, device=DEVICE)
    before = torch.npusim.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.npusim.memory_allocated() == before - 4000
    assert x.shape == (1000,)
    x.untyped_storage().resize_(4000)
    assert torch.npusim.memory_allocated() == before
    assert x.fill_(2).sum().item() == 2000
    assert (x + x).sum().item() == 4000


# One call for each way to an operand's bytes.
USES_OF_X = {
    "a loop of its own": lambda x: x + 1,
    "beside a number, in place": lambda x: x.mul_(2),
    "a fill": lambda x: x.fill_(1),
    "random numbers": lambda x: x.normal_(),
    "a structured kernel": lambda x: x.sum(),
    "a kernel on host views": lambda x: x.cumsum(0),
    "the boxed fallback": lambda x: torch.histc(x),
    "a list of tensors": lambda x: torch._foreach_add_([x], 1),
    "a list of operands": lambda x: torch.cat([x, x]),
    "an index": lambda x: torch.ones(9, device=DEVICE)[x.long()],
    "a copy to the host": lambda x: x.cpu(),
    "a copy from the host": lambda x: x.copy_(torch.ones(4)),
    "a copy on the device": lambda x: torch.ones(4, device=DEVICE).copy_(x),
    "a copy to another device": lambda x: x.to(f"{DEVICE}:1"),
    "a value": lambda x: x.squeeze().item() if x.numel() == 1 else x.max(),
    "a softmax": lambda x: x.softmax(0),
    "a product": lambda x: x.view(2, 2) @ x.view(2, 2),
    "an output": lambda x: torch.exp(torch.ones(4, device=DEVICE), out=x),
    "a member of a sparse tensor": lambda x: (
        torch.sparse_coo_tensor(torch.arange(4, device=DEVICE)[None], x, (4,)) * 2
    ),
    "print": str,
}


@pytest.mark.parametrize("bytes_left", [0, 8])
@pytest.mark.parametrize("use", USES_OF_X)
def test_a_tensor_that_ends_beyond_its_storage_is_refused(use, bytes_left):
    x = torch.ones(4, device=DEVICE)
    x.untyped_storage().resize_(bytes_left)
    with pytest.raises(RuntimeError, match=rf"ends beyond its storage.* left {bytes_left} bytes"):
        USES_OF_X[use](x)
    x.untyped_storage().resize_(16)
    assert x.fill_(2).sum().item() == 8  # the device is as it was


def test_compiled_code_refuses_a_tensor_without_memory():
    compiled = torch.compile(lambda x: torch.sin(x) * 2)
    whole = torch.ones(4, device=DEVICE)
    view = whole[1:]
    compiled(view)
    whole.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"operand \d has no memory"):
        compiled(view)


def test_views_of_a_storage_that_shrank():
    x = torch.arange(8.0, device=DEVICE)
    first, last, none = x[:4], x[4:], x[:0]
    one = x[7]
    x.untyped_storage().resize_(16)
    assert first.sum().item() == 6
    assert none.sum().item() == 0
    for lost in (last.sum, one.item):
        with pytest.raises(RuntimeError, match="ends beyond its storage"):
            lost()
    empty = torch.empty(0, device=DEVICE).set_(torch.UntypedStorage(0, device=DEVICE), 0, (4,))
    assert empty.fill_(1).sum().item() == 4  # set_ makes room


def test_a_storage_swapped_by_data_assignment():
    x, y = torch.zeros(3, device=DEVICE), torch.ones(5, device=DEVICE)
    x.cumsum(0)  # x has a host view by now
    x.data = y
    assert x.cumsum(0).tolist() == [1, 2, 3, 4, 5]
    assert address(x) == address(y)


def test_host_memory_given_as_a_device_tensor_by_dlpack_keeps_its_owner():
    owner = torch.arange(1.0, 5.0, device=DEVICE)
    foreign = torch.from_dlpack(owner)
    assert address(foreign) == address(owner)
    gc.collect()  # what other tests have left
    before = torch.npusim.memory_allocated()
    del owner
    gc.collect()
    assert torch.npusim.memory_allocated() == before
    assert foreign.cumsum(0).tolist() == [1, 3, 6, 10]  # a view of storage that is not ours
    assert (foreign * 2).sum().item() == 20
    foreign.add_(1).erfinv_()
    assert foreign.shape == (4,)
    del foreign
    gc.collect()
    assert torch.npusim.memory_allocated() == before - 32


# --- Freed memory that another stream still uses (rule L3) ----------------------------------------


def test_a_recorded_block_waits_for_the_other_stream():
    """Rule L3: reused only when the recorded stream has passed the point of the free."""
    side = torch.npusim.Stream()
    x = torch.zeros(1 << 20, device=DEVICE)
    torch.npusim.synchronize()
    with torch.npusim.stream(side):
        for _ in range(4):
            x.add_(1)
    x.record_stream(side)
    where = address(x)
    done_at = clock.stream_time_ns(side)
    assert clock.host_time_ns() < done_at
    del x
    assert address(torch.empty(1 << 20, device=DEVICE)) != where
    clock.advance(done_at - clock.host_time_ns())
    assert address(torch.empty(1 << 20, device=DEVICE)) == where


def test_without_record_stream_the_block_is_reused_at_once():
    x = torch.zeros(1 << 20, device=DEVICE)
    where = address(x)
    del x
    assert address(torch.empty(1 << 20, device=DEVICE)) == where


def test_best_fit_takes_the_smallest_then_the_lowest():
    """Rule L1: the smallest free block that fits; among equals the lowest address."""
    pool = torch.npusim.MemPool()  # without the holes of other tests

    def bytes_of(count):
        return torch.empty(count, dtype=torch.uint8, device=DEVICE)

    with torch.npusim.use_mem_pool(pool):
        gaps = [416, 96, 192, 96]
        kept, holes = [], []
        for size in gaps:
            holes.append(bytes_of(size))
            kept.append(bytes_of(32))
        places = [address(hole) for hole in holes]
        holes.clear()
        assert address(bytes_of(65)) == places[1]  # 96 twice: the lower
        first = bytes_of(96)
        assert address(first) == places[1]
        second = bytes_of(90)
        assert address(second) == places[3]
        assert address(bytes_of(180)) == places[2]
        assert address(bytes_of(193)) == places[0]
        del kept


def test_requests_are_rounded_to_the_quantum():
    """Rule L1: 32 bytes."""
    gc.collect()
    before = torch.npusim.memory_allocated()
    kept = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in (1, 32, 33)]
    assert torch.npusim.memory_allocated() - before == 32 + 32 + 64
    del kept
    assert torch.npusim.memory_allocated() == before


def test_cached_segments_are_given_back_before_an_error(run_script):
    """Rule L2: 40 MiB cached in the wrong sizes do not stand in the way of 48 of 64."""
    done = run_script(
        """
        import torch, torch_npusim
        cached = [torch.empty(20 << 20, dtype=torch.uint8, device="npusim") for _ in range(2)]
        del cached
        assert torch.npusim.memory_reserved() == 40 << 20
        torch.empty(48 << 20, dtype=torch.uint8, device="npusim")
        stats = torch.npusim.memory_stats()
        assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0), stats
        assert torch.npusim.memory_reserved() == 48 << 20
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "64MiB"},
    )
    assert done.returncode == 0, done.stderr


# --- What memory reads as -------------------------------------------------------------------------


@pytest.fixture
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_deterministic_mode_fills_new_memory_as_on_cpu(dtype):
    def run(x):
        made = torch.empty(5, dtype=dtype, device=x.device)
        strided = torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=x.device)
        like = torch.empty_like(made)
        grown = torch.zeros(2, dtype=dtype, device=x.device).resize_(6)
        return made, strided, like, grown, made.new_empty(3)

    compare(run, torch.zeros(1))


def test_poisoned_memory_shows():
    with poison.use_mode("all"):
        fresh = torch.empty(64, dtype=torch.uint8, device=DEVICE)
        assert set(fresh.tolist()) == {0xD0}
        where = address(fresh)
        del fresh
    again = torch.empty(64, dtype=torch.uint8, device=DEVICE)  # not filled: the mode is off again
    assert address(again) == where
    assert set(again.tolist()) == {0xDF}


def test_fresh_poison_reaches_the_results_of_kernels():
    with poison.use_mode("fresh"):
        x = torch.ones(5, device=DEVICE)
        out = torch.empty(3, dtype=torch.uint8, device=DEVICE)
        assert x.cumsum(0).tolist() == [1, 2, 3, 4, 5]  # written over
        assert out.tolist() == [0xD0] * 3


# --- Alignment ------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 9), max_size=3)
ITEMS = st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.complex128])
MAKERS = {
    "empty": lambda shape, dtype: torch.empty(shape, dtype=dtype, device=DEVICE),
    "moved": lambda shape, dtype: torch.zeros(shape, dtype=dtype).to(DEVICE),
    "native": lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=DEVICE).add(1),
    "fallback": lambda shape, dtype: torch.ones(shape, dtype=dtype, device=DEVICE).flip([]),
    "clone of a view": lambda shape, dtype: torch.zeros([2, *shape], dtype=dtype, device=DEVICE)[
        1
    ].clone(),
    "resized": lambda shape, dtype: torch.empty(1, dtype=dtype, device=DEVICE).resize_(shape),
    "second device": lambda shape, dtype: torch.empty(shape, dtype=dtype, device="npusim:1"),
    "random": lambda shape, dtype: torch.rand(shape, device=DEVICE),
    "out": lambda shape, dtype: torch.cumsum(
        torch.ones([1, *shape], dtype=dtype, device=DEVICE),
        0,
        dtype=dtype,
        out=torch.empty(0, dtype=dtype, device=DEVICE),
    ),
}


@settings(deadline=None, max_examples=200)
@given(
    made=st.lists(st.tuples(st.sampled_from(sorted(MAKERS)), SHAPES, ITEMS), max_size=6),
    dropped=st.integers(0, 6),
)
def test_every_storage_is_aligned(made, dropped):
    """Rule A1, whoever made the storage and whatever was freed before."""
    alive = [MAKERS[maker](shape, dtype) for maker, shape, dtype in made]
    del alive[:dropped]
    alive += [MAKERS[maker](shape, dtype) for maker, shape, dtype in made]
    assert [address(tensor) % BOUNDARY for tensor in alive] == [0] * len(alive)


def test_views_need_not_be_aligned():
    """Rule A1."""
    x = torch.zeros(8, device=DEVICE)
    assert x[1:].data_ptr() % BOUNDARY == 4
    assert x[1:].add_(1).sum().item() == 7


REFUSED = {
    "pointwise": lambda v: v + 1,
    "second operand": lambda v: torch.zeros(7, device=v.device) + v,
    "in place": lambda v: v.mul_(2),
    "reduction": lambda v: v.sum(),
    "fallback": lambda v: v.cumsum(0),
    "fallback list": lambda v: torch.cat([v, v]),
    "out": lambda v: torch.cumsum(torch.zeros(7, device=v.device), 0, out=v),
    "matmul": lambda v: v.unsqueeze(0) @ v.unsqueeze(1),
    "random": lambda v: v.uniform_(),
    "copy": lambda v: v.clone(),
    "to the host": lambda v: v.cpu(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_strict_alignment_refuses_misaligned_operands(name):
    """Rule A2, error."""
    x = torch.zeros(8, device=DEVICE)
    with alignment.use_mode("error"):
        with pytest.raises(RuntimeError, match="4 bytes past a 32-byte boundary"):
            REFUSED[name](x[1:])
        REFUSED[name](x[:7])
        REFUSED["pointwise"](torch.zeros(16, device=DEVICE)[8:15])  # a view, and aligned
    REFUSED[name](x[1:])


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"random"}))
def test_strict_alignment_copies_and_counts(name):
    """Rule A2, copy: same values, and one count per misaligned operand."""

    def run(base):
        return REFUSED[name](base[1:]), base

    with alignment.use_mode("copy"):
        before = alignment.realigned_operands()
        if name == "to the host":
            assert torch.equal(
                REFUSED[name](torch.arange(8.0).to(DEVICE)[1:]), torch.arange(1.0, 8)
            )
        else:
            compare(run, torch.arange(8.0))
        if name not in ("copy", "to the host"):
            assert alignment.realigned_operands() > before
        before = alignment.realigned_operands()
        REFUSED[name](torch.zeros(7, device=DEVICE))
        assert alignment.realigned_operands() == before


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_refusal_recommends_is_not_refused(name):
    """Rule A2: padding before the view, or a copy made in the other mode."""
    x = torch.zeros(8, device=DEVICE)
    with alignment.use_mode("error"):
        with pytest.raises(RuntimeError) as refused:
            REFUSED[name](x[1:])
        told = str(refused.value)
        assert "a multiple of 8 elements: pad what lies before it" in told
        REFUSED[name](torch.zeros(15, device=DEVICE)[8:])
        assert 'alignment.use_mode("copy")' in told
        with alignment.use_mode("copy"):
            copied = x[1:].clone()
        REFUSED[name](copied)
        assert "clone" not in told  # refused likewise


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.complex128])
def test_a_refusal_counts_elements_of_its_dtype(dtype):
    x = torch.zeros(64, dtype=dtype, device=DEVICE)
    elements = BOUNDARY // dtype.itemsize
    with alignment.use_mode("error"):
        with pytest.raises(RuntimeError, match=rf"a multiple of {elements} elements"):
            x[1:] + 1
        x[elements:] + 1


def test_strict_alignment_names_shape_and_operator():
    x = torch.zeros(3, 8, device=DEVICE)
    with (
        alignment.use_mode("error"),
        pytest.raises(RuntimeError, match=r"aten::add.*\[3, 7\].*float.*storage offset 1"),
    ):
        x[:, 1:] + 1
