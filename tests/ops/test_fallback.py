# SPDX-License-Identifier: BSD-3-Clause
"""The boxed fallback: write-back, aliasing, adopted results, lists, errors, counters, policy."""

import gc
import re
import threading

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, compare, refused

from torch_npusim.sim import fallback


@pytest.fixture(autouse=True)
def _fresh_counters():
    fallback.reset()
    yield
    assert fallback.policy() == "silent"


def device_zeros(*shape, **kwargs):
    return torch.zeros(*shape, device=DEVICE, **kwargs)


# --- Results are adopted, never copied ------------------------------------------------------------

BROAD = {
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(dim=1),
    "topk": lambda x: x.topk(2, dim=1),
    "unique": lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
    "nonzero": lambda x: (x > 0).nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "index": lambda x: x[torch.tensor([2, 0])],
    "mask": lambda x: x[x[:, 0] > 0],
    "index_add": lambda x: x.index_add(0, torch.tensor([1, 1], device=x.device), x[:2]),
    "scatter": lambda x: x.scatter(1, x[:, :1].abs().long().clamp(max=1), 3.0),
    "gather": lambda x: x.gather(1, x.argsort(dim=1)),
    "where": lambda x: torch.where(x > 0, x, -x),
    "cat": lambda x: torch.cat([x, x[:1]]),
    "stack": lambda x: torch.stack([x, x], 1),
    "pad": lambda x: F.pad(x, (1, 2)),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "aminmax": lambda x: torch.aminmax(x),
    "median": lambda x: x.median(dim=1),
    "mode": lambda x: x.round().mode(dim=1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "gelu": F.gelu,
    "cdist": lambda x: torch.cdist(x, x),
    "svd": lambda x: torch.linalg.svdvals(x),
    "inverse": lambda x: torch.linalg.inv(x[:4, :4] + 9 * torch.eye(4, device=x.device)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + 9 * torch.eye(6, device=x.device)),
    "fft": lambda x: torch.fft.rfft(x),
    "max_pool": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "bincount": lambda x: x.abs().long().flatten().bincount(),
    "histc": lambda x: x.histc(4, -2, 2),
    "searchsorted": lambda x: torch.searchsorted(x.sort(dim=1)[0], x),
    "tril": torch.tril,
    "diag": lambda x: torch.diag(x[0]),
    "kron": lambda x: torch.kron(x, x),
    "embedding": lambda x: F.embedding(x.abs().long().clamp(max=5), x),
    "split_cat": lambda x: torch.cat(x.split(2), 1),
    "arange": lambda x: torch.arange(7, device=x.device),
    "eye": lambda x: torch.eye(3, device=x.device),
    "linspace": lambda x: torch.linspace(0, 1, 5, device=x.device),
    "complex": lambda x: torch.complex(x, x),
    "foreach": lambda x: torch._foreach_mul([x, x[0]], 2.0),
}


@pytest.mark.parametrize("name", BROAD)
def test_results_are_born_on_the_device(name):
    compare(BROAD[name], torch.randn(6, 5))
    assert fallback.copied_results() == {}


# One operator of each route: structured class, typed kernel, boxed kernel.
BY_ROUTE = [torch.cumsum, torch.index_select, torch.logcumsumexp]


@pytest.mark.parametrize("elements", [0, 1, 7, 40_000])
@pytest.mark.parametrize("op", BY_ROUTE, ids=lambda op: op.__name__)
def test_a_result_is_one_block_of_its_own_size(op, elements):
    x = device_zeros(elements)
    arguments = (torch.arange(elements, device=DEVICE),) if op is torch.index_select else ()
    op(x, 0, *arguments)  # caches filled
    before = torch.npusim.memory_allocated()
    y = op(x, 0, *arguments)
    assert torch.npusim.memory_allocated() - before == (elements * 4 + 31) // 32 * 32
    assert y.untyped_storage().nbytes() == elements * 4
    assert y.untyped_storage().resizable()


def test_results_may_be_resized_afterwards():
    y = torch.ones(4, device=DEVICE).cumsum(0)
    y.resize_(6)[4:] = 9
    assert y.tolist() == [1, 2, 3, 4, 9, 9]


def test_results_that_share_a_storage_keep_sharing_it():
    with torch.library._scoped_library("npusim_test", "DEF") as library:
        library.define("halves(Tensor x) -> (Tensor, Tensor)")

        def halves(x):
            whole = x + 1
            return whole[:2], whole[2:]

        library.impl("halves", halves, "CPU")
        first, second = torch.ops.npusim_test.halves(device_zeros(4))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    assert second.storage_offset() == 2
    first.as_strided((4,), (1,)).copy_(torch.arange(4.0))
    assert second.tolist() == [2, 3]


def test_a_result_on_the_storage_of_an_argument_is_a_view_of_it():
    with torch.library._scoped_library("npusim_test", "DEF") as library:
        library.define("tail(Tensor x) -> Tensor")
        library.impl("tail", lambda x: x[1:], "CPU")
        x = torch.arange(4.0, device=DEVICE)
        tail = torch.ops.npusim_test.tail(x)
    assert tail.untyped_storage()._cdata == x.untyped_storage()._cdata
    tail.fill_(7)
    assert x.tolist() == [0, 7, 7, 7]


def test_a_result_that_is_an_argument_is_that_argument():
    x = device_zeros(4)
    assert x.erfinv_() is x
    out = torch.empty(0, device=DEVICE)
    assert torch.erfinv(x, out=out) is out
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, device=DEVICE, dtype=torch.long)
    returned = torch.sort(x, out=(values, indices))
    assert returned[0] is values
    assert returned[1] is indices


