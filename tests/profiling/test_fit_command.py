# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit` as a command: exit status, refused input, the largest batch, sweeps."""

import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import python
from profiling.fit_process import fit

from torch_npusim import cli
from torch_npusim._blame import short_path
from torch_npusim.fit import page, text
from torch_npusim.fit.changes import Change
from torch_npusim.fit.result import Fit, MaxPeak
from torch_npusim.fit.run import fit_script
from torch_npusim.fit.trials import Job, TrialError, largest_batch

SCRIPTS = Path(__file__).parent / "scripts"
MIB = 1 << 20
SCRIPT, BLOCKS = str(SCRIPTS / "fitted.py"), str(SCRIPTS / "fitted_blocks.py")


def test_a_script_that_does_not_fit_fails_where_that_is_required():
    words = ["--remedies", "never", "--memory", "64MiB", "--require-fits", SCRIPT, "65536"]
    status, out, _ = fit(*words)
    assert status == 1
    assert f"(npusim-one, 64.00 MiB): {short_path(SCRIPT)}:11 asks for" in out
    assert "Memory ran out" in out


def test_what_is_reserved_decides_on_the_highest_peak():
    # A little more than 32 MiB are allocated, and more than 36 MiB are reserved.
    words = ["--memory", "1GiB", "--max-peak", "36MiB", "--json", "--temporaries", "npusim"]
    status, out, error = fit(*words, SCRIPT, "8")
    found = json.loads(out)
    (device,) = found["devices"].values()
    asked = found["max_peak"]
    assert (status, found["fits"], asked["exceeded"]) == (1, True, True)
    assert (asked["decides"], asked["limit"]) == ("reserved", 36 * MIB)
    assert asked["reserved"] == device["peak_reserved"] > 36 * MIB
    assert asked["allocated"] == device["peak_allocated"] < 36 * MIB
    told = text.max_peak_text(MaxPeak(**asked))
    assert (
        "reserved, more than the 36.00 MiB of --max-peak, which counts what is reserved; " in told
    )
    assert told in error
    plain = fit_script(SCRIPT, ["8"], temporaries="npusim")
    plain.max_peak = plain.limited(asked["reserved"])
    assert not plain.max_peak.exceeded
    assert "reserved, within the" in text.as_text(plain)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--max-peak", "much", SCRIPT], "--max-peak: expected a number of bytes such as 512MiB"),
        (["--memory", "much", SCRIPT], "--memory: expected a number of bytes such as 512MiB"),
        (["--outside", "much", SCRIPT], "--outside: expected a number of bytes such as 512MiB"),
        (["--spec", "t5", SCRIPT], "--spec: there is no device specification `t5`; accepted: npu"),
        (["--selected", "2", SCRIPT], "--selected is a share from 0 to 1, got 2"),
        (["--sweep", "--batch", SCRIPT], "--sweep '--batch'; expected ARGUMENT=V1,V2"),
        (["--sweep", "4=1,2", SCRIPT, "8"], "--sweep: the script has 1 arguments, and no number 4"),
        (["--executor", "dask://h:1", SCRIPT], "--executor runs the points of --sweep, which is"),
        (
            ["--sweep", "1=1", "--executor", "tcp://h:1", SCRIPT, "8"],
            "--executor 'tcp://h:1'; expected dask://host:port",
        ),
        (["--ranks", "0", SCRIPT], "--ranks: a number of at least 1, got 0"),
        (
            ["--fabric", "rope", SCRIPT],
            "--fabric: there is no fabric 'rope'; known are ascend",
        ),
        (["--sweep", "spec=t4,t5", SCRIPT], "--sweep: --spec: there is no device specification"),
        (["--find-batch", "2", SCRIPT, "8"], "--find-batch 2: the script has 1 arguments, and no "),
        (["--page", "nowhere/out.html", SCRIPT], f"--page: there is no folder {os.getcwd()}/now"),
        (["--snapshot", "nowhere/out", SCRIPT], "--snapshot: there is no folder "),
        (["nowhere.py"], "there is no script nowhere.py"),
        ([], "name a script"),
    ],
)
def test_bad_input_is_refused_before_the_run(words, told, capsys):
    assert cli.main(["fit", *words]) == 2
    assert f"npusim fit: {told}" in capsys.readouterr().err


def test_an_allocator_that_is_unknown_is_refused():
    status, out, error = fit("--allocator", "cuda-1", SCRIPT, "8")
    assert (status, out) == (2, "")
    assert 'npusim fit: NPUSIM_ALLOCATOR: policy is "cuda-1"; expected one of npusim' in error


