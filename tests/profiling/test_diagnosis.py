# SPDX-License-Identifier: BSD-3-Clause
"""`npusim profile`: bad programs are diagnosed, mended ones gain what was predicted."""

import warnings

import pytest
import torch
from profiling.diagnosis_programs import BAD, GOOD, SPEC, diagnosed, loader
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from torch_npusim.profiling import diagnose, record
from torch_npusim.sim import dry_run, specs

from pages import diagnosis  # isort: skip

DEVICE = "npusim"
NAMES = [program.__name__ for program in BAD]


@pytest.fixture(scope="module")
def diagnoses():
    """(as it is, mended) of each bad program, made once."""
    return {bad.__name__: (diagnosed(bad, False), diagnosed(bad, True)) for bad in BAD}


@pytest.mark.parametrize(("name", "cause"), list(zip(NAMES, BAD.values(), strict=True)))
def test_a_bad_program_is_diagnosed_and_its_remedy_gains_what_was_predicted(name, cause, diagnoses):
    bad, mended = diagnoses[name]
    first = bad.advice[0]
    assert first.cause == cause
    assert all("diagnosis_programs.py" in line for line in first.lines)
    gained = 1 - mended.steady_ns / bad.steady_ns
    assert first.gain == pytest.approx(gained, abs=0.1)
    low, high = first.interval
    assert low < first.gain < high < 1


@pytest.mark.parametrize("name", NAMES)
def test_a_mended_program_gets_the_same_advice_no_more(name, diagnoses):
    bad, mended = diagnoses[name]
    first = bad.advice[0].cause
    again = [advice.gain for advice in mended.advice if advice.cause == first]
    # A link that carries half of the bytes is still what limits; TF32 is still slower than half
    # precision.
    assert not again or name in ("link", "precision")
    assert not again or again[0] < bad.advice[0].gain + 0.02


@pytest.mark.parametrize("program", GOOD, ids=[program.__name__ for program in GOOD])
def test_a_good_program_gets_no_advice(program):
    assert diagnosed(program).advice == []


def test_the_page_has_the_measured_table(diagnoses):
    programs = {program.__name__: program for program in BAD}
    made = diagnosis.table({programs[name]: pair for name, pair in diagnoses.items()})
    assert made in diagnosis.PAGE.read_text(), "python tools/pages/diagnosis.py"


def test_there_are_enough_of_each():
    assert len(BAD) >= 12
    assert len(GOOD) >= 10


# --- Loaders


def test_the_loader_is_real_time_and_can_be_scaled():
    with record() as made:
        for _ in DataLoader([1, 2, 3, 4], batch_size=2):
            pass
    assert len(made.waits) == 2
    half, whole = (diagnose(made, loader_scale=scale) for scale in (0.5, 1.0))
    assert half.loader_ns == pytest.approx(whole.loader_ns / 2, abs=2)
    assert whole.device_span_ns == half.device_span_ns


@pytest.mark.parametrize(("processors", "few"), [(1, True), (1 << 20, False)])
def test_a_loader_that_more_workers_cannot_serve_says_so(processors, few, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    first = diagnosed(loader, False).advice[0]
    assert first.cause == "loader"
    assert (f"which has {processors}" in first.what) == few
    assert ("num_workers" in first.remedy) != few


# --- Steps


def test_steps_of_inference_are_calls_of_the_model():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).to(DEVICE)
    x = torch.ones(8, 64, device=DEVICE)
    with record() as made:
        for _ in range(5):
            model(x)
    found = diagnose(made)
    assert (found.steps, found.step_kind) == (5, "calls of Sequential")
    assert len(found.steps_ns) == 4
    assert found.step_ns == 2 * made.timeline.rates.launch_latency_ns


