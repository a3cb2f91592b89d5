# SPDX-License-Identifier: BSD-3-Clause
"""Scripts that were written and committed before the diagnosis saw them: first advice, and none.

The docstring of a bad script in `blind/` names its cause. MENDED has what a person would change.
"""

import re
import runpy
from pathlib import Path

import pytest
import torch
from profiling.diagnosis_programs import diagnosed

FOLDER = Path(__file__).parent / "blind"
GOOD = sorted(FOLDER.glob("good_*.py"))
BAD = sorted(set(FOLDER.glob("*.py")) - set(GOOD))

#: Script -> (what it says, what it says when it is mended).
MENDED = {
    "actor": (
        """        if done.any():
            state = torch.zeros_like(state)
        if value.max().item() > best:
            best = float(value.max())
        shown.append([part.item() for part in (value.mean(), value.std(), state.norm())])
""",
        """        state = torch.where(done.any(), torch.zeros_like(state), state)
        best = value.max()
        shown.append(torch.stack([value.mean(), value.std(), state.norm()]))
""",
    ),
    "critic": ("device = ", 'torch.set_float32_matmul_precision("high")\ndevice = '),
    "denoise": (
        "net = UNet().to(",
        "net = UNet().to(memory_format=torch.channels_last, device=",
    ),
    "experts": ("foreach=False", "foreach=True"),
    "finetune": ("self.save_memory = True", "self.save_memory = False"),
    "sampler": (
        "net = Mixer().to(device).eval()\nx = torch.randn(512, 2048, device=device)",
        "net = Mixer().to(device, torch.bfloat16).eval()\n"
        "x = torch.randn(512, 2048, device=device, dtype=torch.bfloat16)",
    ),
    "spectra": (
        "torch.zeros(batch, bands, frames)",
        "torch.zeros(batch, bands, frames, dtype=half)",
    ),
    "tabular": ("torch.ones(rows, columns, ", 'torch.ones(rows, columns, device="npusim", '),
    "translator": (
        "    filled = torch.zeros(len(chosen), LONGEST, dtype=torch.int64)",
        "    filled = torch.zeros(len(chosen), max(map(len, chosen)), dtype=torch.int64)",
    ),
}


def cause_of(path):
    return re.search(r"Cause: (\w+)", path.read_text())[1]


def run(path, mended=False):
    if not mended:
        runpy.run_path(str(path), run_name="__main__")
        return
    before, after = MENDED[path.stem]
    text = path.read_text()
    assert text.count(before) == 1
    text = text.replace(before, after)
    if path.stem == "translator":  # like lengths in a batch
        text = text.replace(
            "order = list(range(len(sentences)))",
            "order = sorted(range(len(sentences)), key=lambda i: lengths[i])",
        )
    if path.stem == "denoise":
        text = text.replace("images = ", "layout = torch.channels_last\nimages = ").replace(
            'device="npusim")\nfor', 'device="npusim").to(memory_format=layout)\nfor'
        )
    exec(compile(text, path, "exec"), {"__name__": "__main__"})


@pytest.fixture(autouse=True)
def no_words(monkeypatch):
    monkeypatch.setattr("sys.argv", ["script.py"])


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_script_gets_its_advice_first_and_gains_what_was_predicted(path):
    bad = diagnosed(run, path)
    first = bad.advice[0]
    assert first.cause == cause_of(path)
    gained = 1 - diagnosed(run, path, True).steady_ns / bad.steady_ns
    assert first.gain == pytest.approx(gained, abs=0.15)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_script_gets_no_advice(path):
    assert diagnosed(run, path).advice == []


def test_there_are_enough_of_each():
    assert (len(BAD), len(GOOD)) == (9, 6)
    assert torch.get_float32_matmul_precision() == "highest"