def test_an_error_of_the_script_keeps_the_answer_until_then(tmp_path):
    script = tmp_path / "saves.py"
    script.write_text(f"""import torch
weights = torch.ones(1 << 20, device="npusim")
torch.save(weights, {str(tmp_path / "weights.pt")!r})
""")
    found = fit_script(str(script))
    told = text.as_text(found)
    assert f"ended early, with RuntimeError at {script}:3: a tensor of device npusim:0" in told
    assert "4.00 MiB allocated" in told
    assert f"{script}:3" in page.as_page(found)


def test_what_a_script_does_to_its_process_does_not_change_the_answer(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text("""import os, sys, warnings
import torch
os.chdir("/")
assert open(__file__).read()
assert sys.modules["__main__"].os is os
sys.argv, sys.stdout = [], open(os.devnull, "w")
sys.path.clear()
warnings.simplefilter("error")
weights = torch.ones(1 << 20, device="npusim")
raise KeyError("gone")
""")
    monkeypatch.chdir(tmp_path)
    before = (sys.argv, list(sys.path), sys.stdout, warnings.filters[:], sys.modules["__main__"])
    found = fit_script("hostile.py")
    after = (sys.argv, list(sys.path), sys.stdout, warnings.filters[:], sys.modules["__main__"])
    assert (after, os.getcwd()) == (before, str(tmp_path))
    assert found.error == "KeyError at hostile.py:10: 'gone'"
    assert found.devices[0].lines == {"hostile.py:9": 4 * MIB}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = 1\n\ndef f(:\n", "SyntaxError at {script}:3: invalid syntax"),
        ("import sys\n\nsys.exit('no data')\n", "SystemExit at {script}:3: no data"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--batch'])\n",
            "SystemExit at {script}:2: 2",
        ),
    ],
)
def test_the_line_that_ended_a_script_is_named(tmp_path, code, told):
    script = tmp_path / "ends.py"
    script.write_text(code)
    found = fit_script(str(script))
    assert found.error.startswith(told.format(script=script))
    assert not found.fits
    assert text.as_text(found) == f"{script} ended early, with {found.error}"
    assert fit(str(script))[0] == 1


def test_an_exit_without_a_complaint_is_the_end(tmp_path):
    script = tmp_path / "ends.py"
    for code in ("import sys\nsys.exit(0)\n", "import os\nos._exit(0)\n"):
        script.write_text(code)
        found = fit_script(str(script))
        assert (found.fits, found.error) == (True, "")


def test_the_hooks_of_the_run_break_no_graph_of_a_compiled_model(tmp_path):
    script = tmp_path / "compiled.py"
    script.write_text("""import torch
from torch import nn
from torch._dynamo.utils import counters
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to("npusim")
torch.compile(model)(torch.zeros(4, 8, device="npusim")).sum().backward()
assert counters["stats"]["unique_graphs"] == 1
assert not counters["graph_break"], counters["graph_break"]
""")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert fit_script(str(script), changes=[Change("bf16")]).error == ""


def test_a_fork_of_the_script_ends_as_ever(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text("""import os
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os._exit(3)
""")
    assert fit_script(str(script)).error == f"SystemExit at {script}:6: 3"


def test_memory_that_ran_out_is_told_of_a_script_that_went_on(tmp_path):
    script = tmp_path / "catches.py"
    script.write_text("""import torch
for size in (1 << 40, 1 << 41, 1):
    try:
        torch.empty(size, dtype=torch.uint8, device="npusim")
    except torch.OutOfMemoryError:
        pass
""")
    found = fit_script(str(script))
    assert (found.fits, found.devices[0].caught) == (True, 2)
    assert "The script went on after memory ran out 2 times." in text.as_text(found)
    assert "went on after memory ran out 2 times." in page.as_page(found)


def test_what_a_script_says_of_its_arguments_is_passed_on():
    with pytest.raises(TrialError, match=r"SystemExit at .*: 2: .*unrecognized.*: --width 8"):
        Job(BLOCKS, ("--batch", "1", "--width", "8")).run()


def test_a_script_that_uses_no_device_says_so_and_meets_no_requirement(tmp_path):
    script = tmp_path / "cpu.py"
    script.write_text("import torch\ntorch.ones(3)\n")
    status, out, error = fit(script)
    assert (status, out) == (0, f"{script} allocates nothing on the device.\n")
    assert 'a script for "cuda" needs --as-cuda' in error
    assert fit("--require-fits", script)[0] == 1


@pytest.mark.parametrize(("name", "count"), [(None, 1), ("NPUSIM_DEVICE_COUNT", 3)])
def test_a_script_has_one_device_unless_the_environment_says_more(tmp_path, name, count):
    script = tmp_path / "counts.py"
    script.write_text("import torch\nprint('devices:', torch.npusim.device_count())\n")
    told = {key: value for key, value in os.environ.items() if key not in cli.fit._DEVICES}
    told |= {name: str(count)} if name else {}
    done = python("-m", "torch_npusim", "fit", script, env=told)
    assert f"devices: {count}\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "name", "after"),
    [
        (("--batch-size", "8", "x"), "--batch-size", ("--batch-size", "16", "x")),
        (("--batch-size=8",), "batch_size", ("--batch-size=16",)),
        (("train.batch=8",), "train.batch", ("train.batch=16",)),
        (("-b", "8"), "-b", ("-b", "16")),
        (("8", "x"), "1", ("16", "x")),
        ((), "--batch", ("--batch", "16")),
    ],
)
def test_an_argument_of_the_script_is_replaced(arguments, name, after):
    job = Job("train.py", arguments)
    assert job.having(name, "16").arguments == after
    assert job.number(name) == (8 if arguments else None)


