# SPDX-License-Identifier: BSD-3-Clause
"""Patches of eager code: each works, and is still needed by this torch."""

import inspect
import io
import pickle
from importlib import import_module
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
import torch
from torch import nn
from torch.nn.parallel import comm
from torch.utils.dlpack import DLDeviceType
from torch.utils.flop_counter import FlopCounterMode

from torch_npusim import cuda_alias, patches
from torch_npusim.patches import is_version


def test_dlpack_device_is_the_extension_device():
    assert torch.ones(1, device="npusim:1").__dlpack_device__() == (DLDeviceType.kDLExtDev, 1)
    assert torch.ones(1).__dlpack_device__() == (DLDeviceType.kDLCPU, 0)


def test_dlpack_device_respects_torch_function():
    class Wrapped(torch.Tensor):
        calls = ()

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.calls += (function,)
            return super().__torch_function__(function, types, args, kwargs or {})

    tensor = torch.ones(1, device="npusim").as_subclass(Wrapped)
    assert tensor.__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
    assert torch.Tensor.__dlpack_device__ in Wrapped.calls


def test_dlpack_patch_is_still_needed():
    """When this fails, the patch can go: torch answers for a renamed device."""
    with pytest.raises(ValueError, match="Unknown device type npusim"):
        patches.original("torch:Tensor.__dlpack_device__")(torch.ones(1, device="npusim"))


def test_reducer_is_still_needed():
    """When this fails, torch can send device storages: look whether the reducer can go."""
    with pytest.raises(RuntimeError, match="only available on CPU"):
        patches.original("torch.multiprocessing.reductions:reduce_storage")(
            torch.ones(3, device="npusim").untyped_storage()
        )


def test_reducer_of_tensors_is_still_needed():
    """When this fails, torch asks no storage that is called "cuda" for a handle of CUDA."""
    with cuda_alias.scope(), pytest.raises((RuntimeError, AttributeError)):
        patches.original("torch.multiprocessing.reductions:reduce_tensor")(
            torch.ones(3, device="cuda")
        )


def test_reducers_survive_their_registration():
    """torch registers its own when it is asked to."""
    x = torch.ones(3, device="npusim")
    torch.multiprocessing.reductions.init_reductions()
    assert pickle.loads(ForkingPickler.dumps(x)).data_ptr() == x.data_ptr()


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
def test_default_tensor_type_patch_is_still_needed():
    """When this fails, the patch can go: torch knows the types of a renamed device."""
    with pytest.raises(TypeError, match="invalid type object"):
        patches.original("torch:set_default_tensor_type")(torch.npusim.FloatTensor)


# --- sparse tensors in files

COMPRESSED = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


def sparse(layout):
    block = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    dense = torch.tensor([[1.0, 0, 2, 0], [0, 0, 3, 0]], device="npusim")
    return dense.to_sparse(layout=layout, blocksize=block)


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support:UserWarning")
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_coo, *COMPRESSED])
def test_a_sparse_tensor_is_read_from_a_file_as_on_the_cpu(layout, gradient):
    ours = sparse(layout)
    for tensor in (ours, ours.cpu()):
        file = io.BytesIO()
        torch.save(tensor.detach().requires_grad_(gradient), file)
        for place in (None, "cpu", "npusim:1"):
            file.seek(0)
            read = torch.load(file, map_location=place, weights_only=True)
            assert read.layout == layout
            assert read.device == torch.device(place or tensor.device)
            assert read.requires_grad == (gradient and layout != torch.sparse_coo)
            assert torch.equal(read.detach().to_dense().cpu(), tensor.to_dense().cpu())


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support:UserWarning")
def test_sparse_pickles_of_renamed_backends_still_lose_their_layout():
    """When this fails, the patch can go: core pickles the parts of sparse tensors."""
    reduce = patches.original("torch:Tensor._reduce_ex_internal")
    rebuild, arguments = reduce(sparse(torch.sparse_csr).requires_grad_(), 2)
    with pytest.raises(RuntimeError, match="flags of leaf variables"):
        rebuild(*arguments)


# --- several devices


def both(value, shape=(2,)):
    return [torch.full(shape, value, device=f"npusim:{index}") for index in range(2)]


def placed(tensors):
    return [(tensor.device.index, tensor.tolist()) for tensor in tensors]


