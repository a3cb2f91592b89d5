# SPDX-License-Identifier: BSD-3-Clause
"""Fused kernels are commands: names, bytes, faults, races, devices, streams."""

import re
import uuid

import pytest
import torch

from torch_npusim.inductor import runtime
from torch_npusim.inductor.compile_report import counted_commands
from torch_npusim.sim import faults


def pointwise(x, y):
    return (x * 2 + y).relu()


def one_command(function, *args):
    """The only command that a compiled function launches: its name and row."""
    compiled = torch.compile(function, fullgraph=True)
    compiled(*args)
    with counted_commands() as rows:
        compiled(*args)
    assert len(rows) == 1
    return next(iter(rows.items()))


def test_a_fused_kernel_costs_what_it_moves():
    x, y = torch.randn(32, 16, device="npusim"), torch.randn(16, device="npusim")
    name, row = one_command(pointwise, x, y)
    assert re.fullmatch(r"npusim_fused_\w+_0", name)
    assert row["calls"] == 1
    assert row["bytes"] == 4 * (512 + 16 + 512)  # y is read once, though it is repeated
    assert row["flops"] == 3 * 512
    assert row["modelled_ns"] > 0
    known = runtime.kernels[name]
    assert known.operators == ("aten.mul.Tensor", "aten.add.Tensor", "aten.relu.default")
    assert float(known.bytes) == row["bytes"]


def test_what_changes_in_place_moves_twice():
    def function(x):
        x.mul_(2)
        return x

    _, row = one_command(function, torch.ones(100, device="npusim"))
    assert row["bytes"] == 2 * 400


def test_what_is_accumulated_is_read_too():
    def function(x, rows, y):
        x.index_put_((rows,), y, accumulate=True)
        return x

    x, y = (torch.ones(count, device="npusim") for count in (64, 16))
    _, row = one_command(function, x, torch.arange(16, device="npusim") % 8, y)
    assert row["bytes"] == 16 * (8 + 4) + 2 * 256  # where it writes, the device alone knows


def test_bytes_follow_dynamic_shapes():
    compiled = torch.compile(pointwise, fullgraph=True, dynamic=True)
    moved = []
    for rows in (4, 9, 20):
        x, y = torch.ones(rows, 16, device="npusim"), torch.ones(16, device="npusim")
        compiled(x, y)
        with counted_commands() as counted:
            compiled(x, y)
        moved.append(sum(row["bytes"] for row in counted.values()))
    assert moved == [4 * (2 * rows * 16 + 16) for rows in (4, 9, 20)]
    assert len(torch._dynamo.utils.get_compilation_metrics()) > 0


def test_a_fault_names_the_fused_kernel():
    x, y = torch.ones(4, device="npusim"), torch.ones(4, device="npusim")
    name, _ = one_command(pointwise, x, y)
    compiled = torch.compile(pointwise, fullgraph=True)
    with faults.inject("launch", nth=1, name=name):
        compiled(x, y)
        with pytest.raises(torch.AcceleratorError, match=name):
            torch.npusim.synchronize()


def test_errors_keep_their_types():
    x, y = torch.ones(4, device="npusim"), torch.ones(4, device="npusim")
    compiled = torch.compile(pointwise, fullgraph=True)
    compiled(x, y)
    torch.npusim.synchronize()
    torch.npusim.set_race_detection("error")
    try:
        with torch.npusim.stream(torch.npusim.Stream()):
            x.fill_(3)
        with pytest.raises(torch.npusim.RaceError, match="npusim_fused"):
            compiled(x, y)
    finally:
        torch.npusim.set_race_detection("off")


def test_a_fault_under_launch_blocking_is_raised_by_the_call(run_script):
    script = """
        import torch
        from torch_npusim.sim import faults
        compiled = torch.compile(lambda x: x * 2)
        x = torch.ones(4, device="npusim")
        compiled(x)
        try:
            with faults.inject("launch", nth=1, name="npusim_fused_mul_0"):
                compiled(x)
        except torch.AcceleratorError as error:
            print("npusim_fused_mul_0" in str(error))
    """
    done = run_script(script, environment={"NPUSIM_LAUNCH_BLOCKING": "1"})
    assert done.stdout == "True\n", done.stderr


