# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile under the alias."""

import os

import pytest
import torch
from repo.sources import ROOT

from torch_npusim import cuda_alias


@pytest.fixture(autouse=True)
def _compiles_anew():
    from torch._inductor import config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(ROOT / "build" / "inductor")
    torch._dynamo.reset()
    with config.patch(compile_threads=1, fx_graph_cache=False):
        yield
    torch._dynamo.reset()


def test_reset():
    import torch._inductor.cudagraph_trees

    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_is_cuda_is_the_same_in_compiled_code(backend):
    def branch(x):
        y = x * 2
        inside = torch.zeros(2, device="cuda")
        return x + 1 if x.is_cuda and y.is_cuda and inside.is_cuda else x - 1

    compiled = torch.compile(branch, backend=backend)
    for x in (torch.ones(3, device="cuda"), torch.nn.Parameter(torch.ones(3, device="cuda"))):
        assert torch.equal(compiled(x), x + 1)
        assert torch.equal(compiled(x), branch(x))
    assert torch.equal(compiled(torch.ones(3)), torch.zeros(3))


def test_torch_cuda_is_in_graphs():
    def function(x):
        with torch.cuda.device(torch.cuda.device_count() - 1):
            y = x + torch.cuda.is_available() + torch.cuda.current_device()
        torch.cuda.synchronize()
        return y

    x = torch.ones(3, device="cuda")
    assert torch.equal(torch.compile(function, fullgraph=True)(x), function(x))


def test_the_compiler_may_be_there_before_the_alias_or_after(run_script):
    script = """
        import torch, torch_npusim
        from torch_npusim import cuda_alias
        {}
        def function(x):
            with torch.cuda.device(1):
                y = x + torch.cuda.current_device()
            state = torch.cuda.get_rng_state_all()
            y = y + torch.rand(3, device="cuda")
            torch.cuda.set_rng_state_all(state)
            return y - torch.rand(3, device="cuda")
        torch._inductor.config.fallback_random = True
        x = torch.ones(3, device="cuda")
        print(torch.equal(torch.compile(function, backend="aot_eager")(x), function(x)))
    """
    for order in ("import torch._dynamo; cuda_alias.enable()", "cuda_alias.enable()"):
        assert run_script(script.format(order)).stdout == "True\n"


def test_cached_tensors_of_cuda_graphs_are_refused():
    with pytest.raises(NotImplementedError, match="records no CUDA graphs"):
        torch._C._set_cached_tensors_enabled(True)


MODES = ["default", "lite", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_the_compiler(mode):
    assert torch._inductor.list_mode_options().keys() <= set(MODES)

    def step(x, weight):
        loss = (x @ weight).relu().sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        return loss.detach(), gradient

    def forward(x, weight):
        return (x @ weight).relu().sum()

    compiled = torch.compile(forward, mode=mode)
    weight = torch.ones(4, 4, device="cuda", requires_grad=True)
    for i in range(6):
        x = torch.full((2, 4), float(i), device="cuda")
        loss = compiled(x, weight)
        (gradient,) = torch.autograd.grad(loss, weight)
        expected = step(x, weight)
        assert torch.equal(loss, expected[0])
        assert torch.equal(gradient, expected[1])


def test_a_replay_is_one_launch():
    from torch_npusim.sim import timeline

    compiled = torch.compile(lambda x: (x @ x).cos() @ x, mode="reduce-overhead")
    x = torch.ones(4, 4, device="cuda")
    for _ in range(3):
        compiled(x)
    torch.cuda.synchronize()
    with timeline.record() as made:
        compiled(x)
    assert len(made.commands()) == 3
    assert made.end_ns - made.begin_ns == made.rates.launch_latency_ns


def test_a_copy_to_the_host_that_does_not_block_is_pinned_and_then_waited_for():
    """Inductor waits for it from torch 2.13 on (pytorch/pytorch 182190)."""
    compiled = torch.compile(lambda x: (x * 2).to("cpu", non_blocking=True), fullgraph=True)
    doubled = compiled(torch.ones(4, device="cuda"))
    assert doubled.is_pinned()
    assert torch.cuda.current_stream().query()
    assert doubled.tolist() == [2.0] * 4


def test_kernels_are_commands_of_npusim_and_no_triton():
    from torch._inductor import utils

    from torch_npusim.inductor.compile_report import counted_commands

    def function(x):
        return (x * 2 + 1).relu().sum(0), torch.rand(4, device="cuda") < 2

    assert not utils.is_gpu("cuda")
    assert not torch.utils._triton.has_triton()
    compiled = torch.compile(function, fullgraph=True)
    x = torch.randn(4, 8, device="cuda")
    compiled(x)
    with counted_commands() as rows:
        found = compiled(x)
    assert [t.device.type for t in found] == ["cuda", "cuda"]
    torch.testing.assert_close(found[0], function(x)[0])
    assert any(name.startswith("npusim_fused") for name in rows)


def test_kernels_with_configurations_reserve_the_buffer_that_flushes_the_cache():
    """Of 50 MiB on an H100: its recording reserves that for the second model on (docs: truth)."""
    flushed = torch.cuda.get_device_properties(0).L2_cache_size
    x, y = (torch.ones(count, device="cuda") for count in (64, 128))
    reserved = []
    for function, operand in ((torch.cumsum, (x, 0)), (torch.cos, (x,)), (torch.cos, (y,))):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        compiled = torch.compile(lambda *a, f=function: f(f(*a), *a[1:]), fullgraph=True)
        compiled(*operand), compiled(*operand)
        reserved.append(torch.cuda.memory_reserved() - before)
    assert reserved == [0, 0, flushed]


def test_a_device_that_is_too_old_for_triton_is_none_for_its_own_kernels(monkeypatch):
    """Such as NPUSIM_SPEC=ascend-910b; Inductor asks whether Triton could write for it."""
    from types import SimpleNamespace

    old = SimpleNamespace(name="old", major=1, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: old)
    x = torch.ones(4, device="cuda")
    assert torch.equal(torch.compile(lambda x: x * 3 - 1, fullgraph=True)(x), x * 2)


def test_what_the_compiler_knows_of_cuda_comes_back():
    from torch._dynamo import device_interface
    from torch._inductor import compile_fx, utils  # noqa: F401
    from torch._inductor.codegen.common import device_op_overrides_dict

    with_alias = device_interface.get_interface_for_device("cuda")
    cuda_alias.disable()
    try:
        assert device_interface.get_interface_for_device("cuda") is device_interface.CudaInterface
        assert "cuda" in utils.GPU_TYPES
        assert "CUDA" in type(device_op_overrides_dict["cuda"]).__name__
        x = torch.ones(4, device="npusim")
        torch._dynamo.reset()
        assert torch.equal(torch.compile(lambda x: x + 1)(x), x + 1)
    finally:
        cuda_alias.enable()
    assert device_interface.get_interface_for_device("cuda") is with_alias
    assert not utils.is_gpu("cuda")


def test_softmax():
    """Inductor takes a reduction for "cuda" that only Triton has."""
    x = torch.randn(4, 256, device="cuda")
    compiled = torch.compile(lambda x: x.softmax(-1))
    torch.testing.assert_close(compiled(x), x.softmax(-1))
