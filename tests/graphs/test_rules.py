# SPDX-License-Identifier: BSD-3-Clause
"""The promises of torch.cuda's documentation about graphs, rule by rule (docs/use/graphs.md)."""

import gc
import os
from functools import partial

import pytest
import torch
from processes import python
from torch import nn

from torch_npusim.sim import clock, races, timeline

DEVICE = "npusim"
REFUSED = "operation not permitted when stream is capturing"


@pytest.fixture
def side():
    return torch.npusim.Stream()


def captured(function, **arguments):
    graph = torch.npusim.NPUSIMGraph()
    with torch.npusim.graph(graph, **arguments):
        result = function()
    return graph, result


def test_a_replay_reads_and_writes_the_same_memory():
    x = torch.arange(4.0, device=DEVICE)
    graph, y = captured(lambda: x * 2 + 1)
    address = y.data_ptr()
    graph.replay()
    assert y.tolist() == [1, 3, 5, 7]
    x.copy_(torch.tensor([10.0, 20, 30, 40]))
    graph.replay()
    assert y.tolist() == [21, 41, 61, 81]
    assert y.data_ptr() == address


def test_nothing_that_is_captured_has_happened():
    x = torch.ones(4, device=DEVICE)
    norm = nn.BatchNorm1d(4).to(DEVICE)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    seed = torch.npusim.get_rng_state()

    def work():
        x.add_(1)
        torch.rand(8, device=DEVICE)
        norm(torch.ones(3, 4, device=DEVICE))
        return x * 2

    _, y = captured(work)
    assert x.tolist() == [1, 1, 1, 1]
    assert y.tolist() == [0, 0, 0, 0]
    assert torch.equal(torch.npusim.get_rng_state(), seed)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_capture_takes_no_time_of_the_device(side):
    x = torch.ones(1 << 16, device=DEVICE)
    torch.npusim.synchronize()
    before = clock.host_time_ns()
    captured(lambda: x * 2, stream=side)
    assert clock.stream_time_ns(side) <= before
    assert clock.host_time_ns() == before


def test_intermediate_memory_is_used_again_within_a_capture():
    x = torch.ones(1 << 16, device=DEVICE)

    def chain():
        y = x
        for _ in range(10):
            y = y + 1
        return y

    torch.npusim.empty_cache()
    reserved = torch.npusim.memory_reserved()
    graph, y = captured(chain)
    assert torch.npusim.memory_reserved() - reserved <= 4 << 20
    graph.replay()
    assert y[0].item() == 11


def test_memory_of_a_graph_is_private():
    x = torch.ones(1 << 16, device=DEVICE)
    graph, y = captured(lambda: (x + 1) * 2)
    others = [torch.full((1 << 16,), 7.0, device=DEVICE) for _ in range(8)]
    torch.npusim.empty_cache()
    graph.replay()
    assert y[0].item() == 4
    assert all(bool((other == 7).all()) for other in others)


def test_a_replay_costs_one_launch(side):  # (rule C7)
    x = torch.ones(64, device=DEVICE)

    def work():
        y = x
        for _ in range(50):
            y = y + 1
        return y

    graph, _ = captured(work)
    torch.npusim.synchronize()
    with timeline.record() as made:
        graph.replay()
    assert len(made.commands()) == 50
    assert made.end_ns - made.begin_ns == made.rates.launch_latency_ns
    assert made.replay().span_ns == made.span_ns


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta",
                                  "RMSprop", "Rprop"])  # fmt: skip
def test_an_optimizer_must_be_capturable(name):
    weight = torch.ones(4, device=DEVICE, requires_grad=True)
    weight.grad = torch.ones(4, device=DEVICE)
    optimizer = getattr(torch.optim, name)([weight])
    words = f"Attempting NPUSIM graph capture of step.. for an instance of {name} but"
    with pytest.raises(RuntimeError, match=words):
        captured(optimizer.step)
    optimizer = getattr(torch.optim, name)([weight], capturable=True)
    optimizer.step()
    captured(optimizer.step)


