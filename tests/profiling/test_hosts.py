# SPDX-License-Identifier: BSD-3-Clause
"""Hosts: the cost of a command by name, by file, and as measured on this machine."""

import itertools
import json

import pytest
import torch
from processes import python

from claims.evidence.step_times import fit, validation
from claims.evidence.step_times.rows import FOLDER
from torch_npusim.cli import calibrate_host, main
from torch_npusim.profiling import record
from torch_npusim.sim import clock, dry_run, specs, timeline
from torch_npusim.sim.host_layers import charged


def test_hosts_have_the_cost_that_published_rows_say():
    found = validation.hosts(fit.Data(FOLDER))
    assert set(found) == set(specs.host_names()) - {"eager", "xeon-8360y", "xeon-vm-16"}
    eager = specs.load_host("eager")
    for name, (factor, rows) in found.items():
        host = specs.load_host(name)
        assert host.dispatch_us == pytest.approx(factor * eager.dispatch_us, abs=0.06)
        assert host.module_us == pytest.approx(factor * eager.module_us, abs=0.06)
        assert f"of {rows} rows" in host.source
    assert specs.load_host("xeon-8360y").source.startswith("no published time")


def test_the_default_is_a_stated_host():
    host = specs.load_host("eager")
    assert host.dispatch_us == specs.classes()["host"]["dispatch_us"]
    assert specs.dispatch_us("eager", "t4") == host.dispatch_us
    assert specs.dispatch_us("eager", "npusim-one") is None
    assert specs.dispatch_us("spec", "t4") is None
    assert specs.dispatch_us("epyc-7742", "t4") < host.dispatch_us
    assert specs.dispatch_us("12.5", "t4") == 12.5


