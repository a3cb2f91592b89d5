# SPDX-License-Identifier: BSD-3-Clause
"""Reports: complete, honest about what did not run, and the same bytes for the same log."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import fastjsonschema
import pytest

from npusim_conformance import report
from npusim_conformance.backend.expectations import Expectations, parse
from npusim_conformance.record.log import RunRecord
from npusim_conformance.record.summary import LEAKS, Summary
from npusim_conformance.report.comparison import Comparison
from npusim_conformance.report.grid import LETTERS, MEANINGS, worst
from npusim_conformance.verdict import ErrorSize, Outcome, Status

HEAD = {
    "schema": 2,
    "device": "mychip",
    "import": "torch_mychip",
    "kit": "0.1.0",
    "seed": 0,
    "torch": "2.13.0",
    "selection": {"profile": "standard", "shard": [1, 1]},
}
OUTCOMES = [
    Outcome("op:add/forward/float32", Status.PASS, samples=3, seconds=0.25),
    Outcome("op:add/forward/int64", Status.FALLBACK_PASS, fallbacks=["aten::add.out"]),
    Outcome("op:cov/forward/float32", Status.FAIL, "off by </script> & more", cause="aten::mul: x"),
    Outcome(
        "op:var/forward/float32",
        Status.FAIL,
        "\x1b[31mcoloured",
        cause="aten::mul: x",
        culprit="aten::mul",
        detail="Traceback",
        error=ErrorSize(float("inf"), float("nan"), 3.0),
        repro="print(1)",
    ),
    Outcome("op:sin/forward/float32", Status.UNIMPLEMENTED, missing="aten::sin", cause="no kernel"),
    Outcome("op:cos/forward/float32", Status.CRASH, "SIGSEGV", cause="crash: SIGSEGV"),
    Outcome("op:tan/forward/float32", Status.TIMEOUT, "no answer", cause="timeout"),
    Outcome("op:exp/forward/float32", Status.OOM, "out of memory", cause="out of memory"),
    Outcome("op:log/forward/float32", Status.FLAKE, "failed, then passed", cause="z"),
    Outcome("op:abs/out/float32", Status.NA, "no out="),
    Outcome("op:neg/out/float32", Status.SKIPPED, "hangs the host"),
    Outcome("op:svd/forward/float32", Status.UPSTREAM, "RuntimeError: upstream"),
    Outcome("op:erf/forward/float32", Status.FAIL, "known", cause="k"),
    Outcome("op:inv/forward/float32", Status.PASS),
    Outcome("contract:stream/wait_orders_work", Status.PASS),
]
EXPECTED = parse(
    {"xfail": [{"cases": ["op:erf/*", "op:inv/*"], "reason": "soon"}]}, "expectations.toml"
)


def summary_of(outcomes=OUTCOMES, expectations=EXPECTED, **head):
    record = RunRecord(HEAD | head, {outcome.case: outcome for outcome in outcomes})
    return Summary.of(record, expectations)


NOTHING = summary_of([Outcome("op:abs/out/float32", Status.NA, "no out=")])


def schema():
    folder = resources.files("npusim_conformance.report")
    return json.loads((folder / "schema.json").read_text())


@pytest.mark.parametrize("name", report.FORMATS)
def test_order_of_the_log_changes_no_byte(name):
    render = report.FORMATS[name][1]
    assert render(summary_of(), None) == render(summary_of(OUTCOMES[::-1]), None)


def test_json_report_keeps_to_its_schema():
    validate = fastjsonschema.compile(schema())
    found = summary_of()
    text = report.FORMATS["json"][1](found, Comparison.of(summary_of(OUTCOMES[:4]), found))
    validate(json.loads(text, parse_constant=pytest.fail))  # no Infinity, no NaN
    validate(json.loads(report.FORMATS["json"][1](NOTHING, None)))


@pytest.mark.parametrize(
    ("where", "value"),
    [("result", "fine"), ("executed", -1), ("counts", {"pass": 0}), ("unknown", 1)],
)
def test_schema_refuses_what_is_not_a_report(where, value):
    broken = json.loads(report.FORMATS["json"][1](summary_of(), None)) | {where: value}
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        fastjsonschema.compile(schema())(broken)


def test_schema_names_every_status():
    assert set(schema()["definitions"]["status"]["enum"]) == {status.value for status in Status}


def test_failures_of_one_kernel_are_one_cause():
    causes = {cause.cause: cause.subjects for cause in summary_of().causes}
    assert causes["aten::mul: x"] == ("op:cov", "op:var")


def test_one_sentence_of_many_operators_is_one_cause():
    said = "a strided out= got another storage"
    names = [f"op:{name}/out/float32" for name in "abcdefgh"]
    alike = [Outcome(name, Status.FAIL, said, cause=f"{name}: storage") for name in names]
    (cause,) = summary_of(alike).causes
    assert (cause.cause, cause.cases) == (f"out: {said}", tuple(names))
    assert f"     8 x 8 operators: {said}" in summary_of(alike).text()
    assert len(summary_of(alike[1:]).causes) == 7, "few may have reasons of their own"
    numbers = [replace(one, message=f"result: largest error {i}") for i, one in enumerate(alike)]
    assert len(summary_of(numbers).causes) == 8, "of wrong numbers each has its own"


def test_what_passes_alone_is_said_before_all():
    many = [Outcome(f"op:{name}/out/float32", Status.FAIL, "off", cause="x") for name in "abc"]
    leaks = Outcome(
        "op:z/out/float32", Status.FLAKE, "passes alone, and failed after op:y", cause="y"
    )
    found = summary_of([*many, leaks])
    assert [cause.cause for cause in found.causes] == [LEAKS, "x"]
    assert f"{LEAKS}: passes alone, and failed after op:y" in found.text()


def test_junit_tells_failures_errors_and_skips_apart():
    root = ET.fromstring(report.FORMATS["junit"][1](summary_of(), None))
    tags = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert tags["op:add/forward/float32"] == []
    assert tags["op:add/forward/int64"] == []
    for name in ("var", "sin", "log", "inv"):  # wrong, no kernel, flake, unexpected pass
        assert tags[f"op:{name}/forward/float32"] == ["failure"]
    for name in ("cos", "tan", "exp"):
        assert tags[f"op:{name}/forward/float32"] == ["error"]
    for name in ("op:abs/out", "op:neg/out", "op:svd/forward", "op:erf/forward"):
        assert tags[f"{name}/float32"] == ["skipped"]
    for suite in root:
        cases = list(suite)
        assert int(suite.get("tests")) == len(cases)
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(kind)) == sum(case.find(tag) is not None for case in cases)


def test_run_without_execution_is_an_error_in_junit_and_no_pass_anywhere():
    root = ET.fromstring(report.FORMATS["junit"][1](NOTHING, None))
    assert [element.get("message") for element in root.iter("error")] == ["nothing was executed"]
    badge = json.loads(report.FORMATS["badge"][1](NOTHING, None))
    assert badge["message"] == "nothing executed"
    assert badge["color"] == "lightgrey"
    assert "Nothing was executed" in report.FORMATS["html"][1](NOTHING, None)
    assert "Nothing was executed" in report.FORMATS["matrix"][1](NOTHING, None)
    assert NOTHING.result == "empty"


def test_badge_is_green_only_without_anything_unexpected():
    good = json.loads(report.FORMATS["badge"][1](summary_of(OUTCOMES[:2]), None))
    bad = json.loads(report.FORMATS["badge"][1](summary_of(), None))
    assert (good["message"], good["color"]) == ("2 of 2 passed", "brightgreen")
    assert bad["color"] == "red"
    assert "unexpected" in bad["message"]


class Page(HTMLParser):
    """Collects what a page refers to, and checks that its elements close in order."""

    VOID = frozenset({"meta", "input", "link", "br", "img"})

    def __init__(self, text):
        super().__init__()
        self.references = []
        self.open = []
        self.scripts = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.references += [value for key, value in attributes if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            self.scripts[self.open[-1][1].get("id")] = data


def test_page_needs_nothing_outside_itself_and_carries_every_case():
    text = report.FORMATS["html"][1](summary_of(), None)
    page = Page(text)
    assert page.references == []
    assert page.open == []
    assert not re.search(r"@import|url\(|https?://", text)
    data = json.loads(page.scripts["data"])
    letters = "".join(
        cell for grid in data["grids"] for _, cells in grid["rows"] for cell in cells.values()
    )
    assert len(letters.replace(" ", "")) == len(OUTCOMES)
    assert "off by </script> & more" in data["messages"]


def test_page_shows_how_to_repeat_each_failure():
    text = report.FORMATS["html"][1](summary_of(), None)
    command = "npusim-conformance repro 'op:var/forward/float32'"
    assert f"{command} --device mychip --import torch_mychip" in text
    assert "print(1)" in text
    assert "missing kernel <code>aten::sin</code>" in text


def test_page_compares_with_a_baseline():
    now = summary_of()
    text = report.FORMATS["html"][1](now, Comparison.of(summary_of(OUTCOMES[:2]), now))
    assert "Since the baseline" in text


def test_every_status_has_a_letter_of_its_own():
    assert set(LETTERS) == set(MEANINGS) == set(Status)
    assert len(set(LETTERS.values())) == len(Status)


def test_not_applicable_hides_nothing():
    assert worst([Status.NA, Status.PASS]) is Status.PASS
    assert worst([Status.PASS, Status.CRASH, Status.FAIL]) is Status.CRASH
    assert worst([Status.NA]) is Status.NA


def test_matrix_has_a_row_per_operator_and_names_dtypes_that_differ():
    lines = report.FORMATS["matrix"][1](summary_of(), None).splitlines()
    assert "| `add` | f32 i64 | P, H i64 |" in lines
    assert "| `sin` |  | M |" in lines
    assert "| `stream/wait_orders_work` | P |" in lines


def test_comparison_tells_regressions_from_what_only_one_run_has():
    before = [
        Outcome("op:a/forward/float32", Status.PASS),
        Outcome("op:b/forward/float32", Status.FAIL, cause="x"),
        Outcome("op:c/forward/float32", Status.FAIL, cause="x"),
        Outcome("op:d/forward/float32", Status.PASS),
        Outcome("op:e/forward/float32", Status.PASS),
    ]
    after = [
        Outcome("op:a/forward/float32", Status.CRASH, cause="crash"),
        Outcome("op:b/forward/float32", Status.PASS),
        Outcome("op:c/forward/float32", Status.FAIL, cause="y"),
        Outcome("op:d/forward/float32", Status.NA, "gone"),
        Outcome("op:f/forward/float32", Status.FAIL, cause="z"),
    ]
    nothing = Expectations()
    found = Comparison.of(summary_of(before, nothing), summary_of(after, nothing, device="cuda"))

    def names(pairs):
        return [new.case[3] for _, new in pairs]

    assert names(found.regressions) == ["a"]
    assert names(found.fixed) == ["b"]
    assert names(found.changed) == ["c"]
    assert names(found.not_executed) == ["d"]
    assert [outcome.case[3] for outcome in found.only_before] == ["e"]
    assert [outcome.case[3] for outcome in found.new_failures] == ["f"]


def test_time_ratio_is_a_geometric_mean_over_what_can_be_timed():
    def run(*seconds):
        cases = (f"op:{n}/forward/float32" for n in range(len(seconds)))
        return summary_of(
            [Outcome(c, Status.PASS, seconds=s) for c, s in zip(cases, seconds, strict=True)]
        )

    found = Comparison.of(run(1.0, 1.0, 0.0001), run(4.0, 1.0, 0.01))
    assert found.time_ratio == pytest.approx(2.0)
    assert found.slowed == [("op:0/forward/float32", 1.0, 4.0)]