def test_broadcast():
    tensor = torch.tensor([1, 2], device="npusim:1")
    expected = [(0, [1, 2]), (1, [1, 2])]
    assert placed(comm.broadcast(tensor, ["npusim:0", 1])) == expected
    assert placed(comm.broadcast(tensor.cpu(), out=[t.long() for t in both(0)])) == expected
    many = comm.broadcast_coalesced([tensor, tensor + 2], [0, 1])
    assert placed(many[1]) == [(1, [1, 2]), (1, [3, 4])]


def test_scatter():
    rows = torch.arange(5)
    assert placed(comm.scatter(rows, [0, 1])) == [(0, [0, 1, 2]), (1, [3, 4])]
    assert placed(comm.scatter(rows, [1, 0], [1, 4])) == [(1, [0]), (0, [1, 2, 3, 4])]
    out = [torch.empty(3, device="npusim:1"), torch.empty(2, device="npusim:0")]
    assert placed(comm.scatter(rows.float(), out=out)) == [(1, [0, 1, 2]), (0, [3, 4])]


def test_copies_to_and_from_nowhere_are_refused():
    with pytest.raises(RuntimeError, match=r"^Expected at least one device to scatter to"):
        comm.scatter(torch.arange(5), [])
    with pytest.raises(RuntimeError, match=r"^Expected at least one output tensor to scatter to"):
        comm.scatter(torch.arange(5), out=[])
    with pytest.raises(RuntimeError, match=r"^Expected at least one tensor to gather from"):
        comm.gather([])
    with pytest.raises(RuntimeError, match=r"^Expected at least one tensor to gather from"):
        comm.gather([], out=torch.empty(0, device="npusim"))


def test_gather_and_add():
    assert placed([comm.gather(both(3.0), destination="npusim:1")]) == [(1, [3.0] * 4)]
    assert comm.gather(both(3.0), destination="cpu").device.type == "cpu"
    out = torch.empty(4, device="npusim:1")
    assert comm.gather(both(3.0), out=out) is out
    assert placed([comm.reduce_add(both(3.0), destination=1)]) == [(1, [6.0, 6.0])]


@pytest.mark.parametrize("devices", [None, [0], ["npusim:0"], [torch.device("npusim:0")]])
def test_parallel_apply(devices):
    model = nn.Linear(2, 3).npusim()
    rows = torch.ones(4, 2, device="npusim:0")
    results = nn.parallel.parallel_apply([model], [rows], devices=devices)
    torch.testing.assert_close(results[0], model(rows))


def test_data_parallel_is_the_same_as_one_device():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).npusim()
    rows = torch.randn(5, 6, device="npusim")
    model(rows).square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    parallel = nn.DataParallel(model)
    assert parallel.device_ids == [0, 1]
    result = parallel(rows)
    result.square().sum().backward()
    torch.testing.assert_close(result, model(rows))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_device_copies_are_still_needed(run_python):
    """When this fails, torch has them for every build: look whether the patch can go."""
    script = """
        import torch
        print(any(hasattr(torch._C, n) for n in ('_scatter', '_broadcast')))
        print(torch.backends.cuda.is_built())
    """
    has_them, is_for_cuda = run_python(
        script, environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ).split()
    assert has_them == is_for_cuda


def test_device_index_patch_is_still_needed():
    """When this fails, parallel_apply() asks for an index of any accelerator."""
    original = patches.original("torch.nn.parallel.parallel_apply:_get_device_index")
    assert import_module("torch.nn.parallel.parallel_apply")._get_device_index is not original
    with pytest.raises(ValueError, match="Expected a cuda device"):
        original(torch.device("npusim:0"))


