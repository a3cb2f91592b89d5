# SPDX-License-Identifier: BSD-3-Clause
"""torch takes the backend for a ProcessGroupNCCL: all that it then calls is there."""

import ast
import contextlib
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torch_npusim import _C
from torch_npusim.patches import is_version
from torch_npusim.sim import specs
from torch_npusim.testing import run_ranks

FOLDERS = ("distributed", "_inductor")
# Not called on simccl, because something else is asked first.
ASKED_FIRST = {
    "_start_time_estimate": "supports_time_estimate",
    "_end_time_estimate": "supports_time_estimate",
    "get_comm": "the class, torchcomms'",
    "wrapped_pg": "the class, _ProcessGroupWrapper",
}

# Names that newer versions of torch do not use, and the versions that do.
VERSIONS = {"_start_time_estimate": "<2.15", "_end_time_estimate": "<2.15"}


@pytest.fixture
def nccl(tmp_path):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD._get_backend(torch.device("cuda"))
    if dist.is_initialized():
        dist.destroy_process_group()


def is_a_backend(node):
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    named = getattr(function, "attr", None) == "_get_backend"
    return named or getattr(function, "id", None) == "ProcessGroupNCCL"


def attributes_in(function):
    """Yields the attributes of backends that a function of torch uses."""
    backends = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and is_a_backend(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and (
            is_a_backend(node.value) or getattr(node.value, "id", None) in backends
        ):
            yield node.attr


def used_by_torch():
    root = Path(torch.__file__).parent
    texts = [path.read_text() for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    return {
        name
        for text in texts
        if "_get_backend(" in text or "ProcessGroupNCCL(" in text
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for name in attributes_in(function)
    }


def test_all_that_torch_uses_of_nccl_is_there(nccl):
    used = used_by_torch()
    assert {"uid", "supports_splitting"} <= used
    no_more = {name for name, versions in VERSIONS.items() if not is_version(versions)}
    assert {name for name in used if not hasattr(nccl, name)} == set(ASKED_FIRST) - no_more
    for name in ("supports_time_estimate", "supports_shrinking"):
        assert not getattr(nccl, name, False)  # torch 2.15 has no time estimate
    policies = ("DEFAULT", "EFFICIENCY", "ZERO")
    assert [getattr(dist.ProcessGroupNCCL, f"NCCL_CTA_POLICY_{name}") for name in policies] == [
        0,
        1,
        2,
    ]


def waits_alone(before, told):
    c10d = dist.distributed_c10d
    c10d._set_pg_timeout(timedelta(milliseconds=200))
    c10d._add_ephemeral_timeout_for_all_pgs(timedelta(milliseconds=100))
    x = torch.ones(2, device="cuda")
    for _ in range(before):
        dist.all_reduce(x)
        x.tolist()
    if dist.get_rank() == 1:
        told.wait(60)
        return None
    dist.all_reduce(x)
    with pytest.raises(dist.DistBackendError) as raised:
        x.tolist()
    told.set()
    return str(raised.value)


@pytest.mark.parametrize(("before", "limit"), [(0, 300), (1, 200)])
def test_timeouts_are_set_and_lengthened_for_one_collective(before, limit):
    text, _ = run_ranks(waits_alone, 2, before, threading.Event(), backend="nccl")
    assert f"Timeout(ms)={limit})" in text


def test_groups_have_numbers(nccl):
    assert dist.distributed_c10d._get_process_group_uid(dist.group.WORLD) == nccl.uid >= 0


def test_a_group_is_aborted(nccl):
    dist.distributed_c10d._abort_process_group()
    assert not dist.is_initialized()
    with pytest.raises(dist.DistBackendError, match="was aborted"):
        nccl.allreduce([torch.ones(2, device="cuda")]).wait()


def test_a_group_is_destroyed(nccl):
    part = dist.new_group([0])
    for group in (part, dist.group.WORLD):
        dist.destroy_process_group(group)
        with pytest.raises(dist.DistBackendError, match="was destroyed"):
            group.allreduce([torch.ones(2, device="cuda")]).wait()


def collectives_with_nans():
    """The calls that are not refused for a NaN."""
    rank, size = dist.get_rank(), dist.get_world_size()
    nan, one = (torch.full((2,), x, device="cuda") for x in (float("nan"), 1.0))
    all_of = torch.ones(2 * size, device="cuda")
    calls = {
        "all_reduce": lambda: dist.all_reduce(nan),
        "reduce": lambda: dist.reduce(nan, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(all_of, nan),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(one, all_of * nan[0]),
        "all_to_all": lambda: dist.all_to_all_single(one, nan),
        "float16": lambda: dist.all_reduce(nan.half()),
        "float8": lambda: dist.all_gather_into_tensor(all_of.to(f8), nan.to(f8)),
        "send": lambda: dist.send(nan, 1 - rank),
        "output": lambda: dist.all_gather_into_tensor(all_of * nan[0], one),
        "received": lambda: dist.broadcast(one if rank == 0 else nan, 0),
        "integers": lambda: dist.all_reduce(one.int()),
        "barrier": dist.barrier,
    }
    f8 = torch.float8_e5m2
    accepted = []
    for name, call in calls.items():
        try:
            call()
            accepted.append(name)
        except RuntimeError as error:
            accepted += [] if "NaN found in input tensor" in str(error) else [str(error)]
    dist.group.WORLD._get_backend(one.device)._set_enable_nan_check(False)
    calls["all_reduce"]()
    return accepted


def test_inputs_are_searched_for_nans(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_NAN_CHECK", "1")
    accepted = ["output", "received", "integers", "barrier"]
    assert run_ranks(collectives_with_nans, 2, backend="nccl") == [accepted] * 2


@pytest.mark.parametrize(("name", "value"), [("1", True), ("off", None), ("n", False)])
def test_the_nan_check_is_a_truth_value(monkeypatch, name, value, tmp_path):
    monkeypatch.setenv("TORCH_NCCL_NAN_CHECK", name)
    where = f"file://{tmp_path}/store"
    if value is None:
        with pytest.raises(RuntimeError, match="TORCH_NCCL_NAN_CHECK"):
            dist.init_process_group("nccl", init_method=where, rank=0, world_size=1)
        return
    dist.init_process_group("nccl", init_method=where, rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="NaN") if value else contextlib.nullcontext():
        dist.all_reduce(torch.full((2,), float("nan"), device="cuda"))
    dist.destroy_process_group()


def test_float8_is_reduced_from_capability_9_on(nccl):
    x = torch.ones(4, device="cuda").to(torch.float8_e4m3fn)
    y = x.clone()
    dist.all_gather_into_tensor(y, x)
    with pytest.raises(dist.DistBackendError, match="begins with sm90"):
        dist.all_reduce(x)
    _C.set_judged_capability(9, 0)
    try:
        dist.all_reduce(x)
        with pytest.raises(TypeError, match="not supported"):
            dist.all_reduce(x.view(torch.float8_e4m3fnuz))
    finally:
        _C.set_judged_capability(*specs.capability())


def test_a_barrier_names_no_device(nccl):
    dist.group.WORLD.barrier().wait()
    dist.group.WORLD.barrier(timeout=timedelta(seconds=5)).wait()


def test_devices_have_no_multicast():
    """A build for CUDA asks the driver."""
    memory = torch._C._distributed_c10d._SymmetricMemory
    assert memory.has_multicast_support(torch._C._autograd.DeviceType.CUDA, 0) is False


def test_limits_are_nccls(nccl, tmp_path):
    assert nccl.options._timeout == timedelta(minutes=10)
    store = dist.FileStore(str(tmp_path / "other"), 1)
    one = dist.ProcessGroupNCCL(store, 0, 1, timeout=timedelta(seconds=3))
    assert one.options._timeout == timedelta(seconds=3)
    one.allreduce([torch.ones(2, device="cuda")]).wait()


def test_ends_of_collectives_are_told(nccl, monkeypatch):
    group = dist.group.WORLD
    told = []
    with pytest.raises(dist.DistBackendError, match="takes timings"):
        group._register_on_completion_hook(told.append)
    group._enable_collectives_timing()
    group._register_on_completion_hook(told.append)
    x = torch.ones(2, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    dist.broadcast(torch.ones(2, device="cuda"), 0)
    group._wait_for_pending_works()
    assert [one.op_type.name for one in told] == ["ALLREDUCE", "BROADCAST"]
    assert [one.seq for one in told] == [1, 2]
    assert told[0].active_duration.total_seconds() * 1e3 == pytest.approx(
        work._get_duration(), abs=1e-3
    )
    work.wait()
    dist.all_reduce(x)
    dist.destroy_process_group()  # waits
    assert len(told) == 3


def splits():
    rank = dist.get_rank()
    dist.group.WORLD.bound_device_id = torch.device("cuda", rank)
    parent = dist.group.WORLD._get_backend(torch.device("cuda"))
    x = torch.full((1,), float(rank), device="cuda")
    parent.options.is_high_priority_stream = True
    both = dist.split_group(split_ranks=[[0, 1]])
    assert both._get_backend(torch.device("cuda")).options.is_high_priority_stream
    dist.all_reduce(x, group=both)
    some = dist.split_group(split_ranks=[[1]], pg_options=dist.ProcessGroupNCCL.Options())
    inside = some not in (None, dist.GroupMember.NON_GROUP_MEMBER)  # the latter from 2.14 on
    if inside:
        dist.all_reduce(x, op=dist.ReduceOp.AVG, group=some)
    return x.item(), inside, parent.comm_split_count() if inside else None


def test_groups_are_split():
    assert run_ranks(splits, 2, backend="nccl") == [(1.0, False, None), (1.0, True, 2)]


def waits_once():
    x = torch.ones(2, device="cuda")
    if dist.get_rank() == 1:
        return None
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(x, async_op=True).wait()
    with pytest.raises(dist.DistBackendError, match="was aborted"):
        dist.all_reduce(x)
    return (torch.ones(2, device="cuda") + 1).tolist()


def test_a_blocking_wait_raises_and_the_device_goes_on(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    assert run_ranks(waits_once, 2, backend="nccl")[0] == [2.0, 2.0]


def test_compiled_code_comes_out_of_the_cache(nccl):
    """torch lengthens the timeouts by the time that the cache has saved."""
    from torch._inductor.utils import fresh_cache

    def scaled(x):
        y = (x * 2).sin()
        dist.all_reduce(y)
        return y + 1

    x = torch.linspace(0, 1, 8, device="cuda")
    with (
        fresh_cache(),
        torch._inductor.config.patch(compile_threads=1, fx_graph_cache=True),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        torch._dynamo.utils.counters.clear()
        for time in range(2):
            torch._dynamo.reset()
            torch.testing.assert_close(torch.compile(scaled)(x), (x * 2).sin() + 1)
            assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] == time
    torch._dynamo.reset()
