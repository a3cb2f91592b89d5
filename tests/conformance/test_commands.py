# SPDX-License-Identifier: BSD-3-Clause
"""Subcommands that read logs, devices and files: what they print, write and exit with."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from processes import python

from npusim_conformance.backend import census
from npusim_conformance.backend.expectation_update import globs, updated
from npusim_conformance.case import KINDS, Case
from npusim_conformance.cases import catalog, near
from npusim_conformance.cases.known import properties
from npusim_conformance.cases.selection import Selection
from npusim_conformance.cli import main
from npusim_conformance.judge import attribution, plain_python
from npusim_conformance.report import planning
from npusim_conformance.verdict import Outcome, Status

ROOT = Path(__file__).resolve().parents[2]
ADD, SUB, SIN = (f"op:{name}/forward/float32" for name in ("add", "sub", "sin"))


def test_help_and_reports_do_not_wait_for_torch(write):
    log = write("run", Outcome(ADD, Status.PASS))
    script = "import sys; from npusim_conformance.cli import main\n"
    script += "try: main(sys.argv[1:])\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    for arguments in (["--help"], ["plan", "--help"], ["report", log], ["compare", log, log]):
        command = ["-c", script, *arguments]
        done = python(*command, timeout=60, check=True)
        assert done.stdout.splitlines()[-1] == "False"


def test_a_case_given_as_subject_gets_a_suggestion_before_torch_is_imported():
    script = "import sys; from npusim_conformance.cli import main\n"
    script += (
        "try: main(sys.argv[1:])\nexcept SystemExit as end: print(end, 'torch' in sys.modules)"
    )
    asked = (
        ("contract:event/*", "did you mean --ops 'contract:event'?"),
        (ADD, "did you mean --ops 'op:add' --props 'forward'?"),
        ("sin,gelu", "no 'gelu'; did you mean 'nn.functional.gelu'?"),
        ("aten::add.out", "no 'aten::add.out'; did you mean 'add'?"),
        ("contract:evnt", "no 'contract:evnt'; did you mean 'contract:event'?"),
        ("op:linalg.svdd", "no 'op:linalg.svdd'; did you mean 'op:linalg.svd'?"),
    )
    for given, said in asked:
        command = ("-c", script, "run", "--device", "cpu", "--ops", given)
        done = python(*command, timeout=60, check=True, cold=True)
        assert done.stdout == "2 False\n"
        assert said in done.stderr


def test_no_subject_is_taken_for_a_near_miss():
    words = {
        word
        for (kind, _), prop in properties().items()
        for name in catalog._subjects_of(prop)
        for word in (name, f"{kind}:{name}")
    }
    assert sorted(word for word in words if near.meant(word)) == []


def test_the_name_before_variants_is_no_unknown_word():
    chosen = catalog.cases(Selection("smoke", "op:div,op:div.*"))
    assert {case.subject for case in chosen} >= {"div.floor_rounding", "div.no_rounding_mode"}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"subjects": "add, Linear"}, "no operator, module or contract 'Linear'; did you mean"),
        ({"properties": "fwd"}, "no property 'fwd'; did you mean 'forward'?"),
        ({"dtypes": "float3"}, "no dtype 'float3'; did you mean 'float32'?"),
    ],
)
def test_a_word_that_names_nothing_is_refused(choice, said):
    with pytest.raises(catalog.UnknownCase, match=said):
        catalog.cases(Selection("smoke", **choice))


def test_report_exits_as_the_run_did(write, capsys, tmp_path):
    assert main(["report", write("good", Outcome(ADD, Status.PASS))]) == 0
    assert main(["report", write("bad", Outcome(ADD, Status.FAIL, cause="x"))]) == 1
    assert main(["report", write("none", Outcome(ADD, Status.NA, "why"))]) == 5
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    names = {path.name for path in (tmp_path / "good").iterdir()}
    files = {"report.json", "junit.xml", "report.html", "matrix.md", "badge.json"}
    assert names == {"run.jsonl"} | files
    capsys.readouterr()
    assert main(["report", str(tmp_path / "good"), "--format", "badge"]) == 0
    assert json.loads(capsys.readouterr().out)["message"] == "1 of 1 passed"


def test_compare_exits_1_for_a_regression_only(write, capsys):
    good = write("good", Outcome(ADD, Status.PASS), Outcome(SUB, Status.FAIL, cause="x"))
    bad = write("bad", Outcome(ADD, Status.CRASH, cause="y"), Outcome(SUB, Status.PASS))
    assert main(["compare", good, good]) == 0
    assert main(["compare", good, bad]) == 1
    assert f"{ADD}: pass -> crash" in capsys.readouterr().out
    assert main(["compare", good, bad, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [pair["case"] for pair in found["fixed"]] == [SUB]


def test_repro_runs_one_case_and_refuses_what_is_none(capsys):
    assert main(["repro", "contract:memory/no_such", "--device", "cpu"]) == 2
    assert main(["repro", "nonsense", "--device", "cpu"]) == 2
    assert main(["repro", "op:gelu/forward/float32", "--device", "cpu"]) == 2
    assert main(["repro", "op:nn.functional.gellu/forward/float32", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.count("did you mean 'nn.functional.gelu'?") == 2
    assert main(["repro", "module:Linear/forward/float32", "--device", "cpu"]) == 2
    assert "did you mean 'nn.Linear'?" in capsys.readouterr().err
    assert main(["repro", ADD, "--device", "cpu", "--json"]) == 0
    lines = capsys.readouterr().out
    assert json.loads(lines)["status"] == "pass"


def test_names_of_cases_on_pages_are_known():
    kinds = "|".join(KINDS)
    pattern = re.compile(rf"\b(?:{kinds}):[\w.]+/\w+(?:/\w+)?\b(?![/*])")
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "conformance").rglob("*.md")]
    named = {name for page in pages for name in pattern.findall(page.read_text())}
    named = {name for name in named if not name.startswith("upstream:")}
    assert len(named) > 4
    for name in named:
        catalog.resolve(Case.parse(name))


# --- expectations

NAMES = [
    f"op:{subject}/{prop}/{dtype}"
    for subject in ("fft.a", "fft.b", "add", "add[x]")
    for prop in ("forward", "out")
    for dtype in ("float32", "int64")
]


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ([n for n in NAMES if "fft" in n], ["op:fft.*/*"]),
        ([n for n in NAMES if "/out/" in n], ["op:*/out*"]),
        ([n for n in NAMES if n.endswith("int64")], ["op:*/*/int64"]),
        (["op:add[x]/out/int64"], ["op:add[[]x]/out/int64"]),
    ],
)
def test_globs_are_wide_and_match_nothing_else(cases, expected):
    assert globs(set(cases), NAMES) == expected


def test_update_adds_what_fails_drops_what_passes_and_keeps_comments():
    text = (
        "# ours\n[device]\nname = 'mychip'  # the chip\n\n"
        "[[xfail]]\ncases = ['op:add/*']\nreason = 'old'\n\n"
        "[[xfail]] # both\ncases = ['op:fft.*/forward/*']\nreason = 'half'\n"
    )
    statuses = dict.fromkeys(NAMES, Status.PASS)
    statuses |= {"op:fft.a/forward/int64": Status.FAIL, "op:fft.a/forward/float32": Status.FAIL}
    statuses |= {"op:fft.b/out/float32": Status.CRASH, "op:fft.b/out/int64": Status.FLAKE}
    outcomes = {n: Outcome(n, s, cause="the cause") for n, s in statuses.items()}
    after = updated(text, outcomes, NAMES)
    assert "# ours" in after
    assert "# the chip" in after
    assert tomllib.loads(after)["xfail"] == [
        {"cases": ["op:fft.a/forward*"], "reason": "half"},
        {"cases": ["op:fft.b/out/float32"], "reason": "the cause"},
    ]
    assert updated(after, outcomes, NAMES) == after


def test_dry_run_of_expect_writes_nothing(write, tmp_path, capsys):
    log = write("run", Outcome(ADD, Status.FAIL, cause="aten::add.out: wrong result"))
    file = tmp_path / "expect.toml"
    assert main(["expect", "--update", log, "--expect", str(file), "--dry-run"]) == 0
    assert not file.exists()
    assert '+cases = ["op:add/forward/float32"]' in capsys.readouterr().out
    assert main(["expect", "--update", log, "--expect", str(file)]) == 0
    assert tomllib.loads(file.read_text())["xfail"][0]["reason"] == "aten::add.out: wrong result"


# --- what to write next


def test_plan_takes_what_completes_most_operators_first():
    needs = {
        "op:a": frozenset({"mul"}),
        "op:b": frozenset({"mul", "sum"}),
        "op:c": frozenset({"sum", "rare"}),
        "op:d": frozenset(),
    }
    steps = planning.plan(needs, 10)
    assert [(step.overload, step.unlocks, step.ready) for step in steps] == [
        ("mul", ("op:a",), 2),
        ("sum", ("op:b",), 3),
        ("rare", ("op:c",), 4),
    ]


def test_plan_reads_missing_kernels_and_fallbacks_of_a_log(write, capsys):
    log = write(
        "run",
        Outcome(ADD, Status.UNIMPLEMENTED, missing="aten::add.out"),
        Outcome(SUB, Status.FALLBACK_PASS, fallbacks=["aten::sub.out", "aten::add.out"]),
        Outcome(SIN, Status.PASS),
    )
    assert main(["plan", "--log", log, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["operators"], found["ready"]) == (3, 1)
    assert [step["overload"] for step in found["kernels"]] == ["aten::add.out", "aten::sub.out"]
    assert main(["plan"]) == 2


def test_trace_finds_the_out_kernel_behind_a_structured_operator():
    bare = census.Census("mychip", "PrivateUse1", {}, (), (), ())
    everything = {
        name: census.Route.FALLBACK
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }
    bare.routes.update(everything)
    needs = planning.needs_of_trace("sinh,sub", 2, bare)
    assert "aten::sinh.out" in needs["op:sinh"]
    assert "aten::sub.out" in needs["op:sub"]
    bare.routes["aten::sinh"] = census.Route.NATIVE
    assert "aten::sinh.out" not in planning.needs_of_trace("sinh", 2, bare)["op:sinh"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (census.Route.FALLBACK, "a fallback that copies breaks that in silence"),
        (census.Route.MISSING, "without a kernel each call raises"),
    ],
)
def test_a_trap_says_what_happens_without_a_kernel(how, said):
    routes = {f"aten::{name}": how for name in census.ALIASING}
    traps = [trap for trap in census._traps("PrivateUse1", routes) if "alias" in trap.hint]
    names = {trap.name.replace("set_.default", "set_") for trap in traps if trap.open}
    assert names == routes.keys()
    assert {trap.hint for trap in traps} == {f"its result must alias its argument: {said}"}


def test_census_of_the_cpu():
    found = census.take(torch.device("cpu"))
    assert found.routes["aten::add.Tensor"] is census.Route.NATIVE
    assert found.routes["aten::reshape"] is census.Route.COMPOSITE
    assert found.routes["aten::_copy_from"] is census.Route.MISSING
    assert "aten::mm" in found.autocast


# --- culprits and scripts


@pytest.fixture
def broken_multiplication(npusim_kernel):
    npusim_kernel("aten::mul.Tensor", lambda own, one, other: own(one, other) + 1)


@pytest.fixture
def npusim_kernel():
    """Replaces a kernel of the device for one test."""
    import warnings

    import torch_npusim  # noqa: F401

    libraries = []

    def replace(overload, kernel):
        original = torch.library.get_kernel(overload, "PrivateUse1")
        library = torch.library.Library("aten", "IMPL")

        def stand_in(keys, *args):
            return kernel(lambda *args: original.call_boxed(keys, *args), *args)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(overload.removeprefix("aten::"), stand_in, "PrivateUse1", with_keyset=True)
        libraries.append(library)

    yield replace
    for library in libraries:
        library._destroy()


NPUSIM = torch.device("npusim", 0)


def examine(device):
    one = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t().to(device)
    if torch.kron(one, one).sum().item() != 100:
        raise AssertionError("wrong")


@pytest.mark.usefixtures("broken_multiplication")
def test_culprit_of_a_composite_is_the_overload_whose_result_differs():
    found = attribution.find(examine, NPUSIM, "torch_npusim")
    assert (found.overload, found.fault) == ("aten::mul.Tensor", "wrong result")
    space = {}
    exec(compile(found.script, "script", "exec"), space)
    assert torch.equal(space["run"](NPUSIM).cpu(), space["run"]("cpu") + 1)


def test_culprit_of_an_exception_is_the_overload_that_raised(npusim_kernel):
    def fail(own, tensor):
        raise RuntimeError("the chip is on strike")

    npusim_kernel("aten::sin", fail)
    found = attribution.find(lambda device: torch.ones(2, device=device).sin(), NPUSIM)
    assert (found.overload, found.fault) == ("aten::sin", "raises")
    assert "torch.ops.aten.sin.default(x0)" in found.script


def test_a_huge_element_hides_no_wrong_small_one_of_a_pointwise_overload(npusim_kernel):
    exponents = torch.tensor([60.0, 0.0])

    def wrong(own, tensor):
        return (tensor.cpu().exp() + torch.tensor([0.0, 0.5])).npusim()

    def examine(device):
        exponents.to(device).exp()
        raise AssertionError("a demand of the property's own")

    npusim_kernel("aten::exp", wrong)
    found = attribution.find(examine, NPUSIM)
    assert (found.overload, found.fault) == ("aten::exp", "wrong result")


def test_nobody_is_blamed_where_every_overload_agrees():
    def examine(device):
        torch.ones(2, device=device).add(1).sum()
        raise AssertionError("a demand of the property's own")

    import torch_npusim  # noqa: F401

    assert attribution.find(examine, NPUSIM) is None


def test_tensors_too_large_to_be_copied_several_times_are_not_compared():
    assert attribution.to_host(torch.empty(1 << 29, device=NPUSIM)[:1]) is None


def test_script_keeps_strides_storage_and_special_values():
    base = torch.tensor([1.0, float("nan"), float("-inf"), 4.0, 5.0, 6.0])
    view, overlap = base[1:].as_strided((2, 2), (1, 2), 1), base[:2]
    text = plain_python.script(
        "torch.ops.aten.stack.default", ([view, overlap.expand(2, 2)],), {"dim": 0}, NPUSIM, ""
    )
    space = {}
    exec(compile(text.partition("\non_device =")[0], "script", "exec"), space)
    expected = torch.stack([view, overlap.expand(2, 2)])
    assert torch.equal(space["run"]("cpu").nan_to_num(), expected.nan_to_num())
    assert text.count("torch.tensor(") == 1


def test_what_has_no_literal_is_not_written_down():
    with pytest.raises(plain_python.Unwritable, match="sparse"):
        plain_python.script("f", (torch.eye(2).to_sparse(),), {}, NPUSIM, "")
    assert (
        plain_python.described(lambda: plain_python.script("f", (object(),), {}, NPUSIM, "")) == ""
    )
