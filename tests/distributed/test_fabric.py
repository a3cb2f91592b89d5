# SPDX-License-Identifier: BSD-3-Clause
"""The model of the fabric beside figures that were published, and the command that asks it."""

import math

import pytest
from repo.sources import ROOT

from torch_npusim import cli
from torch_npusim.sim import fabric

GIB, MIB = 1 << 30, 1 << 20
PAGE = ROOT / "docs" / "use" / "distributed.md"

# (fabric, ranks, size, bus bandwidth or us that were measured, unit, source, the algorithm that was
# forced, or the operation if it is not all_reduce, whether it was fitted). One rank a node:
# "dgx-h100 / 1".
PUBLISHED = [
    ("dgx-h100", 8, 8 * GIB, 480, "GB/s", "nccl-tests 212", "", True),
    ("dgx-h100", 8, 8 * GIB, 476, "GB/s", "nccl-tests 290", "", False),
    ("dgx-h100 (H20)", 8, 64, 14.50, "us", "DeepEP 303", "", False),
    ("dgx-h100 (H20)", 8, 1 << 10, 16.38, "us", "DeepEP 303", "", False),
    ("dgx-h100 (H20)", 8, 4 << 10, 16.69, "us", "DeepEP 303", "", False),
    ("dgx-h100 (H20)", 16, 64, 46.30, "us", "nccl 1244", "nvls", False),
    ("dgx-h100 (H20)", 16, 512, 46.58, "us", "nccl 1244", "nvls", False),
    ("dgx-h100 / 1", 2, 2 * MIB, 113.2, "us", "nccl-tests 232", "tree", False),
    ("dgx-h100 / 1", 2, 4 * MIB, 154.4, "us", "nccl-tests 232", "tree", False),
    ("dgx-h100 / 1", 2, 8 * MIB, 231.4, "us", "nccl-tests 232", "tree", False),
    ("dgx-h100 / 1", 2, 16 * MIB, 420.5, "us", "nccl-tests 232", "tree", False),
    ("dgx-h100 / 1", 2, 32 * MIB, 812.3, "us", "nccl-tests 232", "tree", False),
    ("dgx-a100", 2, 8 * GIB, 208, "GB/s", "nccl-tests 178", "", True),
    ("dgx-a100", 8, 8 * GIB, 200, "GB/s", "nccl-tests 149", "", False),
    ("dgx-h100", 8, 16 * GIB, 360, "GB/s", "nccl-tests 326", "ring", False),
    ("dgx-h100", 8, 16 * GIB, 360, "GB/s", "nccl-tests 326", "all_gather", False),
    ("dgx-h100", 8, 8 * GIB, 370, "GB/s", "nccl-tests 212", "reduce_scatter", False),
    ("dgx-h100 (H200)", 8, 4 * GIB, 475, "GB/s", "nccl-tests 272", "", False),
    ("dgx-h100", 256, 2 * GIB, 340, "GB/s", "nccl 1218", "", False),
    ("dgx-h100", 256, 2 * GIB, 200, "GB/s", "nccl 1218", "all_gather", False),
    ("dgx-a100", 8, 4 * GIB, 232.5, "GB/s", "nccl-tests 175", "", False),
    ("pcie-box", 8, GIB, 28, "GB/s", "nccl 1639", "", True),
    ("pcie-box", 4, GIB, 35, "GB/s", "nccl 1639", "", False),
    ("ethernet-cluster", 2, 8 << 10, 35.15, "us", "dgx-spark-playbooks 103", "", True),
    ("ethernet-cluster", 2, 16 << 10, 31.67, "us", "dgx-spark-playbooks 103", "", False),
    ("ethernet-cluster", 2, 32 << 10, 39.56, "us", "dgx-spark-playbooks 103", "", False),
    ("ethernet-cluster", 2, 64 << 10, 67.93, "us", "dgx-spark-playbooks 103", "", False),
]
FITTED = sum(row[-1] for row in PUBLISHED) + 2  # numbers: ring and card of dgx-h100 have no row


def error(row):
    name, ranks, size, measured, unit, _, forced, _ = row
    found = fabric.routes(
        name.split(" ")[0],
        forced if forced in fabric.OPERATIONS else "all_reduce",
        ranks=ranks,
        size=size,
        per_node=1 if name.endswith("/ 1") else None,
    )
    best = next(r for r in found if forced in ("", r.algorithm, *fabric.OPERATIONS))
    modelled = best.bus_bandwidth if unit == "GB/s" else best.microseconds
    return modelled / measured - 1


