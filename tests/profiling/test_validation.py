# SPDX-License-Identifier: BSD-3-Clause
"""The model of time: the page's figures are those of specs/classes.toml and of the device."""

import numpy as np
import pytest
import torch
from processes import python
from repo.sources import ROOT

from claims.evidence.step_times import fit, intervals, records, validation
from claims.evidence.step_times.rows import FOLDER
from npusim_truth.recordings import is_held_out, load
from torch_npusim.fit import outside
from torch_npusim.sim import dry_run, specs


def test_the_page_has_the_errors_of_the_classes():
    done = python("-m", validation.__name__, "--check", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_goal_of_the_median_is_reached_on_what_was_left_out():
    page = validation.PAGE.read_text()
    for split in ("chip", "family"):
        line = next(x for x in page.splitlines() if x.startswith(f"| each {split} left out"))
        assert float(line.split("|")[3].strip(" %")) <= 100 * validation.GOAL_MEDIAN


def test_the_tool_and_the_device_compute_the_same_durations():
    data, x = fit.Data(FOLDER), fit.of_classes()
    each = fit.durations(data, x)
    for chip in ("t4", "rtx-4090", "a100-80-sxm"):  # without numbers of their own
        rates = fit.timeline.Rates.of_spec(chip)
        numbers = [i for i, row in enumerate(data.rows) if row["chip"] == chip][:3]
        for i in np.flatnonzero(np.isin(data.index, numbers))[:400]:
            row = fit.timeline.Row(
                **dict.fromkeys(fit.timeline.Row._fields, 0)
                | {
                    "kind": "kernel", "flops": data.flops[i], "bytes": data.bytes[i],
                    "precision": int(data.precision[i]), "work": int(data.work[i]),
                    "tiles": data.tiles[i],
                }
            )  # fmt: skip
            assert abs(rates.duration_ns(row) - each[i] * 1e9) <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(64, 4096, 4096), (64, 300, 64), (4096, 4096, 4096)])
def test_the_tool_and_the_device_split_the_same_products(shape, dtype):
    m, k, n = shape
    tile = 64 if dtype == torch.float32 else 128
    with dry_run(spec="h100-sxm"), fit.timeline.record() as made:
        torch.empty(m, k, dtype=dtype, device="npusim") @ torch.empty(
            k, n, dtype=dtype, device="npusim"
        )
    (row,) = made.commands()
    tiles = -(-m // tile) * -(-n // tile)
    assert row.tiles == fit.split(tiles, k, specs.load("h100-sxm").multiprocessors)
    assert (row.tiles > tiles) == (tiles < 66 and k > 512)


def test_the_rate_of_narrow_products_is_that_of_the_visible_recordings():
    """Two precisions and two chips; 512 x 50257 x 768 has a width that is odd."""
    rates = []
    for chip, name in (("h100-sxm", "h100"), ("h200", "h200")):
        theirs = load(ROOT / f"tests/truth/recordings/{name}-torch-2.11/recording.zip")
        for of in theirs.keys():
            narrow = "512x50257x768" in of.key and "float32" not in of.key
            if narrow and of.section == "rates" and not is_held_out(of):
                seconds = theirs.get(of)["us"] / 1e6
                rates.append(2 * 512 * 50257 * 768 / seconds / specs.load(chip).clocks)
    assert len(rates) == 4
    assert specs.classes()["model"]["narrow_flops"] == pytest.approx(np.median(rates), rel=0.01)
    assert max(rates) < 1.07 * min(rates)


def test_narrow_loads_change_no_row_of_the_fit():
    """Records have sizes and no strides: widths and depths that 16 bytes do not divide count."""
    data, x = fit.Data(FOLDER), fit.of_classes()
    f16, tf32 = (fit.timeline.PRECISIONS.index(name) for name in ("f16", "tf32"))
    whole = np.select([data.precision == f16, data.precision == tf32], [8, 4], 1)
    loads = np.gcd(np.gcd(data.n, data.k), whole)
    products = [fit.WORK.index(name) for name in ("matmul", "batched_matmul")]
    narrow = np.isin(data.work, products) & (loads < whole) & ~data.convolved
    assert narrow.sum() > 500
    now, *_ = fit.parts(data, x)
    more = np.maximum(data.flops / (fit.NARROW * loads * data.clocks) - now, 0) * narrow
    rows = len(data.rows)
    device = np.bincount(data.index, fit.durations(data, x) * data.counts, rows)
    assert (np.bincount(data.index, more * data.counts, rows) < 0.005 * device).all()


def test_intervals_are_those_of_the_rows_that_were_left_out():
    found = [line.split(" | ") for line in validation.PAGE.read_text().splitlines()]
    rows = [row for row in found if len(row) == 7 and row[1] in ("works", "idles")]
    widest = lambda device, column: max(  # noqa: E731
        float(row[column].strip(" |")) for row in rows if row[1] == device
    )
    for busy, factor in ((0.95, widest("works", 5)), (0.5, widest("idles", 6))):
        assert specs.interval("t4", busy) == pytest.approx((1 / factor, factor), rel=0.005)
        assert specs.interval("npusim-one", busy) == (1.0, 1.0)
    assert specs.device_idles(0.5)
    assert not specs.device_idles(0.95)


def test_groups_of_errors_count_alike_and_one_more_is_expected():
    # Ten groups of one error each, and one of ninety: 0.9 * 12 / 11 of the groups' errors.
    groups = np.array([*range(10), *[10] * 90])
    factors = np.array([*[2.0] * 9, 3.0, *[1.0] * 90])
    assert intervals.covering(factors, groups) == 3.0
    assert intervals.covering(factors[1:], groups[1:]) == 3.0  # the last of ten
    assert intervals.covering(factors[2:], groups[2:]) == float("inf")


def test_a_record_has_the_sizes_of_its_products():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 5), torch.nn.LayerNorm(5),
    ).to("npusim")  # fmt: skip
    images = torch.ones(2, 3, 4, 4, device="npusim")
    step = lambda: model(images).softmax(1).sum().backward()  # noqa: E731
    unique, order, modules = records.commands_of(step)
    rows = [dict(zip(records.COLUMNS, unique[i], strict=True)) for i in order]
    of = lambda row: tuple(row[key] for key in ("batch", "m", "n", "k", "taps", "stride"))  # noqa: E731
    products = {row["name"].split(".")[0]: of(row) for row in rows if row["batch"]}
    assert modules == 6
    assert products["aten::convolution"] == (1, 2 * 16, 8, 27, 9, 1)
    assert products["aten::addmm"] == (1, 2, 5, 128, 1, 1)
    assert any("native_layer_norm" in row["name"] and not row["batch"] for row in rows)


def test_workspaces_of_convolutions_cover_what_the_networks_seen_lacked():
    for row in outside.table()["convolution"]:
        for measured, predicted, moved, name in row["seen"]:
            for precision in row["precision"]:
                found = outside.convolutions(int(predicted * 1e6), {precision: moved * 1e6})
                assert found.high >= 0.999 * (measured - predicted) * 1e6, name
