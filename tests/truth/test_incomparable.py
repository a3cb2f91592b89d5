# SPDX-License-Identifier: BSD-3-Clause
"""Questions without an answer that both sides could give are counted apart, with their reason."""

from pages.truth import FOLDER

from npusim_truth import comparison, recordings, versions


def verdict_of(section, key, his, mine, **more):
    sides = ({section: {key: of}, **more} for of in (his, mine))
    (found,) = (
        v
        for v in comparison.compare(*(recordings.Recording("x", side, {}) for side in sides))
        if v.of.key == key
    )
    return found


def test_a_seed_that_nobody_set_is_not_compared():
    drawn = verdict_of("answers", "value|torch.cuda.initial_seed()", 1, 2)
    assert (drawn.agrees, drawn.is_wrong) == (False, False)
    (line,) = comparison.disagreements([drawn])
    assert line.startswith("not comparable: answers: answers|value|torch.cuda.initial_seed() (")
    assert verdict_of("answers", "value|torch.cuda.device_count()", 1, 2).is_wrong


def test_an_operator_with_another_first_sample_is_not_compared():
    def asked(call):
        return {"call": call, "forward": 1, "backward": 1}

    def verdicts(theirs, ours):
        sides = (
            {"rates": {"launches|histc": asked(call)}, "acceptance": {"waits|histc": waits}}
            for call, waits in ((theirs, ["forward"]), (ours, []))
        )
        both = comparison.compare(*(recordings.Recording("x", side, {}) for side in sides))
        return [(v.kind, v.is_wrong) for v in both if not v.agrees]

    assert verdicts("histc(min=0)", "histc(min=0)") == [("waits", True)]
    assert verdicts("histc(min=0)", "histc(min=1)") == [("waits", False)]


def test_a_warning_is_compared_without_its_line_in_the_sources():
    said = "UserWarning: a beta (Triggered internally at <path>/{}.)"
    his, mine = [said.format("a.cu:1")], [said.format("b.cpp:2")]
    assert verdict_of("acceptance", "warns|x", his, mine).agrees


def test_each_reason_not_to_compare_is_met_by_a_recording():
    files = [*FOLDER.glob("*.txt"), *FOLDER.glob("*/disagreements.txt")]
    lines = "".join(path.read_text() for path in files)
    assert [row for row in versions.incomparable() if row.reason not in lines] == []
