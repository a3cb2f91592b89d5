# SPDX-License-Identifier: BSD-3-Clause
"""The recorded corpus: each file says what it is, and a replay does again what the run did."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim_lab
from npusim_lab.files import load
from npusim_lab.matching import agreement
from npusim_lab.recording import replay_recorded

FILES = sorted((Path(npusim_lab.__file__).parent / "recorded").glob("*.npt"))


def test_there_are_the_models_that_the_page_names() -> None:
    names = {path.stem for path in FILES}
    assert {"llama-train", "llama-checkpoint", "llama-lora", "llama-generate"} <= names
    assert {"llama-continuous", "bert-train", "vit-train", "resnet-train", "unet-train"} <= names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_replay_places_every_block_as_the_run_did(path: Path) -> None:
    trace = load(path)
    same = agreement(trace, replay_recorded(trace))
    assert same.equal == same.compared == trace.compiled.mallocs > 1000
    assert trace.info["source"] == "npusim run"
    assert trace.info["program"] == path.stem
    assert trace.info["licence"] == "BSD-3-Clause"
    assert trace.ambiguous == ()
    assert path.stat().st_size < 100_000
    files = {file for stack in trace.stacks for file, _, _ in stack}
    assert not any("/" in file for file in files), "no folder of the machine that recorded it"