def test_a_result_from_elsewhere_is_copied_and_counted():
    with torch.library._scoped_library("npusim_test", "DEF") as library:
        kept = torch.tensor([1.0, 2.0])
        library.define("constant(Tensor x) -> Tensor")
        library.impl("constant", lambda x: kept, "CPU")
        got = torch.ops.npusim_test.constant(device_zeros(2))
        assert got.is_npusim
        assert got.tolist() == [1, 2]
        got.zero_()
        assert kept.tolist() == [1, 2]
    assert fallback.copied_results() == {"npusim_test::constant": 1}


# --- Writing to arguments -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "out_shape", [(0,), (4, 3), (2, 2), (1,), (50,)], ids=lambda shape: "x".join(map(str, shape))
)
def test_out_tensors_take_the_shape_of_the_result(out_shape):
    x = torch.randn(4, 3)

    def run(x):
        out = torch.empty(out_shape, device=x.device)
        torch.cumsum(x, 0, out=out)
        return out, out.untyped_storage().nbytes()

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "An output with one or more elements was resized"
        compare(run, x)


def test_out_that_grows_leaves_no_block_behind():
    x = device_zeros(1000)
    out = torch.empty(0, device=DEVICE)
    before = torch.npusim.memory_allocated()
    torch.cumsum(x, 0, out=out)
    assert torch.npusim.memory_allocated() - before == 4000
    del out
    assert torch.npusim.memory_allocated() == before


def test_out_that_grows_keeps_its_aliases_together():
    out = torch.empty(0, device=DEVICE)
    alias = out.detach()
    torch.cumsum(torch.ones(3, device=DEVICE), 0, out=out)
    assert alias.untyped_storage()._cdata == out.untyped_storage()._cdata
    assert alias.resize_(3).tolist() == [1, 2, 3]
    assert alias.data_ptr() == out.data_ptr()


def test_out_views_are_written_through():
    def run(x):
        base = torch.zeros(6, 4, device=x.device)
        torch.cumsum(x, 0, out=base[1:5, ::2])
        torch.cumsum(x, 1, out=base.t()[1:3, :4].t())
        return base

    compare(run, torch.randn(4, 2))


