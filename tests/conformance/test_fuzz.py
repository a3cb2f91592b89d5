# SPDX-License-Identifier: BSD-3-Clause
"""`fuzz`: planted deaths are found and told from the CPU's, and npusim survives direct calls."""

import fnmatch
import pickle
from pathlib import Path

import pytest
from processes import python

from npusim_conformance.fuzz import arguments, upstream_issues
from npusim_conformance.fuzz.arguments import EXCLUDED, overloads
from npusim_conformance.fuzz.children import Ending, Experiment, Limits, conduct
from npusim_conformance.fuzz.fuzzer import Fuzzer
from npusim_conformance.fuzz.seeds import Corpus, record
from npusim_conformance.record import log
from npusim_conformance.verdict import Status

PLANTED = Path(__file__).parent / "fuzzed"
OPERATORS = ["grid_sampler_2d", "special.i1", "exp", "nn.functional.gelu", "index_add"]
# Reads before the start of grad: the CPU survives it, for the memory there is its own.
OUT_OF_BOUNDS = [
    "result = torch.ops.aten._embedding_bag_per_sample_weights_backward("
    "torch.ones(2, 5).to(device), torch.ones(10, 5).to(device), "
    "torch.tensor([4, 9, 3, 0, 3]).to(device), torch.tensor([], dtype=torch.int64).to(device), "
    "torch.tensor([], dtype=torch.int64).to(device), 0, -1)"
]


@pytest.fixture(scope="module")
def seeds():
    return record(OPERATORS, seed=0)


@pytest.fixture
def fuzz(seeds, tmp_path):
    """Runs the command; gives the finished process and the outcomes by overload."""

    def fuzz(overloads, import_name, *arguments, device="npusim"):
        (tmp_path / "seeds-0.pickle").write_bytes(pickle.dumps(seeds))
        command = ["-m", "npusim_conformance", "fuzz", "--device", device]
        command += ["--import", import_name, "--overloads", overloads, "--out", str(tmp_path)]
        done = python(
            *command, "--jobs", "2", "--quiet", *arguments, variables={"PYTHONPATH": str(PLANTED)}
        )
        outcomes = log.read(tmp_path).outcomes
        return done, {name.split(":")[1].split("/")[0]: one for name, one in outcomes.items()}

    return fuzz


def ending_of(calls, *, seconds=10.0, megabytes=1024, fenced=False):
    def examination():
        return (yield Experiment(calls, "cpu", fenced))

    limits = Limits(seconds, megabytes << 20)
    return next(conduct([examination()], 1, limits))


def test_calls_depend_on_seed_and_overload_only(seeds):
    def texts(seed, overload):
        return [call.lines(0) for call in Corpus(seeds, seed).calls(overload, 20)]

    assert texts(0, "gelu") == texts(0, "gelu")
    assert texts(0, "gelu") != texts(1, "gelu")
    assert texts(0, "gelu") != texts(0, "exp")


def test_an_overload_that_nothing_reaches_takes_the_calls_of_its_kin(seeds):
    kin = Corpus(seeds, 0).starts("_grid_sampler_2d_cpu_fallback")
    assert kin
    assert kin == Corpus(seeds, 0).starts("grid_sampler_2d")


def test_every_overload_can_be_written_down(seeds):
    corpus = Corpus(seeds, 0)
    for overload, why in overloads().items():
        for call in corpus.calls(overload, 1) if not why else ():
            compile("\n".join(call.lines(0)), overload, "exec")


def test_each_exclusion_exists_and_has_a_reason():
    assert set(EXCLUDED) <= set(overloads())
    assert all(EXCLUDED.values())
    assert "aten" not in overloads()
    assert arguments.attribute("relu") == "relu.default"


def test_every_known_issue_is_about_an_overload():
    for pattern in upstream_issues.ISSUES:
        assert fnmatch.filter(overloads(), pattern), pattern
    assert upstream_issues.issue("_fft_r2c.out", "SIGSEGV") == 141449
    assert upstream_issues.issue("add.Tensor", "SIGSEGV") is None
    assert upstream_issues.issue("add.Tensor", "SIGSEGV outside of its operands") == 195547