def test_the_measurement_is_a_host(tmp_path, capsys, monkeypatch):
    measured = {"forward": 10.0, "backward": 20.0, "module": 3.0, "all": 16.0}
    monkeypatch.setattr(calibrate_host, "measured_us", lambda: dict(measured))
    path = str(tmp_path / "mine.toml")
    assert main(["calibrate-host", "--out", path]) == 0
    told = capsys.readouterr().out
    assert "16.0 us for a command (forward 10.0 us, backward 20.0 us, module 3.0 us)" in told
    assert specs.load_host(path).dispatch_us == 16
    assert specs.load_host(path).module_us == 3
    assert main(["calibrate-host", "--out", str(tmp_path / "mine")]) == 2
    assert "files that end in .toml" in capsys.readouterr().err
    assert main(["calibrate-host", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dispatch_us"] == 16


def test_the_measurement_is_of_commands():
    found = calibrate_host.measured_us()
    assert min(found["forward"], found["backward"]) < found["all"]
    assert 0.1 < found["all"] < 10_000
    assert 0.1 < found["module"] < found["forward"] + found["backward"]


def test_times_of_the_host_are_shared_among_modules_and_commands(monkeypatch):
    layers = calibrate_host._LAYERS
    # Of a round: the calls of one module more than there are layers, the forward and the backward.
    round_ns = [0, 2_000 * (layers + 1), 0, 40_000_000, 90_000_000]
    clock = itertools.accumulate(itertools.cycle(round_ns))
    monkeypatch.setattr(calibrate_host.time, "perf_counter_ns", lambda: next(clock))
    found = calibrate_host.measured_us()
    commands = 3 * layers + 1  # a product, a norm and an activation of each layer, and the sum
    calls_us = 2 * (4 * layers + 1)  # each layer is a Sequential of three modules
    assert found["module"] == 2
    assert found["forward"] == pytest.approx((40_000 - calls_us) / commands)
    backward = 90_000 / found["backward"]
    assert backward == pytest.approx(round(backward))
    whole = found["all"] * (commands + backward)
    assert whole == pytest.approx(90_000 + 40_000 - calls_us)


@pytest.mark.parametrize("name", ["xeon-8360z", "-1", "nowhere.toml"])
def test_an_unknown_host_says_what_is_known(name):
    with pytest.raises(
        ValueError, match=r"epyc-7742, xeon-8360y, xeon-e5-2698v4, xeon-vm-16 or a path"
    ):
        specs.load_host(name)


@pytest.mark.parametrize(
    "text", ["dispatch_us = 3", 'dispatch_us = [3, "x"]\n[sources]', "dispatch_us = ["]
)
def test_a_wrong_file_says_how_a_host_is_written(text, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"a host is `dispatch_us = \[microseconds"):
        specs.load_host(str(path))


def test_profiles_name_their_host(tmp_path):
    script = tmp_path / "small.py"
    script.write_text("import torch\ntorch.ones(8, device='npusim') + 1\n")
    words = ("-m", "torch_npusim", "profile", script)
    done = python(*words, variables={"NPUSIM_SPEC": "a100-80-sxm"})
    cost = specs.load_host("eager").dispatch_us
    assert f"a command costs the host {cost:g} us: the host of the published figures" in done.stdout
    assert "the device idles, so that nothing is promised" in done.stdout


def test_calls_of_modules_cost_the_host_unless_launches_are_free():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to("npusim")
    x = torch.ones(2, 4, device="npusim")
    with record() as plain:
        model(x)
    with record(module_us=50.0) as charged:
        model(x)
    spans = [made.timeline.replay().span_ns for made in (plain, charged)]
    assert charged.timeline.span_ns == spans[1] == spans[0] + 3 * 50_000
    free = [made.timeline.replay(launches_free=True).span_ns for made in (plain, charged)]
    assert free[0] == free[1]


def test_products_views_and_steps_of_recurrent_layers_cost_a_host_that_says_so(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'dispatch_us = [10, "me"]\nlibrary_us = [4, "me"]\nreduction_us = [5, "me"]\n'
        'call_us = [2, "me"]\nkernel_us = [3, "me"]\n[sources]\nme = "this test"\n'
    )
    host = specs.load_host(str(file))
    assert "4 us for a product beside its command, 5 us for a reduction" in str(host)
    x = torch.ones(4, 4, device="npusim")

    def passed(call):
        with charged(host), timeline.record() as made:
            call()
        assert made.replay().span_ns == made.span_ns
        return [row.end_ns for row in made.rows if row.kind == "host_layer"]

    assert passed(lambda: x @ x) == [4_000]
    assert passed(lambda: x + x) == []
    assert passed(lambda: x.sum()) == [5_000]
    assert passed(lambda: x[0]) == passed(lambda: x.view(16)) == [2_000]
    assert passed(lambda: torch.empty(3, device="npusim")) == [2_000]
    with dry_run(temporaries="cuda"):
        layer = torch.nn.LSTM(8, 8, 2).to("npusim")
        found = passed(lambda: layer(torch.empty(5, 3, 8, device="npusim")))
    assert found.count(3_000 * (5 + 2 - 1)) == 1


def test_what_compiled_graphs_take_costs_a_host_that_says_so(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('dispatch_us = [10, "me"]\ninput_us = [7, "me"]\n[sources]\nme = "this test"\n')
    host = specs.load_host(str(file))
    assert "7 us for a tensor that a compiled graph takes" in str(host)
    x, y = (torch.ones(3, 3, device="npusim", requires_grad=True) for _ in range(2))
    step = torch.compile(lambda: (x * y).sin().sum())
    step().backward()
    with charged(host), timeline.record() as made:
        step().backward()
    # The two factors; then these, which the forward pass has kept, and the gradient.
    passed = [row.end_ns for row in made.rows if row.kind == "host_layer"]
    assert passed == [2 * 7_000, 3 * 7_000]
    branches = torch.compile(
        lambda: torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, y))
    )
    with torch.no_grad():
        branches()
        with charged(host), timeline.record() as made:
            branches()
    passed = [row.end_ns for row in made.rows if row.kind == "host_layer"]
    assert passed == [2 * 7_000]  # the branch is a part of the graph


def test_backward_passes_and_parameters_cost_a_host_that_says_so(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'dispatch_us = [10, "me"]\nbackward_us = [15, "me"]\nmodule_us = [3, "me"]\n'
        'parameter_us = [100, "me"]\n[sources]\nme = "this test"\n'
    )
    host = specs.load_host(str(file))
    assert "15 us for a command of a backward pass, 100 us for a parameter" in str(host)
    model = torch.nn.Linear(4, 4).to("npusim")
    unused = torch.nn.Parameter(torch.ones(2, device="npusim"))
    optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.1)
    x = torch.ones(2, 4, device="npusim")

    def step():
        model(x).sum().backward()
        optimizer.step()

    step()
    with timeline.record() as plain:
        step()
    with charged(host), timeline.record() as made:
        step()
        clock.advance(3_000)  # as long as the call of a module, but the program's own
    backward = [row for row in plain.commands() if row.thread != plain.commands()[0].thread]
    assert 0 < len(backward) < len(plain.commands())
    passed = [row.end_ns for row in made.rows if row.kind == "host_layer"]
    assert passed == [3_000, *[5_000] * len(backward), 200_000]
    assert [row.end_ns for row in made.rows if row.kind == "host_time"] == [3_000]
    assert made.replay().span_ns == made.span_ns
    with timeline.record() as after:
        step()
    assert [row.kind for row in after.rows] == [row.kind for row in plain.rows]