def test_out_that_cannot_be_resized_raises_and_stays():
    base = device_zeros(2)
    foreign = torch.from_dlpack(base)
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.cumsum(device_zeros(5), 0, out=foreign)
    assert foreign.tolist() == [0, 0]
    foreign.add_(1)
    assert base.tolist() == [1, 1]


def test_out_of_another_dtype_is_refused_as_on_cpu():
    words = r"result type Float can't be cast .* type Long"
    x, out = torch.zeros(3), torch.zeros(3).long()
    refused(lambda x, out: torch.add(x, x, out=out), x, out, match=words)


@pytest.mark.parametrize("write", ["erfinv_", "cumsum_out", "index_put_", "add_", "zero_"])
def test_a_write_bumps_the_version_once(write):
    def run(device):
        x = torch.full((4,), 0.5, device=device)
        before = x._version
        if write == "cumsum_out":
            torch.cumsum(torch.ones(4, device=device), 0, out=x)
        elif write == "index_put_":
            x.index_put_((torch.tensor([0], device=device),), torch.ones(1, device=device))
        elif write == "add_":
            x.add_(1)
        else:
            getattr(x, write)()
        return x._version - before

    assert run(DEVICE) == run("cpu") == 1


def test_a_read_does_not_bump_the_version():
    x = device_zeros(4)
    torch.cumsum(x, 0)
    x.sort()
    assert x._version == 0


def test_the_same_tensor_read_and_written():
    compare(lambda x: torch.cumsum(x, 0, out=x), torch.randn(5))
    compare(lambda x: torch.erfinv(x, out=x), torch.rand(5))


# --- Kinds of arguments ---------------------------------------------------------------------------


def test_tensor_lists_that_are_written():
    def run(a, b):
        torch._foreach_add_([a, b], [b, a])
        torch._foreach_mul_([a, b], 2.0)
        return a, b

    compare(run, torch.randn(3), torch.randn(3))


def test_tensor_list_results():
    compare(lambda x: torch._foreach_exp([x, x[:2], x[:0]]), torch.randn(4))


def test_empty_tensor_lists():
    compare(lambda x: torch.histogramdd(x, [2, 2]), torch.rand(9, 2))
    assert torch._foreach_exp([device_zeros(0)])[0].shape == (0,)


def test_optional_tensor_lists_with_gaps():
    index = torch.tensor([2, 0])
    compare(lambda x, i: x[:, i], torch.randn(3, 4), index)
    compare(lambda x, i: x[:, None, i], torch.randn(3, 4), index)
    compare(lambda x, i: x[i, :, i], torch.randn(3, 4, 3), index)


def test_optional_tensors_may_be_absent():
    compare(lambda x, w: F.layer_norm(x, (4,), None, w), torch.randn(3, 4), torch.randn(4))
    compare(lambda x: F.batch_norm(x, None, None, training=True), torch.randn(3, 4))


def test_undefined_results_stay_undefined():
    def run(x, weight):
        mask = [True, False, False]
        mean, rstd = torch.zeros(3, 1, device=x.device), torch.ones(3, 1, device=x.device)
        return torch.ops.aten.native_layer_norm_backward(
            x, x, [4], mean, rstd, weight, weight, mask
        )

    assert compare(run, torch.randn(3, 4), torch.randn(4))[1:] == (None, None)


def test_zero_sized_operands():
    compare(lambda x: (x.cumsum(0), x.sort(), x.sum(), x.softmax(-1)), torch.randn(0))
    compare(lambda x: (x.cumsum(1), x.prod(0)), torch.randn(3, 0))


def test_zero_dimensional_operands():
    compare(lambda x: (x.cumsum(0), x.sort(), x.erfinv(), x.flip(0)), torch.tensor(0.25))


def test_conj_and_neg_bits_of_operands():
    x = torch.randn(5, dtype=torch.complex64)
    compare(lambda x: torch.cumsum(x.conj(), 0), x)
    compare(lambda x: torch.cumsum(x.conj().imag, 0), x)
    compare(lambda x: torch.cumsum(x, 0), x.conj())


