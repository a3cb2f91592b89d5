# SPDX-License-Identifier: BSD-3-Clause
"""The model of the fabric beside figures that were published, and the command that asks it."""

import json
import math
import re

import pytest
from repo.sources import ROOT

from claims.evidence.fabrics import fit
from claims.evidence.fabrics import rows as published
from torch_npusim import cli
from torch_npusim.sim import fabric

GIB, MIB = 1 << 30, 1 << 20
ROWS = fit.read(published.FILE)


def test_the_page_has_the_errors_of_the_specs(capsys):
    assert fit.main(["--check"]) == 0, capsys.readouterr().out
    page = fit.PAGE.read_text()
    low, high = re.search(r"left-out machines are ([\d.]+) to ([\d.]+) of", page).groups()
    assert f"So are {fit.inside(float(low), float(high))} blind rows" in page


def parts(text, start):
    """The table that begins with `start`, as lines."""
    lines = iter(text.splitlines())
    found = [next(line for line in lines if line.startswith(start))]
    for line in lines:
        if not line.startswith("|"):
            break
        found.append(line)
    return found


def test_the_goal_is_reached_on_machines_that_were_left_out():
    page = fit.PAGE.read_text()
    line = next(x for x in page.splitlines() if x.startswith("| each machine left out"))
    count, mean = line.split("|")[2:4]
    assert int(count) == len(ROWS) >= 40
    assert float(mean.strip(" %")) <= 100 * fit.GOAL
    rows = parts(page, "| operation, left out")[2:]
    assert len(rows) >= 5
    assert sum(int(row.split("|")[2]) for row in rows) == len(ROWS)


def test_a_fabric_has_the_interval_of_its_errors_that_were_left_out():
    """It holds nine of ten of these and of the blind rows; of few rows, all."""
    page = fit.PAGE.read_text()
    rows = {}
    for line in parts(page, "| fabric, left out")[2:]:
        name, count, _, _, within, _ = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = int(count), 1 + float(within.strip("%")) / 100
    blind = fit.read(published.BLIND_FILE)
    for name in fabric.names():
        low, high, count, _ = fabric.interval(name)
        assert low == 1 / high
        there, within = rows.get(name, (0, 1.0))
        assert (count, high >= within) == (there, True), name
        errors = [fit.logs([row])[0] for row in blind if row["fabric"] == name]
        assert sum(math.exp(abs(error)) <= high for error in errors) >= 0.9 * len(errors), name
    machines = {row["machine"]: row["fabric"] for row in ROWS}
    for line in parts(page, "| the worst twelve")[2:]:
        what, measured, modelled = (cell.strip() for cell in line.strip("|").split("|"))
        low, high, _, is_promised = fabric.interval(machines[what.partition(",")[0]])
        ratio = round(float(measured) / float(modelled), 2)
        assert is_promised or low <= ratio <= high, what


def test_the_page_for_users_has_the_number_of_rows():
    page = (ROOT / "docs" / "use" / "distributed.md").read_text()
    assert f"of {len(ROWS)} collectives" in page


def test_every_row_names_its_source_and_is_one_of_the_model():
    for row in ROWS:
        assert row["source"].split("/")[0] in {s.split("/")[0] for s in published.SOURCES} | {
            thread[-1].split("/")[0] for thread in published.THREADS
        }
        assert row["operation"] in fabric.OPERATIONS
        assert 0 < float(row["us"]) < 2e6


def test_what_is_dropped_has_a_reason():
    assert {row["reason"] for row in fit.read(published.DROPPED)} >= {
        "one iteration (-n 1), 16 channels forced",
        "a disturbed run",
    }


@pytest.mark.parametrize("name", fabric.names())
def test_a_fabric_has_no_number_that_the_model_ignores(name):
    best = fabric.routes(name, "all_reduce", ranks=8, size=MIB)
    assert fabric.routes(name, "all_reduce", ranks=8, size=MIB, changed=fabric.values(name)) == best
    with pytest.raises(KeyError, match="nic_speed"):
        fabric.routes(name, "all_reduce", ranks=8, size=MIB, changed={"nic_speed": 1})


def test_channels_of_a_transfer_grow_with_it_and_shrink_with_the_group():
    def bandwidth(size, ranks=8, per_node=8):
        found = fabric.routes("dgx-h100", "transfer", ranks=ranks, size=size, per_node=per_node)
        return found[0].bus_bandwidth

    link = fabric.values("dgx-h100")["link"]
    assert bandwidth(64 * MIB) == pytest.approx(4 / 18 * link, rel=0.03)
    assert bandwidth(128 * MIB) == pytest.approx(8 / 18 * link, rel=0.03)
    assert bandwidth(GIB) == pytest.approx(link, rel=0.03)
    assert bandwidth(64 * MIB, ranks=4, per_node=4) == pytest.approx(8 / 18 * link, rel=0.03)
    # To another node: one channel of 80 ranks, two of ten, and the whole card of two.
    assert bandwidth(GIB, ranks=80) == pytest.approx(14, rel=0.01)
    assert bandwidth(GIB, ranks=10, per_node=1) == pytest.approx(28, rel=0.01)
    nic = fabric.values("dgx-h100")["nic"]
    assert bandwidth(GIB, ranks=2, per_node=1) == pytest.approx(nic, rel=0.01)


def test_switches_add_for_five_ranks_of_a_node_or_more():
    def algorithms(ranks, per_node):
        found = fabric.routes("dgx-h100", "all_reduce", ranks=ranks, size=GIB, per_node=per_node)
        return {r.algorithm for r in found}

    assert "nvls" in algorithms(5, 5)
    assert "nvls" not in algorithms(4, 4)
    assert "nvls" not in algorithms(40, 4)


def test_beyond_two_nodes_a_card_carries_every_byte_twice():
    two, ten = (
        next(
            r.bus_bandwidth / fabric_factor(ranks)
            for r in fabric.routes("dgx-h100", "all_reduce", ranks=ranks, size=64 * GIB)
            if r.algorithm == "nvls"
        )
        for ranks in (16, 80)
    )
    values = fabric.values("dgx-h100")
    assert two == pytest.approx(values["nvls"], rel=0.01)
    assert ten == pytest.approx(8 * values["nic"] / 2, rel=0.01)


def fabric_factor(ranks):
    return 2 * (ranks - 1) / ranks


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
    (nvls,) = (line.split() for line in text.splitlines() if line.startswith("nvls"))
    assert float(nvls[3]) == pytest.approx(float(nvls[2]) / 1.42, rel=1e-3)
    assert "At least nine of ten published times, of 262 that" in text
    for name, told in (
        ("ascend-910b", "no interval, and"),
        ("pcie-box", "of 2 published times: no"),
    ):
        assert cli.main(["fabric", "--spec", name]) == 0
        assert told in capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == 0
    assert all(row["promised"] for row in json.loads(capsys.readouterr().out))
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


def test_the_plain_fabric_has_the_numbers_of_all_fabrics():
    header = fit.HEADER.read_text()
    for key, value in fabric._read("dgx-h100")["collectives"].items():
        assert float(re.search(rf"double {key} = ([\d.]+);", header)[1]) == value, key
