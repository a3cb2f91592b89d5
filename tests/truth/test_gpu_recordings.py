# SPDX-License-Identifier: BSD-3-Clause
"""Memory in the recordings of GPUs, beside the claims that need no run."""

import pytest
from repo.sources import ROOT

from npusim_truth import comparison, page
from npusim_truth.recordings import Recording, load

FOLDER = ROOT / "tests/truth/recordings"


@pytest.fixture(scope="module")
def h100():
    return load(FOLDER / "h100-torch-2.11/recording.zip")


@pytest.fixture(scope="module")
def verdicts(h100):
    """Of the programs that ran to their end."""
    places = {
        key: answer
        for key, answer in h100.answers["allocation"].items()
        if key.startswith("places|") and "entries" in answer
    }
    only = Recording("h100", {"identity": h100.answers["identity"], "allocation": places}, {})
    return comparison.compare(only, only)


def test_each_block_of_an_h100_is_placed_as_there(h100, verdicts):
    wrong = [v for v in verdicts if v.kind == "placements" and not v.agrees]
    assert wrong == []
    assert "11,516 of 11,516 placements are equal." in page.head(h100, h100, verdicts)


def test_counters_of_an_h100_follow_from_the_replay(verdicts):
    # One more retry was counted on the device, under a threshold of garbage collection and a limit.
    found = {v.of.key: v.ours for v in verdicts if v.kind == "counters"}
    wrong = [v for v in verdicts if v.kind == "counters" and not v.agrees]
    assert len(found) == 77
    assert [(v.of.key, v.theirs, v.ours) for v in wrong] == [
        (
            "places|full|garbage_collection_threshold:0.6",
            {"num_alloc_retries": 5},
            {"num_alloc_retries": 4},
        )
    ]


def test_memory_outside_of_an_h100_is_within_the_interval_of_fit(h100):
    def agree(answers):
        only = Recording("x", {"identity": h100.answers["identity"], "allocation": answers}, {})
        return [v.agrees for v in comparison.compare(only, only) if v.kind == "outside"]

    known = {key: of for key, of in h100.answers["allocation"].items() if "outside|" in key}
    assert agree(known) == [True] * 4
    assert agree({"outside|context": 1 << 30}) == [False]


def test_an_error_of_memory_is_compared_by_what_the_allocator_says():
    def raised(allocated, free):
        text = f"CUDA out of memory. Tried to allocate 32.00 MiB. of which {free} GiB is free. "
        text += f"512.00 MiB allowed; Of the allocated memory {allocated} MiB is allocated by "
        return {"raised": ["OutOfMemoryError", text + "PyTorch, and 1.00 MiB is reserved by PyT"]}

    def agrees(theirs, ours):
        sides = (Recording("x", {"allocation": {"places|full|": of}}, {}) for of in (theirs, ours))
        return [v.agrees for v in comparison.compare(*sides)]

    assert agrees(raised("394.00", 78.2), raised("394.00", 79.1)) == [True]
    assert agrees(raised("394.00", 78.2), raised("393.00", 78.2)) == [False]
    assert agrees(raised("394.00", 78.2), {"entries": [], "stats": {}}) == [False]


@pytest.mark.parametrize("key", ["peak|a net", "reserved|a net"])
def test_peaks_agree_within_their_share(key):
    def agrees(theirs, ours):
        sides = (Recording("x", {"acceptance": {key: peak}}, {}) for peak in (theirs, ours))
        return [(v.kind, v.agrees) for v in comparison.compare(*sides)]

    beside = int(1000 * comparison.PEAK)
    assert agrees(1000, 1000 + beside) == [("peaks", True)]
    assert agrees(1000, 1001 + beside) == [("peaks", False)]
