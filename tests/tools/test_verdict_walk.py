# SPDX-License-Identifier: BSD-3-Clause
"""Sentences of a verdict beside a walk over the pickle that knows dictionaries and sums alone."""

import io
import pickle
import re
from pathlib import Path

import pytest

import npusim_lab
from claims.reports import RECORDED
from npusim_lab import Choice, explain, load
from npusim_lab.snapshot_export import to_snapshot
from npusim_lab.snapshot_import import read_snapshot

MIB = 1 << 20
WHOLE = Path(npusim_lab.__file__).parent / "recorded"
FILES = [*sorted(RECORDED.glob("*.npt")), WHOLE / "llama-generate.npt", WHOLE / "vit-train.npt"]


class Walk:
    """Sums over the entries of a snapshot, up to one that failed or to the end."""

    def __init__(self, snapshot):
        self.failed, self.live = None, {}
        self.reserved = self.most_reserved = self.in_use = self.most_in_use = 0
        self.most_at, self.held = 0, {}
        for number, entry in enumerate(snapshot["device_traces"][0]):
            action, size = entry["action"], entry["size"]
            if action == "alloc":
                self.live[entry["addr"]] = entry
                self.in_use += size
            elif action == "free_requested":
                self.in_use -= self.live.pop(entry["addr"])["size"]
            elif action in ("segment_alloc", "segment_map"):
                self.reserved += size
            elif action in ("segment_free", "segment_unmap"):
                self.reserved -= size
            elif action == "oom":
                self.failed = number, size
                break
            if self.in_use > self.most_in_use:
                self.most_in_use, self.most_at, self.held = self.in_use, number, dict(self.live)
            self.most_reserved = max(self.most_reserved, self.reserved)
        if self.failed:
            self.held = self.live

    def by_line(self):
        """Bytes that are held, by the words that the verdict may have for a stack."""
        sums = {}
        for entry in self.held.values():
            for frame in entry.get("frames", ()):
                short = re.sub(r".*-packages/", "", frame["filename"])
                if short == frame["filename"]:
                    short = "/".join(short.split("/")[-2:])
                name = f"{frame['name']} ({short}:{frame['line']})"
                sums.setdefault(name, []).append(entry["size"])
        return sums


def numbers(pattern, text):
    """The numbers of MiB that a sentence has; bytes where it has bytes."""
    unit = r"([\d.]+) (MiB|bytes)"
    found = re.search(pattern.replace("SIZE", unit), text)
    assert found, (pattern, text)
    values = re.findall(unit, found[0])
    return [float(value) * (MIB if unit == "MiB" else 1) for value, unit in values]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_sentences_are_true_of_the_file(path, tmp_path):
    trace = load(path)
    file = io.BytesIO()
    run = Choice(trace.info.get("policy", "cuda-2.13"), trace.info.get("settings", ""))
    pickle.dump(to_snapshot(trace.with_attempts(), run, trace.capacity_bytes), file)
    (tmp_path / "snapshot.pickle").write_bytes(file.getvalue())
    walk = Walk(pickle.loads(file.getvalue()))
    answer = explain(read_snapshot(tmp_path / "snapshot.pickle"), quick=True)
    said, near = answer["verdict"], {"abs": 0.06 * MIB}
    rounding = answer["beyond_requests"]
    assert (answer["oom"] is not None) == (walk.failed is not None)
    if walk.failed:
        number, size = walk.failed
        assert re.search(rf"Event {number}( of the file|, |\s)", said), (number, said)
        asked, _, in_use = numbers(r"asks for SIZE on a device of SIZE with SIZE in use", said)
        assert asked == pytest.approx(size, **near)
        assert numbers(r"SIZE are reserved, ", said) == pytest.approx([walk.reserved], **near)
    else:
        in_use = numbers(r"At the peak of use, event .*?, SIZE of blocks are in use", said)[0]
        assert answer["peak_reserved"] == walk.most_reserved
        assert walk.most_in_use == answer["max_live"]
    requested = sum(entry["size"] for entry in walk.held.values())
    assert requested - 0.06 * MIB <= in_use <= requested + rounding + 0.06 * MIB
    sums = walk.by_line()
    (held,) = [text for text in answer["sentences"] if text.startswith("Most memory is held")]
    named = re.findall(r"([\d.]+) MiB by ([^;]*?\))(?:, called| \()", held)
    for place, (bytes, name) in enumerate(named):
        assert float(bytes) * MIB <= sum(sums[name]) + rounding + 0.06 * MIB, name
        assert place or float(bytes) * MIB >= max(sums[name]) - 0.06 * MIB, name
    for text in answer["sentences"]:
        if text.startswith("The peak of use was before"):
            (most,) = numbers(r"with SIZE of blocks", text)
            assert walk.most_in_use - 0.06 * MIB <= most
            assert f"at event {walk.most_at}, " in text
    top = answer["holders"][0]["bytes"]
    assert top <= requested + rounding
    assert top >= max(entry["size"] for entry in walk.held.values())