def cross_entropy_in_chunks(device, dtype, reduction):
    """Loss and gradients of linear_cross_entropy with automatic options."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 32, generator=generator).to(device, dtype) for n in (64, 100))
    target = torch.randint(0, 100, (64,), generator=generator).to(device)
    loss = torch.nn.functional.linear_cross_entropy(
        x.requires_grad_(),
        weight.requires_grad_(),
        target,
        reduction=reduction,
        options=nn.LinearCrossEntropyOptions(),
    )
    loss.backward()
    return [tensor.cpu() for tensor in (loss.detach(), x.grad, weight.grad)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_in_chunks_has_the_bits_of_the_cpu(dtype, reduction):
    expected = cross_entropy_in_chunks("cpu", dtype, reduction)
    found = cross_entropy_in_chunks("npusim", dtype, reduction)
    assert all(map(torch.equal, found, expected))


def test_cross_entropy_patch_is_still_needed():
    """When this fails, the patch can go: torch accumulates in float32 on every device."""
    options = "torch.nn.modules.linear_cross_entropy_options:LinearCrossEntropyOptions"
    adjust = patches.original(f"{options}._adjust")
    device = torch.device("npusim")
    adjusted = adjust(nn.LinearCrossEntropyOptions(), 64, 32, 100, torch.float16, device)
    assert adjusted.acc_dtype == torch.float16


def test_numpy_is_told_what_to_ask_for():
    x = torch.ones(3, device="npusim")
    with pytest.raises(
        BufferError, match=r"memory of npusim:0 can be read by torch only.*\.cpu\(\)"
    ):
        numpy.from_dlpack(x)
    assert torch.from_dlpack(x).device == x.device
    assert torch.utils.dlpack.from_dlpack(x.__dlpack__()).device == x.device


def test_upstream_numpy_still_leaves_the_remedy_out():
    class Exporter:
        def __dlpack__(self, **options):
            return patches.original("torch:Tensor.__dlpack__")(torch.ones(3, device="npusim"))

        def __dlpack_device__(self):
            return torch.ones(3, device="npusim").__dlpack_device__()

    with pytest.raises(RuntimeError, match="Unsupported device in DLTensor"):
        numpy.from_dlpack(Exporter())


def test_choice_of_backends_is_still_needed():
    """When this fails, torch itself keeps gloo off the device: look whether the patch can go."""
    from datetime import timedelta

    from torch.distributed import HashStore, distributed_c10d

    with pytest.raises(ValueError, match="npusim:simccl"):
        distributed_c10d._new_process_group_helper(1, 0, [], "npusim:gloo", HashStore(), "refused")
    original = patches.original("torch.distributed.distributed_c10d:_new_process_group_helper")
    group, _ = original(
        1, 0, [], "npusim:gloo", HashStore(), "accepted", timeout=timedelta(seconds=5)
    )
    try:
        made = group._get_backend(torch.device("npusim"))
        assert isinstance(made, distributed_c10d.ProcessGroupGloo)
        # Before 2.14 the group has no default, and warns when it is asked for hooks.
        assert group.name() == ("undefined" if is_version("<2.14") else "gloo")
    finally:
        for kept in (distributed_c10d._world.pg_map, distributed_c10d._world.pg_names):
            kept.pop(group, None)


def _profiled(**options):
    x = torch.ones(64, 64, device="npusim")
    with torch.autograd.profiler.profile(use_device="npusim", **options) as profile:
        x @ x
    return profile


def test_autograds_profiler_reads_the_device(capfd):
    for options in ({}, {"use_kineto": False}, {"use_kineto": True}):
        average = {row.key: row for row in _profiled(**options).key_averages()}
        assert average["aten::mm"].device_time_total > 0
    assert "not enabled" not in capfd.readouterr().err


def test_autograds_profiler_still_asks_for_markers(capfd):
    """When this fails, the patch can go: markers work, or use_kineto is the default."""
    with patches.undone("torch.autograd.profiler:profile.__init__"):
        _profiled()
    assert "PrivateUse1 used in profiler but not enabled" in capfd.readouterr().err


@pytest.mark.skipif(
    not patches.is_version("<2.15"), reason="the check asks the accelerator, whatever its name"
)
def test_optimizers_still_let_a_capture_of_npusim_pass():
    """When this fails, the patch can go; tests/graphs/test_rules.py asks what it does."""
    weight = torch.ones(2, device="npusim", requires_grad=True)
    weight.grad = torch.ones(2, device="npusim")
    with (
        patches.undone("torch.optim:Optimizer._accelerator_graph_capture_health_check"),
        torch.npusim.graph(torch.npusim.NPUSIMGraph()),
    ):
        torch.optim.Adam([weight]).step()


def counted(device):
    """Operations of attention and its gradient, by torch's counter."""
    q = torch.randn(2, 4, 16, 8, device=device, requires_grad=True)
    k = torch.randn(2, 2, 16, 8, device=device, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True).sum().backward()
    return counter.get_total_flops()


def test_flop_counter_counts_attention():
    """As on CUDA: 4 operations per pair and channel forward, 10 backward."""
    assert counted("npusim") == 14 * 2 * 4 * 16 * 16 * 8


def test_upstream_counter_still_leaves_attention_on_the_cpu_out():
    """When this fails, the patch can go."""
    known = "attention_for_cpu" in inspect.getsource(import_module("torch.utils.flop_counter"))
    assert known == is_version(">=2.15")