def mean(rows):
    errors = [abs(math.log1p(error(row))) for row in rows if not row[-1]]
    return math.expm1(sum(errors) / len(errors))


def table():
    """Returns the table of docs/use/distributed.md."""
    lines = ["| fabric, ranks, size | measured | error | |", "|---|---|---|---|"]
    for row in PUBLISHED:
        name, ranks, size, measured, unit, source, forced, fitted = row
        size = next(
            f"{size // factor} {word}"
            for factor, word in ((GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"), (1, "B"))
            if size >= factor
        )
        what = f"{name}, {ranks}, {size}" + (f", {forced}" if forced else "")
        note = "fitted" if fitted else ""
        lines.append(f"| {what} | {measured} {unit} ({source}) | {error(row):+.1%} | {note} |")
    return "\n".join(lines).replace("%", " %")


def test_the_page_has_the_table_and_its_means():
    page = PAGE.read_text()
    assert table() in page
    page = " ".join(page.split())
    rows = [row for row in PUBLISHED if not row[-1]]
    assert f"The {len(rows)} rows that were not fitted are off by {mean(rows):.0%}" in page.replace(
        " %", "%"
    )
    assert f"with {FITTED} numbers fitted" in page
    others = [row for row in rows if row[5] != "nccl-tests 232"]
    assert f"without its five rows the mean is {mean(others):.0%}" in page.replace(" %", "%")


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row[-1]])
def test_what_was_fitted_fits(row):
    assert abs(error(row)) < 0.05


@pytest.mark.parametrize("name", fabric.names())
@pytest.mark.parametrize("operation", fabric.OPERATIONS)
def test_more_bytes_and_shared_links_take_longer(name, operation):
    def time(size, sharing=1):
        return fabric.routes(name, operation, ranks=16, size=size, sharing=sharing)[0].microseconds

    small, large = time(1 << 10), time(1 << 28)
    assert 0 < small < large < time(1 << 28, sharing=2)


def test_small_messages_choose_latency_and_large_ones_bandwidth():
    small = fabric.routes("dgx-a100", "all_reduce", ranks=8, size=1 << 10)[0]
    large = fabric.routes("dgx-a100", "all_reduce", ranks=8, size=1 << 30)[0]
    assert small.protocol == "LL"
    assert (large.algorithm, large.protocol) == ("ring", "Simple")


def test_only_sums_for_all_ranks_are_made_in_the_switch():
    def algorithms(operation):
        return {r.algorithm for r in fabric.routes("dgx-h100", operation, ranks=8, size=GIB)}

    assert "nvls" in algorithms("all_reduce")
    for operation in fabric.OPERATIONS[1:]:
        assert "nvls" not in algorithms(operation), operation


def test_one_rank_a_node_uses_one_card():
    alone = fabric.routes("dgx-h100", "all_reduce", ranks=2, size=GIB, per_node=1)[0]
    assert 40 < alone.bus_bandwidth < 48
    with pytest.raises(ValueError, match="a node of dgx-h100 has 1 to 8 ranks, got 9"):
        fabric.routes("dgx-h100", "all_reduce", ranks=9, size=GIB, per_node=9)


def test_an_unknown_fabric_is_named_with_those_that_are_known():
    with pytest.raises(ValueError, match="'dgx-h101'; known are ascend-910b"):
        fabric.use("dgx-h101")


def test_the_command(capsys):
    arguments = ["fabric", "--spec", "dgx-h100", "--ranks", "16", "--size", "256MiB"]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert "all_reduce of 256.00 MiB over 16 ranks" in text
    assert "nvls" in text
    with pytest.raises(SystemExit):
        cli.main(["fabric", "--size", "much"])
    assert "'much' is not a size" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_leaves_the_sum_everywhere(ranks):
    chunks = [[{(rank, chunk)} for chunk in range(ranks)] for rank in range(ranks)]
    for step in fabric.ring(ranks):
        sent = [(send, set(chunks[send.sender][send.chunk])) for send in step]
        for send, what in sent:
            mine = chunks[send.receiver][send.chunk]
            assert not (send.adds and mine & what), "added twice"
            chunks[send.receiver][send.chunk] = mine | what if send.adds else what
    for rank in range(ranks):
        for chunk in range(ranks):
            assert chunks[rank][chunk] == {(other, chunk) for other in range(ranks)}


def test_the_command_prints_a_ring(capsys):
    assert cli.main(["fabric", "--ring", "--ranks", "3", "--size", "3MiB"]) == 0
    text = capsys.readouterr().out
    assert "4 steps, in each of which every rank sends 1.00 MiB to the next" in text
    assert "chunk 2, to add" in text