def test_endings_are_told_apart():
    assert ending_of([["result = 1"], ["raise ValueError"]]) == Ending("", 2, 1, 1)
    kill = ["import os, signal", "os.kill(os.getpid(), signal.SIGFPE)"]
    assert ending_of([["result = 1"], kill]) == Ending("SIGFPE", 1, 1, 0)
    assert ending_of([["while True: pass"]], seconds=0.3).how == "timeout"
    assert ending_of([["x = torch.ones(1 << 28)"] * 9], megabytes=64).how == "memory"
    assert ending_of([["import os; os._exit(3)"]]).how == "exit 3"


def test_memory_of_the_parent_is_not_the_childs():
    ballast = bytearray(b"x") * (128 << 20)
    calls = [["sum(range(10_000_000))"]]  # long enough to be looked at
    assert ending_of(calls, megabytes=64) == Ending("", 1, 1, 0)
    assert len(ballast) == 128 << 20


def test_a_death_after_the_last_call_is_an_outcome(seeds):
    examination = Fuzzer("npusim", "torch_npusim", Corpus(seeds, 0), 2)._examine("exp")
    asked = next(examination)
    assert len(asked.calls) == 2
    asked = examination.send(Ending("timeout", len(asked.calls), 2, 0))
    assert len(asked.calls) == 1  # does the CPU hang there, too?
    with pytest.raises(StopIteration) as ended:
        examination.send(Ending("", 1, 1, 0))
    assert ended.value.value.status is Status.TIMEOUT
    assert "timeout in call 1" in ended.value.value.message


def test_a_fence_shows_what_the_cpu_survives_by_luck():
    assert ending_of([OUT_OF_BOUNDS]).how == ""
    assert ending_of([OUT_OF_BOUNDS] * 2, fenced=True).how == "SIGSEGV"
    within = ["result = torch.ones(3, 4).to(device) @ torch.ones(4, 5).to(device)"]
    assert ending_of([within] * 2, fenced=True) == Ending("", 2, 2, 0)


def test_planted_deaths_are_found(fuzz):
    arguments = ("--calls", "6", "--timeout", "2")
    done, outcomes = fuzz("special_i0e,special_i1,special_i1e,exp", "planted_deaths", *arguments)
    assert done.returncode == 1, done.stderr
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "special_i0e": Status.CRASH,
        "special_i1": Status.CRASH,
        "special_i1e": Status.TIMEOUT,
        "exp": Status.PASS,
    }
    assert outcomes["special_i0e"].message.startswith("SIGSEGV in call 0")
    shown = outcomes["special_i0e"].repro.splitlines()
    assert len(shown) == 5
    assert shown[0] == "import torch, planted_deaths"
    assert shown[3].startswith("result = torch.ops.aten.special_i0e.default(")
    # Two calls, because one alone does no harm.
    assert outcomes["special_i1"].repro.count("torch.ops.aten.special_i1") == 2


def test_what_the_cpu_dies_of_too_is_upstream(fuzz):
    names = "_cummax_helper,_sobol_engine_draw,_thnn_differentiable_lstm_cell_backward"
    done, outcomes = fuzz(names, "torch_npusim", "--calls", "20")
    died = [outcome for outcome in outcomes.values() if outcome.status is Status.UPSTREAM]
    assert died, outcomes
    assert all(", on the CPU too (SIG" in outcome.message for outcome in died)
    assert done.returncode == 0, done.stdout


def test_a_run_that_was_cut_off_goes_on(fuzz, tmp_path):
    _, whole = fuzz("exp*", "torch_npusim", "--calls", "5")
    path = tmp_path / "run.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:20])
    done, resumed = fuzz("exp*", "torch_npusim", "--calls", "5", "--resume")
    assert done.returncode == 0, done.stderr
    assert {name: one.message for name, one in resumed.items()} == {
        name: one.message for name, one in whole.items()
    }


def test_npusim_survives_a_sample_of_all_overloads(fuzz):
    """A sample, and the calls that once ended the process (docs/judge/conformance.md)."""
    sample = list(overloads())[:: len(overloads()) // 40]
    found = "_grid_sampler_2d_cpu_fallback*,_thnn_fused_*,_reshape_alias,choose_qparams_optimized"
    names = ",".join([*sample, found, "_saturate_weight_to_fp16", "fbgemm_pack_quantized_matrix*"])
    done, outcomes = fuzz(names, "torch_npusim", "--calls", "10", "--seed", "0")
    assert done.returncode == 0, done.stdout
    assert len(outcomes) > 50
    assert sum(outcome.samples for outcome in outcomes.values()) > 450