def test_a_compiled_step_is_captured_without_being_compiled_anew():
    weight = torch.ones(4, device=DEVICE, requires_grad=True)
    weight.grad = torch.ones(4, device=DEVICE)
    optimizer = torch.optim.Adam([weight], capturable=True)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for _ in range(2):
        step()
    with torch._dynamo.config.patch(error_on_recompile=True):
        graph, _ = captured(step)
    eager = torch.ones(4, device=DEVICE, requires_grad=True)
    eager.grad = torch.ones(4, device=DEVICE)
    again = torch.optim.Adam([eager], capturable=True)
    for _ in range(4):
        again.step()
    graph.replay()
    graph.replay()
    assert torch.equal(weight, eager)
    torch._dynamo.reset()


@pytest.mark.parametrize("value", [torch.ones(4), torch.arange(3), torch.tensor(1.5)])
def test_printing_a_tensor_is_refused_in_words_of_its_own(value):
    x = value.to(DEVICE)
    with pytest.raises(RuntimeError, match=REFUSED + ".*[Pp]rint"):
        captured(lambda: str(x))


def test_inputs_that_were_freed_are_told_on_request(races_off):
    def work(x, y):
        return torch.cat([x * 2, y]).sum()

    x, y = torch.ones(4, device=DEVICE), torch.ones(4, device=DEVICE)
    graph, total = captured(partial(work, x, y), check_input_liveness=True)
    graph.replay()
    view = y[1:]
    del y
    graph.replay()  # somebody has its memory
    assert total.item() == 12
    del x
    with pytest.raises(RuntimeError, match=r"dead tensor.*Float \[4\] that aten::mul"):
        graph.replay()
    del view
    with pytest.raises(RuntimeError, match=r"aten::cat"):
        graph.replay()
    x = torch.ones(4, device=DEVICE)
    graph, total = captured(lambda x=x: (x * x).sum(), check_input_liveness=True)
    graph.replay()  # it has the memory of one that is given twice once
    x, y = torch.ones(4, device=DEVICE), torch.ones(4, device=DEVICE)
    graph, total = captured(partial(work, x, y))
    del x, y
    graph.replay()  # unasked the graph keeps them
    assert total.item() == 12


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: torch.npusim.synchronize(),
        lambda x: torch.npusim.current_stream().synchronize(),
        lambda x: torch.npusim.current_stream().query(),
        lambda x: x.copy_(torch.ones(4)),
        lambda x: torch.ones(4).to(DEVICE, non_blocking=True),
        lambda x: torch.nonzero(x),
        lambda x: x[x > 0],
        lambda x: bool(x[0] > 0),
    ],
    ids=["item", "cpu", "synchronize", "stream", "query", "copy", "to", "nonzero", "mask", "bool"],
)
def test_what_needs_the_host_is_refused_and_leaves_nothing(work):
    x = torch.ones(4, device=DEVICE)
    torch.npusim.synchronize()
    allocated, seed = torch.npusim.memory_allocated(), torch.npusim.get_rng_state()

    def fails():
        x.mul_(5)
        torch.rand(4, device=DEVICE)
        work(x)

    graph = torch.npusim.NPUSIMGraph()
    with pytest.raises(RuntimeError, match=REFUSED), torch.npusim.graph(graph):
        fails()
    assert not torch.npusim.is_current_stream_capturing()
    assert x.tolist() == [1, 1, 1, 1]
    assert torch.npusim.memory_allocated() == allocated
    assert torch.equal(torch.npusim.get_rng_state(), seed)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with torch.npusim.graph(graph):  # it can be used again
        y = x + 1
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]


