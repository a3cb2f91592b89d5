# SPDX-License-Identifier: BSD-3-Clause
"""The instruments of torch_npusim.inside, but for the hops of dispatch(): facts, text, pages."""

import re
import typing

import pytest
import torch
from expecttest import assert_expected_inline
from repo.sources import ROOT

from torch_npusim import inside
from torch_npusim.inside._report import WIDTH
from torch_npusim.sim.timeline import record

DEVICES = ("cpu", "npusim")


def fits(report):
    """Returns the text of a report, each line of which fits a terminal."""
    text = str(report)
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert "<pre>" in report.to_html()
    return text


def network(device):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    return net.to(device)


def test_nothing_is_imported_before_it_is_used(run_script):
    done = run_script(
        """
        import sys
        import torch_npusim
        assert not [name for name in sys.modules if name.startswith("torch_npusim.inside")]
        from torch_npusim import inside
        assert not [name for name in sys.modules if name.startswith("torch_npusim.inside._")]
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_module_lists_its_instruments_before_they_are_imported():
    assert dir(inside) == sorted(inside.__all__)


def test_a_report_at_the_prompt_is_its_text_and_a_picture_is_no_page_of_svg():
    report = inside.memory(x=torch.ones(3))
    assert repr(report) == report.text()
    picture = report.picture()
    assert "picture.svg" in repr(picture)
    assert len(repr(picture)) < WIDTH
    assert picture._repr_svg_() == str(picture)
    assert str(picture).startswith("<svg")
    for told in (inside.why(torch.sin, torch.ones(3)), inside.registration("aten::sin")):
        assert repr(told) == str(told)


# --- dispatch


@pytest.mark.parametrize("device", DEVICES)
def test_dispatch_nests_calls_and_names_kernels(device):
    x, w = torch.ones(2, 4, device=device), torch.ones(3, 4, device=device)
    report = inside.dispatch(torch.nn.functional.linear, x, w)
    [linear] = report.calls
    assert linear.name == "aten::linear"
    assert [call.name for call in linear.calls] == ["aten::t", "aten::matmul"]
    key = {"cpu": "CPU", "npusim": "PrivateUse1"}[device]
    [mm] = report.find("aten::mm")
    assert [hop.key for hop in mm.hops][:2] == [f"Autograd{key}", key]
    assert {command.name for command in report.commands()} == (
        {"aten::mm"} if device == "npusim" else set()
    )
    fits(report)


def test_dispatch_says_which_route_npusim_took():
    x = torch.ones(4, 4, device="npusim")
    routes = {
        name: next(c.routes for c in inside.dispatch(function, x).walk() if c.routes)
        for name, function in {
            "dense": torch.sin,
            "typed": lambda x: torch.flip(x, (0,)),
            "boxed": lambda x: torch.logcumsumexp(x, 0),
        }.items()
    }
    assert routes == {"dense": ("i",), "typed": ("ii",), "boxed": ("iii",)}


def test_dispatch_keeps_the_exception():
    x = torch.ones(3, device="npusim")
    report = inside.dispatch(torch.add, x, torch.ones(3))
    assert isinstance(report.error, RuntimeError)
    assert [call.name for call in report.walk() if call.raised] == ["aten::add.Tensor"]
    assert "raised RuntimeError" in fits(report)


def test_dispatch_sees_casts_of_autocast_and_the_backward_pass():
    x = torch.ones(4, 4, device="npusim", requires_grad=True)

    def step():
        with torch.autocast("npusim", dtype=torch.bfloat16):
            y = x @ x
        y.sum().backward()

    report = inside.dispatch(step)
    cast = next(c for c in report.find("aten::matmul") if c.hops[0].key == "AutocastPrivateUse1")
    assert {call.name for call in cast.calls} == {"aten::to.dtype", "aten::matmul"}
    assert [c.name for c in report.walk() if c.backward and "Mm" in c.name] == ["MmBackward0"]


def test_text_of_dispatch():
    x = torch.ones(3, device="npusim")
    text = re.sub(r":\d+\]", "]", fits(inside.dispatch(torch.sin, x)))
    text = re.sub(r"VariableType_\d+", "VariableType_N", text)
    assert_expected_inline(
        text,
        """\
o  observed: announced by the dispatcher (RecordFunction), or recorded by the device
d  derived: from the key sets and the operator's dispatch table
o  aten::sin(self: float32[3] npusim:0)
d      not AutocastPrivateUse1 (excluded by the thread)
d      1. AutogradPrivateUse1: autograd: records a node, then redispatches
         [torch/csrc/autograd/generated/VariableType_N.cpp]
d      not ADInplaceOrView (fallthrough), BackendSelect (fallthrough)
d      2. PrivateUse1: npusim [csrc/aten/pointwise_unary.cpp]
o      route i
o      > command aten::sin on npusim:0 stream 0: 24 bytes, 3 operations, 2000 ns
o  commands on the device: 1, modelled time: 2000 ns""",
    )


# --- graph


def models():
    """Yields (name, number of leaves, function that makes a scalar) of thirty small models."""
    n = torch.nn
    x, image = torch.ones(2, 4), torch.ones(1, 2, 8, 8)
    series, tokens = torch.ones(2, 5, 4), torch.ones(2, 5, dtype=torch.long)
    modules = {
        "linear": (n.Linear(4, 3), x), "bilinear": (n.Bilinear(4, 4, 2), (x, x)),
        "conv1d": (n.Conv1d(5, 3, 2), series), "conv2d": (n.Conv2d(2, 3, 3), image),
        "transposed": (n.ConvTranspose2d(2, 3, 3), image), "prelu": (n.PReLU(), x),
        "batchnorm": (n.BatchNorm1d(4), x), "layernorm": (n.LayerNorm(4), x),
        "groupnorm": (n.GroupNorm(2, 2), image), "rmsnorm": (n.RMSNorm(4), x),
        "instancenorm": (n.InstanceNorm2d(2, affine=True), image),
        "embedding": (n.Embedding(4, 3), tokens), "bag": (n.EmbeddingBag(4, 3), tokens),
        "rnn": (n.RNN(4, 3), series), "lstm": (n.LSTM(4, 3), series), "gru": (n.GRU(4, 3), series),
        "lstmcell": (n.LSTMCell(4, 3), x), "attention": (n.MultiheadAttention(4, 2), (series,) * 3),
        "encoder": (n.TransformerEncoderLayer(4, 2, 8), series),
        "decoder": (n.TransformerDecoderLayer(4, 2, 8), (series, series)),
    }  # fmt: skip
    for activation in ("ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "Softplus", "ELU", "Mish",
                       "Hardswish", "LeakyReLU"):  # fmt: skip
        net = n.Sequential(n.Linear(4, 8), getattr(n, activation)(), n.Linear(8, 1))
        modules[activation] = (net, x)
    for name, (module, inputs) in modules.items():
        yield name, module, inputs if isinstance(inputs, tuple) else (inputs,)


@pytest.mark.parametrize(
    ("name", "module", "inputs"), [pytest.param(*m, id=m[0]) for m in models()]
)
def test_graph_has_every_parameter_and_runs_in_the_engines_order(name, module, inputs):
    module = module.to("npusim")
    made = module(*(one.to("npusim") for one in inputs))
    made = made[0] if isinstance(made, tuple) else made
    loss = made.sum()
    report = inside.graph(loss, module, backward=True)
    with_gradient = {
        key for key, parameter in module.named_parameters() if parameter.grad is not None
    }
    assert set(report.leaves) == with_gradient
    # What another tool sees: autograd's own walk over the same edges.
    reached = {loss.grad_fn}
    waiting = [loss.grad_fn]
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in reached:
                reached.add(following)
                waiting.append(following)
    assert len(report.nodes) == len(reached)
    assert sorted(node.number for node in report.executed) == [n.number for n in report.nodes]
    for node in report.nodes:  # a node runs after all that lead to it
        for edge in node.edges:
            if edge is not None:
                assert node.order < report.nodes[edge[0]].order
    fits(report)


@pytest.mark.parametrize("device", DEVICES)
def test_graph_finds_what_an_in_place_operation_spoilt(device):
    w = torch.ones(3, device=device, requires_grad=True)
    y = w * 2
    loss = y.sin().sum()
    assert inside.graph(loss).stale == []
    y.add_(1)
    [(node, saved)] = inside.graph(loss).stale
    assert (node.name, saved.name, saved.version_saved, saved.version) == (
        "SinBackward0",
        "self",
        0,
        1,
    )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_graph_says_what_is_freed_and_who_runs_it():
    w = torch.ones(3, device="npusim", requires_grad=True)
    loss = w.exp().sum()
    w.register_hook(lambda gradient: gradient)
    before = inside.graph(loss)
    assert before.leaves == {"w": 1}
    assert [node.hooks for node in before.nodes if node.leaf] == [1]
    assert [node.adds for node in before.nodes] == ["", "", "float32[3]"]
    assert "AccumulateGrad of w: float32[3];" in before.text()
    after = inside.graph(loss, backward=True, retain_graph=False)
    assert [node.freed for node in after.nodes if node.name == "ExpBackward0"] == [True]
    assert {node.ran_on for node in after.executed} == {"of npusim:0"}


def test_graph_says_on_which_stream_a_node_ran():
    w = torch.ones(3, device="npusim", requires_grad=True)
    side = torch.npusim.Stream()
    side.wait_stream(torch.npusim.current_stream())
    with torch.npusim.stream(side):
        y = w.exp()
    torch.npusim.current_stream().wait_stream(side)
    loss = y.sum()
    before, after = inside.graph(loss), inside.graph(loss, backward=True)
    assert {node.stream for node in before.nodes} == {None}
    streams = {node.name: node.stream for node in after.nodes}
    assert streams["SumBackward0"] == 0
    assert streams["ExpBackward0"] == side.stream_id != 0
    assert f"stream {side.stream_id}" in after.text()
    on_host = torch.ones(3, requires_grad=True).exp().sum()
    assert {node.stream for node in inside.graph(on_host, backward=True).nodes} == {None}


def test_retained_counts_a_storage_once_and_names_the_line():
    net = network("npusim")
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        loss = net(torch.ones(3, 4, device="npusim")).sum()
    report = inside.retained(loss, net)
    assert report.bytes == 3 * 8 * 4 + 3 * 4 * 4
    shared = report.storages[0]
    assert [name for _, name in shared.by] == ["mat1", "result"]
    assert "test_instruments.py" in shared.line
    assert [one.leaf for one in report.storages if one.leaf] == ["2.weight"]
    fits(report)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        made = x * 2
        context.save_for_backward(x, made)
        return made

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


def test_graph_has_what_a_function_in_python_saves():
    w = torch.ones(3, device="npusim", requires_grad=True)
    made = Doubled.apply(w)
    loss = made.sum()

    def saved():
        return next(node for node in inside.graph(loss).nodes if node.name == "DoubledBackward")

    assert [(one.name, one.shape) for one in saved().saved] == [("tensors", (3,))] * 2
    assert inside.retained(loss).bytes == 12  # w is a leaf
    made.detach().add_(1)
    assert [one.name for _, one in inside.graph(loss).stale] == ["tensors"]
    after = inside.graph(Doubled.apply(w).sum(), backward=True, retain_graph=False)
    assert [node.freed for node in after.nodes if node.name == "DoubledBackward"] == [True]


def test_graph_of_a_module_with_a_backward_hook():
    layer = torch.nn.Linear(3, 2, device="npusim")
    layer.register_full_backward_hook(lambda module, into, of: None)
    report = inside.graph(layer(torch.ones(1, 3, device="npusim")).sum(), layer)
    assert "BackwardHookFunctionBackward" in {node.name for node in report.nodes}
    fits(report)


def test_a_tensor_without_a_graph_is_refused():
    with pytest.raises(ValueError, match="has no graph"):
        inside.graph(torch.ones(3))


# --- memory


def test_memory_of_views():
    a = torch.arange(64.0, device="npusim").reshape(8, 8)
    report = inside.memory(a=a, turned=a.t(), column=a[:, 1], far=torch.ones(2, device="npusim"))
    first, second = report.storages
    whole, turned, column = first.views
    assert (whole.row_sectors, whole.column_sectors) == (1, 8)
    assert (turned.row_sectors, turned.row_least) == (8, 1)
    assert (column.offset, column.strides, column.bytes) == (1, (8,), 32)
    assert first.aliases() == [("a", "turned"), ("a", "column"), ("turned", "column")]
    assert second.block.padding == second.block.bytes - 8
    assert "<svg" in report.picture()
    fits(report)


def test_text_of_memory():
    base = torch.zeros(20)
    lines = fits(inside.memory(row=base[:8], odd=base[1::2])).splitlines()
    assert_expected_inline(
        "\n".join(lines[2:4] + lines[-1:]),
        """\
  row  ################........................  # a column is 2 B
  odd  ..##..##..##..##..##..##..##..##..##..##  # a column is 2 B
  row and odd share bytes""",
    )


def test_memory_refuses_what_is_no_strip():
    with pytest.raises(ValueError, match="no dense tensor"):
        inside.memory(torch.eye(3).to_sparse())


# --- registration


def test_registration_finds_the_errors_of_authors():
    library = torch.library.Library("inside_test", "FRAGMENT")
    library.define("both(Tensor x) -> Tensor")
    library.impl("both", lambda x: x, "CompositeImplicitAutograd")
    library.impl("both", lambda x: x, "PrivateUse1")
    library.define("nowhere(Tensor x) -> Tensor")
    library.impl("nowhere", lambda x: x, "AutogradCPU")
    library.define("of_cuda(Tensor x) -> Tensor")
    library.impl("of_cuda", lambda x: x, "CUDA")
    other = torch.library.Library("inside_test", "IMPL")
    other.impl("misspelt", lambda x: x, "CPU")
    try:
        found = {
            name: inside.registration(f"inside_test::{name}").problems
            for name in ("both", "nowhere", "misspelt", "of_cuda")
        }
        assert "CUDA alone has a kernel" in found["of_cuda"][0]
        assert "has no formula" in found["both"][0]
        assert "no device has a kernel" in found["nowhere"][0]
        assert "nobody has defined the operator" in found["misspelt"][0]
        with pytest.raises(ValueError, match="has other operators"):
            inside.registration("inside_test::absent")
    finally:
        other._destroy()
        library._destroy()


def test_registration_names_files_of_npusim_and_of_core():
    report = inside.registration("aten::add.Tensor")
    places = {one.key: one.kernel.short_place for one in report.operators[0].registrations}
    assert places["PrivateUse1"].startswith("csrc/aten/")
    assert "RegisterCPU" in places["CPU"]
    assert report.problems == []
    fits(report)


# --- why


def test_why():
    x = torch.ones(4, 6, device="npusim")
    one = torch.ones(4, device="npusim")

    def cast():
        with torch.autocast("npusim", dtype=torch.bfloat16):
            return x @ x.t()

    found = {
        "mixed": inside.why(torch.add, x, torch.ones(4, 6)),
        "fallback": inside.why(torch.logcumsumexp, x, 0),
        "wait": inside.why(lambda: x.sum().item()),
        "dtype": inside.why(torch.bincount, one),
        "cast": inside.why(cast),
        "contiguous": inside.why(lambda: x.t().reshape(-1)),
        "nothing": inside.why(torch.add, x, 1),
    }
    assert {name: [r.kind for r in report.reasons][:1] for name, report in found.items()} == {
        "mixed": ["mixed devices"], "fallback": ["fallback"], "wait": ["wait"],
        "dtype": ["dtype"], "cast": ["cast"], "contiguous": ["contiguous"], "nothing": [],
    }  # fmt: skip
    assert "TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)" in found["fallback"].reasons[0].remedy
    assert "cpu, npusim:0" in found["mixed"].reasons[0].remedy
    for report in found.values():
        fits(report)


# --- leak


def test_leak_names_site_and_keeper():
    kept = []
    with inside.leak() as report:
        for _ in range(3):
            kept.append(torch.ones(1000, device="npusim"))
        torch.ones(5000, device="npusim")  # let go
    [site] = report.sites
    assert (site.blocks, site.bytes) == (3, 12000)
    assert "test_leak_names_site_and_keeper" in site.place
    assert any("'kept'" in line for line in site.keepers)
    fits(report)


# --- compile


def test_compile_says_that_no_kernel_of_npusim_ran():
    assert inside.compile(lambda x: x + 1, torch.ones(3)).stages()[-1][1] == "none ran on npusim"


def test_compile_shows_every_stage():
    x = torch.ones(3, device="npusim", requires_grad=True)

    def function(x):
        return (x * 2).sin().sum()

    stages = inside.compile(function, x)
    assert "LOAD_FAST" in stages.bytecode
    assert len(stages.graphs) == len(stages.forward) == 1
    assert "aten.sin.default" in stages.forward[0]
    assert stages.report.kernels
    assert "return (x * 2).sin().sum()" in stages.graphs[0]
    fits(stages)


def test_a_graph_of_a_checkpoint_is_shown_without_running_it_again():
    runs = []

    def function(x):
        runs.append(1)
        return x.sin().exp()

    x = torch.ones(3, device="npusim", requires_grad=True)
    loss = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False).sum()
    assert [node.saved for node in inside.graph(loss).nodes] == [[]] * 4
    assert inside.retained(loss).bytes == 0
    assert len(runs) == 1
    loss.backward()
    assert len(runs) == 2


def test_leak_asks_no_fake_tensor_for_an_address(recwarn):
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(3, device="npusim", requires_grad=True).exp()
    kept = []
    with inside.leak() as found:
        kept.append(torch.ones(100, device="npusim"))
    assert found.sites[0].bytes == 400
    assert fake.grad_fn is not None
    assert [one for one in recwarn if "FakeTensor" in str(one.message)] == []


# --- timeline


def two_streams():
    side = torch.npusim.Stream()
    x = torch.ones(1 << 20, device="npusim")
    side.wait_stream(torch.npusim.current_stream())
    with torch.npusim.stream(side):
        x.mul_(2)
    torch.npusim.current_stream().wait_stream(side)
    return x.sum()


def test_timeline_has_a_lane_per_stream_and_a_mark_per_command():
    report = inside.timeline(two_streams)
    assert report.value.item() == 2 << 20
    main, side = report.lanes
    assert [row.name for row in main.commands] == ["aten::fill_.Scalar", "aten::sum.dim_IntList"]
    assert [row.name for row in side.commands] == ["aten::mul_.Tensor"]
    first, last = main.commands
    assert report.span_ns == last.end_ns - first.start_ns
    text = fits(report).splitlines()
    assert text[0].startswith("3 commands in ")
    marks = [{place for place, mark in enumerate(line) if mark == "#"} for line in text[1:]]
    assert min(marks[0]) < min(marks[1]) <= max(marks[1]) <= max(marks[0])
    picture = report.picture()
    assert picture.count("<title>") == 3
    assert "aten::mul_.Tensor" in picture


def test_timeline_takes_what_was_recorded_and_says_when_there_is_nothing():
    with record() as timeline:
        two_streams()
    assert len(inside.timeline(timeline).lanes) == 2
    nothing = inside.timeline(lambda: 7)
    assert (nothing.text(), nothing.picture(), nothing.value) == (
        "no command reached a device", "", 7,
    )  # fmt: skip


# --- pictures


def test_dispatch_draws_a_row_per_call_and_its_kernels():
    x = torch.ones(3, device="npusim", requires_grad=True)
    report = inside.dispatch(torch.sin, x)
    drawn = re.findall(r">([^<]+)</text>", report.picture())
    assert drawn == ["sin", *[hop.key for hop in report.calls[0].hops], "command, stream 0"]
    assert inside.dispatch(torch.sin, torch.ones(3)).picture().count("command,") == 0


def test_compile_draws_the_way_from_a_line_to_a_kernel():
    def doubled(x):
        return (x * 2).sin()

    report = inside.compile(doubled, torch.ones(8, device="npusim"))
    drawn = re.findall(r">([^<]+)</text>", report.picture())
    assert "return (x * 2).sin()" in drawn
    assert {"torch.ops.aten.mul.Tensor", "torch.ops.aten.sin.default"} <= set(drawn)
    assert report.report.kernels[0].name in drawn
    assert report.picture().count("<line") == 2, "both operators end in one kernel"


# --- the page of interfaces


def classes_of(annotation):
    for inner in typing.get_args(annotation) or (annotation,):
        if inner is not annotation:
            yield from classes_of(inner)
        elif getattr(inner, "__module__", "").startswith("torch_npusim.inside."):
            yield inner


def test_each_class_that_an_instrument_returns_is_on_the_page_of_interfaces():
    # `make docs` fails for a class that is missing, and `make test` does not run it.
    page = (ROOT / "docs" / "api" / "inside.md").read_text()
    found = [typing.get_type_hints(getattr(inside, name))["return"] for name in inside.__all__]
    seen = [one for made in found for one in classes_of(made)]
    for one in seen:  # grows
        parts = [made for hint in typing.get_type_hints(one).values() for made in classes_of(hint)]
        seen += [made for made in parts if made not in seen]
    assert len(seen) > 10
    assert [o for o in seen if f"autoclass:: {o.__module__}.{o.__name__}\n" not in page] == []
