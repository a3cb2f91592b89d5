# SPDX-License-Identifier: BSD-3-Clause
"""torch takes the backend for a ProcessGroupNCCL: all that it then calls is there."""

import ast
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._inductor.utils import fresh_cache

from torch_npusim.patches import is_version
from torch_npusim.testing import run_ranks

FOLDERS = ("distributed", "_inductor")
# Not called on simccl, because something else is asked first.
ASKED_FIRST = {
    "_start_time_estimate": "supports_time_estimate",
    "_end_time_estimate": "supports_time_estimate",
    "comm_split_count": "supports_splitting",
    "get_comm": "the class, torchcomms'",
    "options": "the class, gloo's, or supports_splitting",
    "wrapped_pg": "the class, _ProcessGroupWrapper",
}

# Names that newer versions of torch do not use, and the versions that do.
VERSIONS = {"options": "<2.14", "_start_time_estimate": "<2.15", "_end_time_estimate": "<2.15"}


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
    for name in ("supports_time_estimate", "supports_splitting", "supports_shrinking"):
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


def test_compiled_code_comes_out_of_the_cache(nccl):
    """torch lengthens the timeouts by the time that the cache has saved."""

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