def test_an_error_that_is_swallowed_invalidates_the_capture(side):
    x = torch.ones(4, device=DEVICE)
    graph = torch.npusim.NPUSIMGraph()
    with torch.npusim.stream(side):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match=REFUSED):
            x.sum().item()
        with pytest.raises(RuntimeError, match="operation failed due to a previous error"):
            graph.capture_end()
    assert not torch.npusim.is_current_stream_capturing()


def test_an_error_of_the_users_own_comes_through():
    graph = torch.npusim.NPUSIMGraph()
    x = torch.ones(4, device=DEVICE)
    with pytest.raises(IndexError), torch.npusim.graph(graph):
        x[9]
    assert torch.ones(4, device=DEVICE).sum().item() == 4


def test_copies_from_pinned_memory_read_it_at_each_replay():
    pinned = torch.ones(4).pin_memory()
    x = torch.zeros(4, device=DEVICE)
    graph, _ = captured(lambda: x.copy_(pinned, non_blocking=True))
    pinned.fill_(9)
    graph.replay()
    assert x.tolist() == [9] * 4


def test_the_default_stream_cannot_be_captured():
    with pytest.raises(RuntimeError, match=r"^Graphs must be captured on"):
        torch.npusim.NPUSIMGraph().capture_begin()


def test_the_stream_knows_that_it_is_being_captured(side):
    assert not torch.npusim.is_current_stream_capturing()
    with torch.npusim.graph(torch.npusim.NPUSIMGraph(), stream=side):
        assert torch.npusim.is_current_stream_capturing()
        assert torch.accelerator.current_stream().is_capturing()
        assert side.is_capturing()
        with torch.npusim.stream(torch.npusim.default_stream()):
            assert not torch.npusim.is_current_stream_capturing()
            assert not torch.accelerator.current_stream().is_capturing()
    assert not side.is_capturing()
    assert not torch.npusim.is_current_stream_capturing()


def test_captures_do_not_nest():
    graph = torch.npusim.NPUSIMGraph()
    inner = torch.npusim.NPUSIMGraph()
    with pytest.raises(RuntimeError, match="being captured already"), torch.npusim.graph(graph):
        inner.capture_begin()


def test_a_graph_is_captured_once_until_it_is_reset(side):
    x = torch.ones(4, device=DEVICE)
    graph, _ = captured(lambda: x + 1)
    with torch.npusim.stream(side):
        with pytest.raises(RuntimeError, match="call reset"):
            graph.capture_begin()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_the_capture_ends_on_its_stream(side):
    graph = torch.npusim.NPUSIMGraph()
    with torch.npusim.stream(side):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="another stream"):
        graph.capture_end()


def test_side_streams_fork_and_join(side):
    x = torch.ones(1 << 16, device=DEVICE)

    def work():
        main = torch.npusim.current_stream()
        side.wait_stream(main)
        with torch.npusim.stream(side):
            y = x * 2
        z = x + 1
        main.wait_stream(side)
        return y + z

    graph, total = captured(work)
    torch.npusim.synchronize()
    with timeline.record() as made:
        graph.replay()
    assert total[0].item() == 4
    streams = [row.stream for row in made.commands()]
    assert streams == [side.stream_id, 0, 0]
    first, second, third = made.commands()
    assert second.start_ns < first.end_ns <= third.start_ns
    assert made.replay().span_ns == made.span_ns


def test_a_side_stream_must_be_joined(side):
    x = torch.ones(16, device=DEVICE)

    def work():
        side.wait_stream(torch.npusim.current_stream())
        with torch.npusim.stream(side):
            x * 2

    with pytest.raises(RuntimeError, match="does not wait"):
        captured(work)


def test_events_from_outside_are_refused(side):
    event = torch.npusim.Event()
    event.record()
    with pytest.raises(RuntimeError, match="outside of the capture"):
        captured(lambda: torch.npusim.current_stream().wait_event(event))


def test_a_stream_that_is_not_forked_runs_at_once(side):
    x = torch.ones(16, device=DEVICE)

    def work():
        with torch.npusim.stream(side):
            x.add_(1)
        return x * 2

    _, y = captured(work)
    side.synchronize()
    assert x[0].item() == 2
    assert y[0].item() == 0