def test_generators_of_the_device_are_turned_into_host_ones():
    draws = torch.poisson(torch.full((8,), 4.0, device=DEVICE))
    torch.manual_seed(0)
    assert torch.equal(draws, torch.poisson(torch.full((8,), 4.0, device=DEVICE)))


# --- Errors ---------------------------------------------------------------------------------------


def test_an_exception_leaves_memory_and_operands_as_they_were():
    x = device_zeros(3, 4)
    out = device_zeros(2)
    gc.collect()
    before = torch.npusim.memory_allocated()
    for _ in range(3):
        with pytest.raises((RuntimeError, IndexError)):
            torch.cumsum(x, 5, out=out)
        with pytest.raises(RuntimeError, match="singular"):
            torch.linalg.inv(device_zeros(3, 3))
        with pytest.raises(IndexError, match="out of range"):
            x.index_select(0, torch.tensor([7], device=DEVICE))
    gc.collect()
    assert torch.npusim.memory_allocated() == before
    assert out.tolist() == [0, 0]
    assert out.add_(1).cumsum(0).tolist() == [1, 2]


def test_an_exception_after_out_was_resized_leaves_it_usable():
    with torch.library._scoped_library("npusim_test", "DEF") as library:
        library.define("half_done(Tensor(a!) out) -> Tensor(a!)")

        def half_done(out):
            out.resize_(1000).fill_(5)
            raise ValueError("halfway")

        library.impl("half_done", half_done, "CPU")
        out = device_zeros(2)
        gc.collect()
        before = torch.npusim.memory_allocated()
        with pytest.raises(ValueError, match="halfway"):
            torch.ops.npusim_test.half_done(out)
    gc.collect()
    assert torch.npusim.memory_allocated() == before
    assert out.tolist() == [0, 0]
    assert torch.cumsum(torch.ones(2, device=DEVICE), 0, out=out).tolist() == [1, 2]


def test_kernels_that_call_device_operators_nest():
    inner = torch.ones(3, device=DEVICE)
    with torch.library._scoped_library("npusim_test", "DEF") as library:
        library.define("outer(Tensor x) -> Tensor")

        def outer(x):
            on_device = inner.cumsum(0)  # a fallback inside a fallback
            return x + on_device.cpu()

        library.impl("outer", outer, "CPU")
        got = torch.ops.npusim_test.outer(device_zeros(3))
    assert got.is_npusim
    assert got.tolist() == [1, 2, 3]
    assert torch.ones(2).cumsum(0).tolist() == [1, 2]  # the host's allocator is itself again


def test_the_pool_is_left_on_the_way_out():
    with pytest.raises(RuntimeError):
        torch.linalg.inv(device_zeros(3, 3))
    before = torch.npusim.memory_allocated()
    host = torch.empty(10_000).cumsum(0)
    assert torch.npusim.memory_allocated() == before
    del host


def test_an_operator_may_follow_another_that_was_removed():
    """A schema made where another one lay must not be taken for it."""
    for number in range(8):
        with torch.library._scoped_library("npusim_test", "DEF") as library:
            arguments = ", ".join(f"Tensor x{i}" for i in range(number + 1))
            library.define(f"add{number}({arguments}) -> Tensor")
            library.impl(f"add{number}", lambda *xs: sum(xs), "CPU")
            operator = getattr(torch.ops.npusim_test, f"add{number}")
            x = torch.ones(2, device=DEVICE)
            assert operator(*[x] * (number + 1)).tolist() == [number + 1] * 2
        assert fallback.counts()[f"npusim_test::add{number}"] == 1


def test_threads_run_fallbacks_side_by_side():
    results = {}

    def work(number):
        x = torch.full((1000,), float(number), device=DEVICE)
        for _ in range(20):
            results[number] = x.cumsum(0)[-1].item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: 1000.0 * number for number in range(4)}


# --- Counters and policy --------------------------------------------------------------------------


