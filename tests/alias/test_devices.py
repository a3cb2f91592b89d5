# SPDX-License-Identifier: BSD-3-Clause
"""Wherever torch takes a device, "cuda" is npusim: strings, devices, defaults, methods, types."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

NPUSIM = torch.device("npusim", 0)
SECOND = torch.device("npusim", 1)


def test_device_objects_are_npusims_and_read_cuda():
    assert torch.device("cuda") == torch.device("npusim")
    assert torch.device("cuda:1") == torch.device("cuda", 1) == SECOND
    assert torch.device(type="cuda", index=1) == SECOND
    assert torch.device("cuda").type == torch.device("npusim").type == "cuda"
    assert str(NPUSIM) == "cuda:0"
    assert repr(SECOND) == "device(type='cuda', index=1)"
    assert type(torch.device("cuda")) is torch.device
    assert pickle.loads(pickle.dumps(torch.device("cuda:1"))) == SECOND


def test_a_device_of_that_name_equals_the_tensors():
    assert torch.ones(1, device="cuda").device == torch.device("cuda:0")


@pytest.mark.parametrize("name", ["cuda:", "cuda:-1", "cuda:x", "cudax", "cuda:01"])
def test_wrong_names_stay_wrong(name):
    with pytest.raises(RuntimeError):
        torch.device(name)


def test_other_devices_keep_their_names():
    assert torch.device("cpu").type == "cpu"
    assert torch.device("meta").type == "meta"
    assert torch.device("xpu:1").type == "xpu"


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.empty(2, device=device),
        lambda device: torch.zeros(2, device=device),
        lambda device: torch.full((2,), 3.0, device=device),
        lambda device: torch.arange(3, device=device),
        lambda device: torch.linspace(0, 1, 3, device=device),
        lambda device: torch.eye(2, device=device),
        lambda device: torch.randn(2, device=device),
        lambda device: torch.randint(5, (2,), device=device),
        lambda device: torch.randperm(4, device=device),
        lambda device: torch.tensor([1, 2], device=device),
        lambda device: torch.as_tensor([1.0], device=device),
        lambda device: torch.asarray([1.0], device=device),
        lambda device: torch.empty_strided((2, 2), (1, 2), device=device),
        lambda device: torch.zeros_like(torch.ones(2), device=device),
        lambda device: torch.ones(2).new_full((2,), 1.0, device=device),
        lambda device: torch.ones(2).to(device),
        lambda device: torch.ones(2).to(device, torch.float16, non_blocking=True),
        lambda device: torch.ones(2).to(device=device, dtype=torch.float64),
        lambda device: torch.ones(2).cuda(device),
        lambda device: torch.ones(2).cuda(device=device, non_blocking=True),
        lambda device: torch.sparse_coo_tensor([[0]], [1.0], (2,), device=device),
        lambda device: nn.Linear(2, 2, device=device).weight,
        lambda device: nn.Linear(2, 2).to(device).weight,
        lambda device: nn.Linear(2, 2).cuda(torch.device(device)).weight,
        lambda device: nn.Linear(2, 2).to_empty(device=device).weight,
        lambda device: torch.UntypedStorage(8, device=device),
        lambda device: torch.UntypedStorage(8).to(device=torch.device(device)),
        lambda device: torch.Generator(device),
        lambda device: torch.Stream(device),
    ],
)
def test_every_device_argument_takes_the_name(make):
    assert make("cuda").device in (NPUSIM, torch.device("npusim"))
    assert make("cuda:1").device == SECOND


def test_cuda_keeps_the_memory_format_asked_for():
    x = torch.randn(1, 3, 2, 2)
    assert x.cuda(memory_format=torch.channels_last).is_contiguous(
        memory_format=torch.channels_last
    )


def test_cuda_refuses_the_cpu():
    with pytest.raises(RuntimeError, match=r"^Invalid device, must be cuda device$"):
        torch.ones(1).cuda("cpu")


def test_is_cuda():
    assert torch.ones(1, device="cuda").is_cuda
    assert nn.Parameter(torch.ones(1, device="cuda")).is_cuda
    assert torch.ones(1, device="cuda").untyped_storage().is_cuda
    assert not torch.ones(1).is_cuda
    assert not torch.ones(1, device="meta").is_cuda


def test_is_cuda_and_cuda_reach_torch_function():
    asked = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            asked.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    logged = torch.ones(2).as_subclass(Logged)
    assert not logged.is_cuda
    assert isinstance(logged.cuda(), Logged)
    assert torch.Tensor.is_cuda.__get__ in asked
    assert torch.Tensor.cuda in asked


def test_is_cuda_under_torch_func():
    doubled = torch.func.vmap(lambda x: x * 2 if x.is_cuda else x)(torch.ones(2, device="cuda"))
    assert doubled.tolist() == [2, 2]
    moved = torch.func.grad(lambda x: (x.cuda() ** 2).sum())(torch.ones(2))
    assert moved.tolist() == [2, 2]


def test_numba_and_its_like_get_no_address():
    assert not hasattr(torch.ones(1, device="cuda"), "__cuda_array_interface__")
    assert not hasattr(torch.ones(1), "__cuda_array_interface__")


def test_legacy_types():
    x = torch.ones(2, device="cuda")
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert torch.ones(2).type("torch.cuda.HalfTensor").dtype is torch.float16
    assert torch.ones(2).type(torch.cuda.LongTensor).device == NPUSIM
    assert x.type(torch.float64).device == NPUSIM
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.type() == "torch.cuda.FloatTensor"


def test_legacy_sparse_types():
    x = torch.cuda.sparse.FloatTensor(torch.tensor([[0, 2]]).cuda(), torch.ones(2).cuda(), (3,))
    assert x.to_dense().tolist() == [1, 0, 1]
    assert isinstance(x, torch.cuda.sparse.FloatTensor)
    assert not isinstance(x, torch.cuda.sparse.DoubleTensor)
    assert not isinstance(x.to_dense(), torch.cuda.sparse.FloatTensor)
    assert torch.cuda.sparse.LongTensor(2, 3).shape == (2, 3)
    assert torch.cuda.sparse.LongTensor().device == NPUSIM


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
@pytest.mark.parametrize("chosen", ["torch.cuda.DoubleTensor", "class"])
def test_default_tensor_type(chosen):
    torch.set_default_tensor_type(torch.cuda.DoubleTensor if chosen == "class" else chosen)
    try:
        assert torch.ones(1).device == NPUSIM
        assert torch.ones(1).dtype is torch.float64
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.ones(1).device.type == "cpu"
    assert torch.ones(1).dtype is torch.float32


def test_autocast_and_scaler():
    weight = torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert torch.mm(weight, weight).dtype is torch.get_autocast_gpu_dtype() is torch.float16
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert torch.mm(weight, weight).dtype is torch.bfloat16
    with torch.autocast("cpu"):
        assert not torch.is_autocast_enabled()
    assert not torch.is_autocast_enabled()
    scaler = torch.amp.GradScaler()
    assert scaler.is_enabled()
    assert scaler.scale(torch.ones(1, device="cuda")).device == NPUSIM


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_autocast_switched_by_hand():
    torch.set_autocast_enabled(True)
    try:
        assert torch.is_autocast_enabled("npusim")
        torch.set_autocast_gpu_dtype(torch.bfloat16)
        assert torch.get_autocast_dtype("npusim") is torch.bfloat16
    finally:
        torch.set_autocast_gpu_dtype(torch.float16)
        torch.set_autocast_enabled(False)


def test_custom_functions_cast_under_autocast():
    class Twice(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float16)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(2, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        y = Twice.apply(x)
    y.sum().backward()
    assert y.dtype is torch.float16
    assert x.grad.tolist() == [2, 2]


def test_packed_sequences_and_recurrent_layers():
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 2, 4), [3, 2]).cuda()
    assert packed.is_cuda
    out, _ = nn.LSTM(4, 5).cuda()(packed)
    assert out.data.device == NPUSIM


def test_torchscript_reads_the_name():
    script = torch.jit.CompilationUnit(
        """
        def move(x):
            return x.to("cuda:1") + torch.zeros(1, device=torch.device("cuda:1"))
        """
    )
    assert script.move(torch.ones(1)).device == SECOND


def test_compiled_functions_read_the_name():
    move = torch.compile(lambda x: x.to("cuda") + torch.ones(2, device="cuda"), backend="eager")
    assert move(torch.ones(2)).tolist() == [2, 2]


def test_inductor_still_compiles_for_cpu():
    double = torch.compile(lambda x: torch.relu(x) * 2)
    assert double(torch.tensor([-1.0, 2.0])).tolist() == [0, 4]


def test_flags_can_be_set():
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not before
    assert torch.backends.cudnn.benchmark is not before
    torch.backends.cudnn.benchmark = before
    assert torch.backends.cuda.is_built()
    assert torch._C._has_cuda
    with torch.backends.cudnn.flags(enabled=False):
        assert not torch.backends.cudnn.enabled


def test_the_profiler_shows_the_device():
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.ones(2, device="cuda") + 1
    table = profile.key_averages().table(sort_by="cuda_time_total")
    assert "aten::add" in table
    assert "Self CUDA" in table
    with torch.profiler.profile(activities=activities[1:]) as profile:
        torch.ones(2, device="cuda") + 1
    assert "aten::add.Tensor" in {event.key for event in profile.key_averages()}


def test_data_parallel_is_the_same_as_one_device():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()
    alone = copy.deepcopy(model)
    x = torch.randn(10, 6)
    parallel = nn.DataParallel(model)
    assert parallel.device_ids == [0, 1]
    parallel(x).square().sum().backward()
    alone(x.cuda()).square().sum().backward()
    torch.testing.assert_close(parallel(x), alone(x.cuda()))
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def gradient_by_ddp(layer, x):
    """The wrapper goes before its group: the last owner of a gloo joins a thread with the GIL."""
    nn.parallel.DistributedDataParallel(layer)(x).backward()
    return layer.weight.grad.tolist()


@pytest.mark.parametrize("backend", [None, "nccl", "cpu:gloo,cuda:nccl"])
def test_nccl_is_simccl(tmp_path, backend):
    where = f"file://{tmp_path}/store"
    assert torch.distributed.is_nccl_available()
    torch.distributed.init_process_group(backend, init_method=where, rank=0, world_size=1)
    try:
        x = torch.ones(2, device="cuda")
        torch.distributed.all_reduce(x)
        assert x.tolist() == [1, 1]
        made = torch.distributed.group.WORLD._get_backend(torch.device("cuda"))
        assert isinstance(made, torch.distributed.ProcessGroupNCCL)
        assert gradient_by_ddp(nn.Linear(2, 1).cuda(), x) == [[1, 1]]
    finally:
        torch.distributed.destroy_process_group()


def test_objects_are_gathered_where_their_hashes_are_logged(tmp_path, caplog):
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL torch asks NCCL's part of itself for a hash."""
    level = torch.distributed.get_debug_level()
    where = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("nccl", init_method=where, rank=0, world_size=1)
    torch.distributed.set_debug_level(torch.distributed.DebugLevel.DETAIL)
    try:
        with caplog.at_level("WARNING", "torch.distributed.distributed_c10d"):
            for _ in range(2):
                gathered = [None]
                torch.distributed.all_gather_object(gathered, {"rank": 0})
                assert gathered == [{"rank": 0}]
    finally:
        torch.distributed.set_debug_level(level)
        torch.distributed.destroy_process_group()
    hashes = {
        record.args[1] for record in caplog.records if "_object_to_tensor" in record.getMessage()
    }
    assert len(hashes) == 1


def test_gloo_serves_both_devices(tmp_path):
    where = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    try:
        assert torch.distributed.get_backend() == "gloo"
        assert init_device_mesh("cuda", (1,)).get_group().group_desc == "mesh_default"
        for device in ("cpu", "cuda"):
            x = torch.ones(2, device=device)
            torch.distributed.all_reduce(x)
            assert gradient_by_ddp(nn.Linear(2, 1).to(device), x) == [[1, 1]]
    finally:
        torch.distributed.destroy_process_group()