def test_another_device_is_not_captured():
    other = torch.ones(16, device="npusim:1")
    x = torch.ones(16, device=DEVICE)

    def work():
        other.add_(1)
        return x * 2

    _, y = captured(work)
    assert other[0].item() == 2
    assert y[0].item() == 0


def test_what_is_no_operator_is_refused():
    x = torch.ones(16, device=DEVICE)

    def work():
        x.untyped_storage().resize_(1024)

    with pytest.raises(RuntimeError, match="is not an operator"):
        captured(work)


def test_graphs_share_a_pool():
    x = torch.ones(1 << 14, device=DEVICE)
    pool = torch.npusim.graph_pool_handle()
    first, y = captured(lambda: x + 1, pool=pool)
    second, z = captured(lambda: y * 2, pool=first.pool())
    assert first.pool() == second.pool() == pool
    first.replay()
    second.replay()
    assert z[0].item() == 4
    with pytest.raises(RuntimeError, match="no memory pool"):
        captured(lambda: x + 1, pool=(0, 10**9))


def test_a_later_capture_has_the_memory_that_was_freed_since():
    x = torch.ones(1 << 14, device=DEVICE)
    first, results = captured(lambda: [x + 1, x + 2])
    second, y = captured(lambda: results[1] + 3, pool=first.pool())
    address = results.pop().data_ptr()
    third, z = captured(lambda: results[0] + 4, pool=first.pool())
    assert z.data_ptr() == address
    for graph in (first, second, third):
        graph.replay()
    assert (y[0].item(), z[0].item()) == (6, 6)
    for graph in (first, third, second):
        graph.replay()
    assert y[0].item() == 9  # the third left six there


def test_a_pool_of_a_handle_lives_as_long_as_its_graphs():
    pool = torch.npusim.graph_pool_handle()

    def of_pool():
        segments = torch.npusim.memory._snapshot()["segments"]
        return [segment for segment in segments if segment["segment_pool_id"] == pool]

    x = torch.ones(1 << 14, device=DEVICE)
    for _ in range(2):  # the handle serves again
        graph, y = captured(lambda: x + 1, pool=pool)
        assert of_pool()
        del graph, y
        torch.npusim.empty_cache()
        assert not of_pool()


def test_an_empty_capture_warns():
    with pytest.warns(UserWarning, match="graph is empty"):
        captured(lambda: None)


def test_memory_comes_back_when_graph_and_results_are_gone():
    x = torch.ones(1 << 18, device=DEVICE)
    torch.npusim.empty_cache()
    before = torch.npusim.memory_reserved()
    graph, y = captured(lambda: x + 1)
    assert torch.npusim.memory_reserved() > before
    del graph, y
    torch.npusim.empty_cache()
    assert torch.npusim.memory_reserved() == before


def test_another_thread_may_wait_unless_the_mode_is_global(side):
    import threading

    outcome = []

    def wait():
        try:
            torch.npusim.default_stream().synchronize()
            outcome.append("waited")
        except RuntimeError as error:
            outcome.append(str(error))

    for mode in ("thread_local", "relaxed"):
        graph = torch.npusim.NPUSIMGraph()
        with torch.npusim.graph(graph, stream=side, capture_error_mode=mode):
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(60)
    assert outcome == ["waited"] * 2
    graph = torch.npusim.NPUSIMGraph()
    with torch.npusim.stream(side):
        graph.capture_begin()
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(60)
        with pytest.raises(RuntimeError, match="previous error"):
            graph.capture_end()
        assert REFUSED in outcome[2]
        with pytest.raises(ValueError, match="expected one of"):
            graph.capture_begin(capture_error_mode="lax")