def test_settings_of_the_command_are_axes_too():
    job = Job("train.py", ("--memory-format", "x")).having("memory", "8GiB")
    assert (job.arguments, job.settings) == (("--memory-format", "x"), {"memory": "8GiB"})


class Modelled(Job):
    """A job whose memory is 100 bytes and 7 for each of a batch, of 1,000."""

    def run(self, snapshot=None):
        batch = int(self.arguments[-1])
        if batch > 600:
            raise TrialError("ValueError at train.py:3")
        peak = 100 + 7 * batch
        return {"fits": peak <= 1000, "devices": {"0": {"peak_reserved": min(peak, 1000)}}}


def answer(job):
    found = job.run()
    peak = found["devices"]["0"]["peak_reserved"]
    device = SimpleNamespace(capacity=1050, peak_reserved=peak, outside_between=lambda: (0, 50))
    return Fit("train.py", fits=found["fits"], devices={0: device})


@pytest.mark.parametrize("batch", [1, 100, 128, 129, 500])
def test_the_largest_batch_is_found_from_any_start(batch):
    job = Modelled("train.py", ("--batch", str(batch)))
    told = []
    assert largest_batch(job, "--batch", answer(job), told.append) == 128
    assert len(told) < 10


def test_a_peak_that_bends_is_met_in_a_few_runs():
    # Until a batch of 4,000 another peak is the highest.
    class Bent(Job):
        def run(self, snapshot=None):
            batch = int(self.arguments[-1])
            peak = max(100_000 + batch // 100, 20 * batch + 20_000) // 64 * 64
            return {"fits": peak <= 1 << 20, "devices": {"0": {"peak_reserved": peak}}}

    told = []
    device = SimpleNamespace(
        capacity=1 << 20, peak_reserved=100_000, outside_between=lambda: (0, 0)
    )
    now = Fit("train.py", fits=True, devices={0: device})
    assert largest_batch(Bent("train.py", ("--batch", "4")), "--batch", now, told.append) == 51_431
    assert len(told) < 24


def test_a_peak_that_keeps_to_the_capacity_is_passed_in_steps_that_grow():
    class Cached(Job):
        def run(self, snapshot=None):
            batch = int(self.arguments[-1])
            peak = min(130 * batch, 79_990)  # freed blocks are kept while there is room
            return {"fits": 100 * batch <= 80_000, "devices": {"0": {"peak_reserved": peak}}}

    told = []
    device = SimpleNamespace(capacity=80_000, peak_reserved=1040, outside_between=lambda: (0, 0))
    now = Fit("train.py", fits=True, devices={0: device})
    assert largest_batch(Cached("train.py", ("--batch", "8")), "--batch", now, told.append) == 800
    assert len(told) < 24


def test_the_page_names_every_colour_of_the_run():
    found = fit_script(BLOCKS, ["--batch", "1"])
    (device,) = found.devices.values()
    kinds = {kind for kind, held in device.timeline.kinds.items() if any(held)}
    assert len(kinds) > 6
    made = page.as_page(found)
    assert all(f"</b>{kind} " in made for kind in kinds)


def test_a_sweep_has_a_row_for_each_point():
    status, out, _ = fit("--sweep", "--batch=1", "--sweep", "memory=32MiB,1GiB", BLOCKS)
    header, *rows = out.splitlines()
    assert header.split()[:3] == ["--batch", "memory", "fits"]
    assert [row.split()[:3] for row in rows] == [["1", "32MiB", "no"], ["1", "1GiB", "yes"]]
    assert status == 0
