# SPDX-License-Identifier: BSD-3-Clause
"""Right kernels: values, commands and cost; the check finds nothing in them."""

import pytest
import torch
import triton
from torch.nn import functional as F
from triton_kernels import tutorials

from torch_npusim.inductor.compile_report import counted_commands
from torch_npusim.sim import faults, poison
from torch_npusim.testing import check_triton

DEVICE = "npusim"


@pytest.fixture(autouse=True)
def _poisoned():
    """Reads of unwritten memory are found."""
    with poison.use_mode("fresh"):
        yield


@pytest.fixture(params=["launched", "checked"])
def run(request):
    return check_triton if request.param == "checked" else lambda kernel, **_: kernel


def randn(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape).to(DEVICE)


def test_vector_add(run):
    x, y = randn(1000), randn(1000)
    out = torch.empty_like(x)
    run(tutorials.add, outputs=("out_ptr",))[(triton.cdiv(1000, 64),)](x, y, out, 1000, BLOCK=64)
    assert torch.equal(out, x + y)


def test_fused_softmax(run):
    x = randn(37, 50)
    out = torch.empty_like(x)
    run(tutorials.softmax, outputs=("out_ptr",))[(8,)](out, x, 50, 50, 37, 50, BLOCK=64)
    torch.testing.assert_close(out, F.softmax(x, -1))


def test_matmul(run):
    a, b = randn(33, 40), randn(40, 21)
    c = torch.empty(33, 21, device=DEVICE)
    grid = (triton.cdiv(33, 16), triton.cdiv(21, 16))
    run(tutorials.matmul, outputs=("c_ptr",))[grid](a, b, c, 33, 21, 40, BM=16, BN=16, BK=16)
    torch.testing.assert_close(c, a @ b, atol=1e-4, rtol=1e-4)


def test_dropout(run):
    x = torch.ones(4096, device=DEVICE)
    out, again = torch.empty_like(x), torch.empty_like(x)
    for made in (out, again):
        run(tutorials.dropout, outputs=("out_ptr",))[(16,)](x, made, 4096, 0.5, 123, BLOCK=256)
    assert torch.equal(out, again)
    assert set(out.tolist()) == {0.0, 2.0}
    assert 0.45 < (out == 0).float().mean().item() < 0.55


def test_layer_norm_with_locks(run):
    rows, n, groups = 12, 40, 3
    x, w, b, dy = randn(rows, n), randn(n) + 1, randn(n), randn(rows, n).flip(0)
    y, mean, rstd = torch.empty_like(x), *(torch.empty(rows, device=DEVICE) for _ in "mr")
    outputs = ("y_ptr", "mean_ptr", "rstd_ptr")
    forward = run(tutorials.layer_norm, outputs=outputs)
    forward[(rows,)](x, y, w, b, mean, rstd, n, 1e-5, BLOCK=64)
    leaf = x.clone().requires_grad_()
    weight = w.clone().requires_grad_()
    expected = F.layer_norm(leaf, (n,), weight, b, 1e-5)
    torch.testing.assert_close(y, expected.detach())

    dx, dw = torch.empty_like(x), torch.empty(groups, n, device=DEVICE)
    locks = torch.zeros(2 * groups, dtype=torch.int32, device=DEVICE)
    backward = run(tutorials.layer_norm_backward, outputs=("dx_ptr", "dw_ptr"))
    backward[(rows,)](dx, dy, dw, x, w, mean, rstd, locks, n, GROUPS=groups, BLOCK=64)
    expected.backward(dy)
    torch.testing.assert_close(dx, leaf.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(dw.sum(0), weight.grad, atol=1e-4, rtol=1e-4)


def test_atomic_sums(run):
    x = randn(20, 30)
    out = torch.zeros(30, device=DEVICE)
    run(tutorials.column_sums)[(20,)](x, out, 30, BLOCK=32)
    torch.testing.assert_close(out, x.sum(0), atol=1e-5, rtol=1e-5)


def test_a_launch_is_a_command_with_its_cost():
    x, y = randn(1000), randn(1000)
    out = torch.empty_like(x)
    with counted_commands() as rows:
        tutorials.add[(16,)](x, y, out, 1000, BLOCK=64)
    assert list(rows) == ["add"]
    assert rows["add"]["calls"] == 1
    assert rows["add"]["bytes"] == 3 * 4000
    assert rows["add"]["flops"] == 16 * 64  # whole blocks, whatever the mask
    assert rows["add"]["modelled_ns"] > 0
    a, b = randn(32, 32), randn(32, 32)
    with counted_commands() as rows:
        tutorials.matmul[(2, 2)](a, b, torch.empty_like(a), 32, 32, 32, BM=16, BN=16, BK=16)
    assert rows["matmul"]["bytes"] == 3 * 4096  # what several programs read comes once
    assert rows["matmul"]["flops"] >= 2 * 32**3


def test_it_runs_on_the_current_stream_of_its_device():
    x = torch.ones(64, device="npusim:1")
    out = torch.empty_like(x)
    stream = torch.npusim.Stream("npusim:1")
    torch.npusim.synchronize(1)
    with torch.npusim.stream(stream):
        tutorials.add[(1,)](x, x, out, 64, BLOCK=64)
    assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, x + x)


def test_a_fault_keeps_it_from_running():
    x, out = torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE)
    with faults.inject("launch", nth=1, name="add"):
        tutorials.add[(1,)](x, x, out, 64, BLOCK=64)
        with pytest.raises(torch.AcceleratorError, match="add"):
            torch.npusim.synchronize()


def test_tensors_of_the_host_are_refused_beside_the_devices():
    x, out = torch.ones(64), torch.zeros(64, device=DEVICE)
    with pytest.raises(ValueError, match="one device needed: x_ptr on cpu"):
        tutorials.add[(1,)](x, x, out, 64, BLOCK=64)
    tutorials.add[(1,)](x, x, x, 64, BLOCK=64)  # the interpreter's own way
    assert x.tolist() == [2.0] * 64


def test_a_capture_refuses_it_by_name():
    x = torch.ones(64, device=DEVICE)
    out = torch.zeros_like(x)
    graph = torch.npusim.NPUSIMGraph()
    with pytest.raises(Exception, match="add"):
        with torch.npusim.graph(graph):
            tutorials.add[(1,)](x, x, out, 64, BLOCK=64)
    assert out.count_nonzero() == 0


def test_in_compiled_code_it_runs_at_a_graph_break_with_a_reason():
    from torch._dynamo.utils import counters

    def function(x):
        y = x * 2
        out = torch.empty_like(y)
        tutorials.add[(1,)](y, y, out, 64, BLOCK=64)
        return out + 1

    torch._dynamo.reset()
    counters.clear()
    x = randn(64)
    compiled = torch.compile(function, backend="aot_eager")
    assert torch.equal(compiled(x), x * 4 + 1)
    (reason,) = counters["graph_break"]
    assert "a Triton kernel runs in Triton's interpreter" in reason