def test_gradients_accumulate_into_static_memory():
    weight = torch.ones(4, device=DEVICE, requires_grad=True)
    weight.grad = torch.zeros(4, device=DEVICE)
    graph, _ = captured(lambda: (weight * 3).sum().backward())
    assert weight.grad.tolist() == [0] * 4
    graph.replay()
    graph.replay()
    assert weight.grad.tolist() == [6] * 4


def test_a_picture(tmp_path):
    x = torch.ones(4, device=DEVICE)
    graph = torch.npusim.NPUSIMGraph()
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        graph.debug_dump(tmp_path / "no.dot")
    graph.enable_debug_mode()
    with torch.npusim.graph(graph):
        (x + 1).sum()
    graph.debug_dump(tmp_path / "graph.dot")
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    assert "aten::add.Tensor" in text
    assert "->" in text


def test_profiles_and_races_see_each_node(side):
    x = torch.ones(1 << 12, device=DEVICE)
    graph, y = captured(lambda: (x + 1) * 2)
    activities = [torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as found:
        graph.replay()
    names = [event.name for event in found.events()]
    assert {"aten::add.Tensor", "aten::mul.Tensor"} <= set(names)
    torch.npusim.synchronize()
    with races.record() as recorded:
        graph.replay()
        with torch.npusim.stream(side):
            y.add_(1)
    assert [race.missing for race in recorded.races] == ["wait_stream"]


def test_nobody_hears_of_a_capture():
    x = torch.ones(8, device=DEVICE)
    with timeline.record() as made:
        captured(lambda: x + 1)
    assert made.commands() == []


def test_the_accelerators_graph_is_the_same():
    x = torch.ones(4, device=DEVICE)
    graph, stream = torch.accelerator.Graph(), torch.Stream(DEVICE)
    with stream, graph:
        y = x * 3
    assert y.tolist() == [0] * 4
    graph.replay()
    assert y.tolist() == [3] * 4
    graph.reset()


def test_graphed_callables_train_as_their_originals():
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 4))
        return model.to(DEVICE)

    inputs = [torch.randn(4, 8).to(DEVICE) for _ in range(5)]

    def train(model, call):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for x in inputs:
            optimizer.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    eager = build()
    expected = train(eager, eager)
    model = build()
    graphed = torch.npusim.make_graphed_callables(model, (torch.randn(4, 8, device=DEVICE),))
    assert graphed is model
    assert train(model, graphed) == expected
    model.eval()
    assert torch.equal(model(inputs[0]), eager.eval()(inputs[0]))


def test_graphed_functions_give_gradients_of_their_inputs():
    x = torch.ones(4, device=DEVICE, requires_grad=True)
    double, square = torch.npusim.make_graphed_callables(
        (lambda a: a * 2, lambda a: a * a), ((x,), (x,))
    )
    y = torch.full((4,), 3.0, device=DEVICE, requires_grad=True)
    square(double(y)).sum().backward()
    assert y.grad.tolist() == [24] * 4


# The engine's events of a backward are short-lived, and leave their addresses to later ones.
GRAPHED = """
import torch, torch_npusim
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("npusim")
x = torch.randn(4, 8, device="npusim")
graphed = torch.npusim.make_graphed_callables(model, (x,))
for _ in range(3):
    graphed(x).square().mean().backward()
print("done")
"""


def test_an_event_at_the_address_of_another_is_another():
    environment = os.environ | {"MALLOC_CHECK_": "3", "LD_PRELOAD": "libc_malloc_debug.so.0"}
    ran = python("-c", GRAPHED, env=environment, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


def test_garbage_is_collected_before_a_capture_only_if_asked():
    """As torch.cuda.graph does: a collection costs more than most captures."""
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append((phase, info["generation"])))
    try:
        for asked in (False, True):
            collections.clear()
            with torch.compiler.config.patch(force_cudagraph_gc=asked):
                captured(lambda: torch.ones(4, device=DEVICE) * 2)
            assert (("stop", 2) in collections) == asked
    finally:
        gc.callbacks.pop()