def test_calls_are_counted_by_operator():
    x = torch.empty(3, device=DEVICE)
    for _ in range(3):
        x.nonzero()
    torch.searchsorted(x, x)
    assert fallback.counts() == {"aten::nonzero": 3, "aten::searchsorted.Tensor": 1}
    fallback.reset()
    assert fallback.counts() == {}


def test_operators_with_kernels_of_their_own_are_not_counted():
    x = torch.empty(3, device=DEVICE)
    y = x.view(1, 3).t().clone()
    (x + x).exp().sum().item()
    y.copy_(x[:, None])
    x.resize_(5)
    assert fallback.counts() == {}


def test_policy_error_refuses_by_name():
    x = device_zeros(3)
    with (
        fallback.use_policy("error"),
        pytest.raises(RuntimeError, match=r"aten::_logcumsumexp.*NPUSIM_F"),
    ):
        x.logcumsumexp(0)
    assert x.logcumsumexp(0)[0].item() == 0


def test_policy_warn_warns_once_per_operator(run_script):
    done = run_script(
        """
        import warnings
        import torch, torch_npusim
        x = torch.zeros(3, device="npusim")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x.logcumsumexp(0), x.logcumsumexp(0), x.erfinv()
        for warning in caught:
            print(str(warning.message).splitlines()[0])
        """,
        environment={"NPUSIM_FALLBACK": "warn"},
    )
    assert done.returncode == 0, done.stderr
    named = re.findall(r"aten::(\w+)", done.stdout)
    assert sorted(named) == ["_logcumsumexp", "erfinv"]


# --- Operators for which a composite is not good enough -------------------------------------------


def registered_at(name, key):
    rows = torch._C._dispatch_dump_table(name).splitlines()
    return next((row for row in rows if row.startswith(f"{key}:")), "")


def test_composites_registered_explicitly_are_those_that_the_dispatcher_demands():
    """An operator with a CPU kernel and a composite would run the composite on npusim.

    Not in question is CompositeExplicitAutogradNonFunctional: the functional and in-place forms of
    structured operators, which make their result and call the out= form, that is the CPU's kernel.
    """
    demanded = set()
    for name in torch._C._dispatch_get_all_op_names():
        has = {
            key: torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
            for key in ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
        }
        if name.startswith("aten::") and has.pop("CPU") and any(has.values()):
            demanded.add(name)
    registered = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if re.search(
            r"csrc/routes/fallback\.cpp:\d+ \[kernel\]", registered_at(name, "PrivateUse1")
        )
    }
    elsewhere = {
        name
        for name in demanded - registered
        if re.search(r"csrc/aten/\w+\.cpp:\d+ \[kernel\]", registered_at(name, "PrivateUse1"))
    }
    assert demanded - elsewhere == registered - READ_ON_HOST


# Composites for every backend that read memory on the host (npusim-conformance fuzz finds them).
READ_ON_HOST = {
    "aten::_grid_sampler_2d_cpu_fallback",
    "aten::_grid_sampler_2d_cpu_fallback_backward",
    "aten::_nnpack_spatial_convolution",
    "aten::_saturate_weight_to_fp16",
    "aten::choose_qparams_optimized",
    "aten::range.out_",
}


def test_the_explicit_composites_give_the_bits_of_the_cpu():
    x = torch.randn(4, 6, 5)
    compare(lambda x: torch.stack([x, x], 1), x)
    compare(torch.addr, torch.randn(3, 4), torch.randn(3), torch.randn(4))
    compare(lambda x: ((x > 0).all((0, 2)), (x > 0).any((1, 2), keepdim=True)), x)
    compare(lambda x: torch.native_channel_shuffle(x[..., None], 3), x)
    for function in (F.mish, F.silu):
        compare(function, torch.randn(64, 33, requires_grad=True), backward=True)
    norm = torch.randn(4, 6, 5, requires_grad=True)
    compare(lambda x: F.group_norm(x, 3), norm, backward=True)
    compare(lambda x: F.layer_norm(x, (5,)), norm, backward=True)
