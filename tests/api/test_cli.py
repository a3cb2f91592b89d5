# SPDX-License-Identifier: BSD-3-Clause
"""The `npusim` command."""

import json
import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from processes import python

from torch_npusim import cli
from torch_npusim.cli import doctor
from torch_npusim.sim import knobs


@pytest.fixture
def npusim(capsys):
    def run(*arguments):
        status = cli.main(arguments)
        return status, capsys.readouterr().out

    return run


def test_info_says_what_there_is(npusim):
    status, text = npusim("info")
    assert status == 0
    assert torch.__version__ in text
    assert "npusim:1" in text
    assert "NPUSIM_DEVICE_COUNT" in text


def test_info_as_json(npusim):
    status, text = npusim("info", "--json")
    facts = json.loads(text)
    assert status == 0
    assert [device["index"] for device in facts["devices"]] == [0, 1]
    assert facts["devices"][0]["name"] == torch.npusim.get_device_name(0)
    assert len(facts["knobs"]) == len(knobs.knobs())


def test_doctor_is_content_here(npusim):
    status, text = npusim("doctor", "--json")
    findings = {finding["check"]: finding for finding in json.loads(text)}
    assert status == 0
    assert set(findings) == {
        "torch",
        "gpu",
        "other backends",
        "process",
        "devices",
        "memory",
        "capacity",
        "round trip",
        "environment",
    }
    assert findings["round trip"]["status"] == "ok"
    assert all(f["remedy"] for f in findings.values() if f["status"] != "ok")


def test_doctor_for_people_starts_lines_with_the_status(npusim):
    _, text = npusim("doctor")
    words = {line.split()[0] for line in text.splitlines()}
    assert words <= {"ok", "warning", "broken", "->"}


def test_doctor_says_how_to_hide_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    finding = doctor._gpu()
    assert finding.status == "warning"
    assert "CUDA_VISIBLE_DEVICES= " in finding.remedy


def test_doctor_fails_without_devices(run_python):
    done = run_python(
        "import sys; from torch_npusim.cli import main; sys.exit(main(['doctor']))",
        environment={"NPUSIM_VISIBLE_DEVICES": "-1"},
        check=False,
    )
    assert done.returncode == 1
    assert "broken   devices         no device is visible" in done.stdout


def test_doctor_warns_of_missing_isolation(run_python):
    text = run_python(
        "import sys; from torch_npusim.cli import main; sys.exit(main(['doctor']))",
        environment={"NPUSIM_ISOLATION": "0"},
    )
    assert "warning  memory" in text


def test_doctor_reports_checks_that_fail(monkeypatch):
    def _odd_check():
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "_CHECKS", [_odd_check])
    assert doctor.examine() == [doctor.Finding("odd check", "broken", "OSError: no such thing")]


def test_doctor_sees_the_least_memory_limit():
    available, limit = doctor.host_memory()
    assert available > 0
    assert limit == "MemAvailable" or limit.startswith("cgroup memory")


def test_env_lists_values_and_origins(npusim):
    status, text = npusim("env", "--json")
    assert status == 0
    rows = json.loads(text)
    assert {row["origin"] for row in rows} <= {"environment", "default"}
    assert [row["name"] for row in rows] == [knob.name for knob in knobs.knobs()]
    _, table = npusim("env")
    assert len(table.splitlines()) == len(rows) + 1


def test_markdown_does_not_depend_on_the_environment(npusim, run_python):
    _, plain = npusim("env", "--markdown")
    script = "from torch_npusim.cli import main; main(['env', '--markdown'])"
    assert plain == run_python(script, environment={"NPUSIM_DEVICE_COUNT": "5"})
    for knob in knobs.knobs():
        assert f"| `{knob.name}` |" in plain


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["info", "--nonsense"]])
def test_wrong_command_lines_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2


def test_module_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["npusim", "--version"])
    with pytest.raises(SystemExit) as left:
        # By path: the import hook of pytest has no code to give to run_module().
        runpy.run_path(str(Path(cli.__file__).parents[1] / "__main__.py"), run_name="__main__")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("torch_npusim 0.")


@pytest.mark.parametrize("words", [("env",), ("fit", "--json", "--remedies", "never")])
def test_a_reader_that_has_enough_is_no_error(words, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.ones(2, device='npusim')\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "torch_npusim", *words, *([script] if "fit" in words else [])],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 0
    assert "BrokenPipeError" not in done.stderr


def test_lab_hands_everything_over_to_the_laboratory(npusim, tmp_path, capsys):
    trace = str(tmp_path / "a.npt")
    assert npusim("lab", "generate", "zero3", "--steps", "1", "--out", trace)[0] == 0
    status, text = npusim("lab", "plan", trace, "--json")
    assert status == 0
    assert json.loads(text)["planned"] > 0
    with pytest.raises(SystemExit, match="0"):
        cli.main(["lab", "--help"])
    assert capsys.readouterr().out.startswith("usage: npusim lab ")


def test_the_command_needs_no_pytest():
    done = python(
        "-c",
        textwrap.dedent(
            """
            import sys
            sys.modules["pytest"] = None  # as where it is not installed
            from torch_npusim import cli
            sys.exit(cli.main(["info"]))
            """
        ),
        cold=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["lab", "truth"])
def test_a_command_of_another_distribution_says_what_is_missing(monkeypatch, capsys, name):
    monkeypatch.setitem(sys.modules, f"npusim_{name}", None)
    assert cli.main([name, "--help"]) == 2
    assert f"the package npusim-{name} is not installed; in a checkout" in capsys.readouterr().err