def test_set_up_is_split_off_without_an_optimizer(diagnoses):
    with dry_run(spec=SPEC), record() as made:
        model = nn.Linear(4096, 4096).to(DEVICE)
        x = torch.ones(64, 4096, device=DEVICE)
        for _ in range(4):
            model(x)
    found = diagnose(made)
    upload = next(row for row in made.timeline.rows if row.kind == "copy_h2d_pageable")
    assert found.setup_ns >= upload.end_ns - upload.start_ns
    assert found.setup_ns + 4 * found.step_ns == pytest.approx(found.span_ns, rel=0.01)
    assert found.steady_ns == pytest.approx(3 * found.step_ns, rel=0.01)


# --- Recomputation


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpoints_keep_is_measured_and_must_fit(reentrant):
    def run(memory):
        with dry_run(spec=SPEC, memory=memory), record() as made:
            layers = [nn.Linear(2048, 2048, bias=False, device=DEVICE) for _ in range(4)]
            x = torch.ones(1 << 16, 2048, device=DEVICE, requires_grad=True)
            for _ in range(3):
                y = x
                for layer in layers:
                    call = lambda z, f=layer: f(z).relu()  # noqa: E731
                    y = checkpoint(call, y, use_reentrant=reentrant)
                y.sum().backward()
                x.grad = None
        return made, [advice.cause for advice in diagnose(made, spec=SPEC).advice]

    made, causes = run("80GiB")
    result = (1 << 16) * 2048 * 4
    assert len(made.kept) == 12
    assert all(result <= size <= 2 * result for _, size in made.kept)
    assert "recomputation" in causes
    made, causes = run("6GiB")
    assert made.free_bytes < 4 * result
    assert "recomputation" not in causes


# --- Padding


@pytest.mark.parametrize("left", [False, True])
def test_filling_is_seen_at_either_end(left):
    from torch_npusim.profiling._recording import _fill

    tokens = torch.tensor(
        [[5, 6, 7, 8, 0, 0, 0, 0], [5, 6, 7, 8, 9, 5, 0, 0], [1, 2, 3, 4, 5, 6, 7, 0]]
    )
    fill = _fill(tokens.flip(1) if left else tokens)
    # One filling token may be the sentence's own last one, and counts as such.
    assert fill.tokens == pytest.approx((5 + 7 + 8) / 24)
    assert fill.pairs == pytest.approx((25 + 49 + 64) / (3 * 64))


def test_a_target_of_many_zeros_is_no_padding():
    with dry_run(spec=SPEC), record() as made:
        model = nn.Linear(64, 1000, device=DEVICE)
        for target in DataLoader(torch.zeros(64, 1000, dtype=torch.int64), batch_size=16):
            model(torch.ones(16, 64, device=DEVICE)).sub(target.to(DEVICE)).square().sum()
    assert "padding" not in [advice.cause for advice in diagnose(made, spec=SPEC).advice]


# --- Operators and intervals


def test_the_heaviest_have_line_bound_and_intensity(diagnoses):
    heaviest = diagnoses["strided"][0].operators[0]
    assert heaviest.name == "aten::add_.Tensor"
    assert "diagnosis_programs.py" in heaviest.line
    assert heaviest.bound == "memory"
    assert diagnoses["tiny"][0].operators[0].bound == "launch"
    product = diagnoses["items"][0].operators[0]
    assert (product.name, product.bound, product.calls) == ("aten::mm", "arithmetic", 30)
    assert product.intensity == pytest.approx(2 * 2048**3 / (3 * 2 * 2048**2))


def test_gains_have_intervals_of_published_pairs():
    for cause in ("layout", "precision", "batch", "copies"):
        low, high = specs.gain_interval(cause, SPEC)
        assert 0.5 < low < 1 < high < 1.6
    assert specs.gain_interval("layout", "npusim-one") == (1.0, 1.0)


def test_a_recording_leaves_the_filters_of_warnings():
    before = list(warnings.filters)
    with record():
        assert list(warnings.filters) != before
    assert list(warnings.filters) == before