def test_a_race_with_a_fused_kernel_is_found(recwarn):
    compiled = torch.compile(pointwise, fullgraph=True)
    x, y = torch.ones(64, device="npusim"), torch.ones(64, device="npusim")
    compiled(x, y)
    torch.npusim.synchronize()
    torch.npusim.set_race_detection("report")
    try:
        stream = torch.npusim.Stream()
        with torch.npusim.stream(stream):
            x.fill_(3)
        compiled(x, y)
        racing = [str(one.message) for one in recwarn if "npusim_fused" in str(one.message)]
        assert len(racing) == 1
        recwarn.clear()
        torch.npusim.current_stream().wait_stream(stream)
        compiled(x, y)
        # Two halves of one tensor on two streams do not meet.
        z = torch.ones(8, 8, device="npusim")
        torch.npusim.synchronize()
        halves = torch.compile(lambda z, y: z[:, :4] * y, fullgraph=True)
        with torch.npusim.stream(stream):
            z[:, 4:].fill_(2)
        halves(z, y[:4])
        assert [str(one.message) for one in recwarn if "npusim_fused" in str(one.message)] == []
    finally:
        torch.npusim.set_race_detection("off")


def test_the_second_device():
    x, y = torch.randn(8, device="npusim:1"), torch.randn(8, device="npusim:1")
    found = torch.compile(pointwise, fullgraph=True)(x, y)
    assert found.device == x.device
    assert torch.equal(found, pointwise(x, y))


def test_two_devices_and_the_host_in_one_graph():
    def function(x, y, z):
        moved = (x + 1).to("npusim:1") * y
        return moved.cpu() + z * 3, x * 2

    args = torch.randn(8, device="npusim:0"), torch.randn(8, device="npusim:1"), torch.randn(8)
    found = torch.compile(function, fullgraph=True)(*args)
    for ours, theirs in zip(found, function(*args), strict=True):
        assert ours.device == theirs.device
        torch.testing.assert_close(ours, theirs)


def test_mixed_devices_raise_when_traced():
    x, y = torch.ones(2, device="npusim:0"), torch.ones(2, device="npusim:1")
    with pytest.raises(Exception, match=r"npusim:0.*npusim:1|npusim:1.*npusim:0"):
        torch.compile(pointwise, fullgraph=True)(x, y)


def test_commands_go_to_the_current_stream():
    compiled = torch.compile(pointwise, fullgraph=True)
    x, y = torch.ones(4, device="npusim"), torch.ones(4, device="npusim")
    compiled(x, y)
    torch.npusim.synchronize()
    stream = torch.npusim.Stream()
    with torch.npusim.stream(stream):
        compiled(x, y)
    assert not stream.query()
    assert torch.npusim.default_stream().query()


def test_streams_in_a_graph():
    stream = torch.npusim.Stream()

    def function(x):
        y = x + 1
        stream.wait_stream(torch.npusim.current_stream())
        with torch.npusim.stream(stream):
            z = y * 2
        torch.npusim.current_stream().wait_stream(stream)
        return z + y

    x = torch.ones(4, device="npusim")
    found = torch.compile(function)(x)
    assert torch.equal(found, function(x))


def test_the_cache_of_graphs_notices_a_new_generator(monkeypatch):
    from torch._dynamo.utils import counters

    from torch_npusim.inductor import registration

    x, y = torch.ones(4, device="npusim"), torch.ones(4, device="npusim")

    def compiled():
        torch._dynamo.reset()
        counters.clear()
        with torch._inductor.config.patch(fx_graph_cache=True):
            torch.compile(pointwise, fullgraph=True)(x, y)
        found = counters["inductor"]
        return found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]

    compiled()
    assert compiled() == (1, 0)
    monkeypatch.setattr(registration, "generator_hash", lambda: uuid.uuid4().hex)
    assert compiled() == (0, 1)


def test_ahead_of_time_and_cpp_wrapper_are_refused():
    x, y = torch.ones(4, device="npusim"), torch.ones(4, device="npusim")
    with torch._inductor.config.patch(cpp_wrapper=True):
        with pytest.raises(Exception, match="0008-no-aotinductor"):
            torch.compile(pointwise, fullgraph=True)(x, y)


def test_export_saves_loads_and_runs(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return pointwise(x, x.sum(-1, keepdim=True))

    x = torch.randn(3, 4, device="npusim")
    program = torch.export.export(Model(), (x,))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(loaded(x), Model()(x))
