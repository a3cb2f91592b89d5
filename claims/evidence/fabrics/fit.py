# SPDX-License-Identifier: BSD-3-Clause
"""The model of the fabrics against published times: docs/reference/fabrics.md.

    python -m claims.evidence.fabrics.fit           # prints the lines that need no fit
    python -m claims.evidence.fabrics.fit --check   # fails if the page lacks one of them
    python -m claims.evidence.fabrics.fit --fit     # fits specs, and writes the page

rows.py has the rows, with the filter and the split. The model is the product's: what is
fitted are numbers of its files, the rest are constants of NCCL's.
"""

import csv
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from claims.evidence.fabrics.rows import BLIND_FILE, DROPPED, FILE
from torch_npusim.sim import fabric

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "fabrics.md"
SPECS = ROOT / "torch_npusim" / "specs"
HEADER = ROOT / "backend" / "fabric.h"
BEGIN, END = "<!-- made by claims/evidence/fabrics/fit.py -->", "<!-- end -->"
GOAL, COVERED = 0.12, 0.9

#: (fabric or "" for all, name) -> where the fit begins and what weakly holds it: 82 % of a link,
#: 96 % of a card, NCCL's steps between nodes.
FITTED = {
    ("dgx-h100", "link"): 0.82 * 450,
    ("dgx-h100", "nvls"): 0.6 * 450,
    ("dgx-h100", "nic"): 0.96 * 50,
    ("dgx-h100", "net_us"): 5.0,
    ("dgx-a100", "link"): 0.82 * 300,
    ("dgx-a100", "nic"): 0.96 * 25,
    ("dgx-a100", "net_us"): 5.0,
    ("pcie-box", "link"): 0.5 * 64,
    ("ethernet-cluster", "nic"): 0.96 * 25,
    ("ethernet-cluster", "net_us"): 5.0,
    ("", "chunk"): 2e6,
    ("", "nvls_chunk"): 2.5e7,
    ("", "ll128"): 1.0,
    ("", "network_simple_us"): 14.0,
    ("", "peer_us"): 4.0,
}
KEYS = list(FITTED)
PRIOR = np.log(list(FITTED.values()))
HOLD, SCALE = 0.3, 0.1


def read(file):
    with file.open() as text:
        return list(csv.DictReader(text))


def predicted_us(row, changed=None):
    """The modelled time of a row; `changed` has numbers by fabric."""
    found = fabric.routes(
        row["fabric"],
        row["operation"],
        ranks=int(row["ranks"]),
        per_node=min(int(row["per_node"]), int(fabric.values(row["fabric"])["ranks_per_node"])),
        size=int(row["size"]),
        changed=changed and changed[row["fabric"]],
    )
    return next(r for r in found if row["algorithm"] in ("", r.algorithm)).microseconds


def changes(x):
    """Fabric -> numbers, of parameters."""
    found = defaultdict(dict)
    common = {key: math.exp(v) for (name, key), v in zip(KEYS, x, strict=True) if not name}
    for name in fabric.names():
        found[name] |= common
    for (name, key), value in zip(KEYS, x, strict=True):
        if name:
            found[name][key] = math.exp(value)
    return found


def logs(rows, x=None):
    """Logarithms of modelled over measured."""
    changed = None if x is None else changes(x)
    return np.array([math.log(predicted_us(row, changed) / float(row["us"])) for row in rows])


def fit(rows, begin=PRIOR):
    """The parameters that make the errors of the rows least."""
    from scipy.optimize import least_squares  # half a second, which a check need not wait for

    def rest(x):
        return np.concatenate([logs(rows, x), HOLD * (x - PRIOR)])

    return least_squares(
        rest, begin, loss="soft_l1", f_scale=SCALE, diff_step=1e-3, max_nfev=25
    ).x  # fmt: skip


def folds(rows):
    """The group of each row that is left out together: a machine, or ranks if there is one."""
    machines = defaultdict(set)
    for row in rows:
        machines[row["fabric"]].add(row["machine"])
    return [
        (row["fabric"], row["machine"] if len(machines[row["fabric"]]) > 1 else row["ranks"])
        for row in rows
    ]


def left_out(rows, whole):
    """Logarithms of the rows, each by the fit that has none of its fold."""
    groups = folds(rows)
    errors = np.zeros(len(rows))
    for group in sorted(set(groups)):
        there = np.array([g == group for g in groups])
        x = fit([row for row, out in zip(rows, there, strict=True) if not out], whole)
        errors[there] = logs([row for row, out in zip(rows, there, strict=True) if out], x)
    return errors


def quality(errors):
    size = np.abs(errors)
    return (
        f"{len(size)} | {math.expm1(size.mean()):.1%} | {math.expm1(np.median(size)):.1%} | "
        f"{math.expm1(np.quantile(size, 0.9)):.0%} | {math.expm1(np.median(errors)):+.0%}"
    )


HEAD = "| rows | geometric mean error | median | 90 % of rows within | median, signed |"
RULER = "|---|---|---|---|---|---|"


def current():
    """The lines that need no fit."""
    return [
        f"| all rows, by the values of specs | {quality(logs(read(FILE)))} |",
        f"| blind rows, by the same | {quality(logs(read(BLIND_FILE)))} |",
    ]


def bytes_of(size):
    for factor, word in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")):
        if size >= factor:
            return f"{size / factor:g} {word}"


def kind_of_size(row):
    size = int(row["size"])
    return "to 1 MiB" if size <= 1 << 20 else "to 64 MiB" if size <= 1 << 26 else "above"


def made_page(rows, errors):
    lines = [f"| split {HEAD}", RULER, f"| each machine left out | {quality(errors)} |", *current()]
    for title, kind in (
        ("operation", lambda row: row["operation"]),
        ("fabric", lambda row: row["fabric"]),
        ("nodes", lambda row: nodes_of(row)),
        ("size", kind_of_size),
        ("machine", lambda row: row["machine"]),
    ):
        lines += ["", f"| {title}, left out {HEAD}", RULER]
        groups = np.array([kind(row) for row in rows])
        lines += [
            f"| {group} | {quality(errors[groups == group])} |" for group in dict.fromkeys(groups)
        ]
    lines += ["", "| the worst twelve, left out | measured, us | model, us |", "|---|---|---|"]
    for number in np.argsort(-np.abs(errors))[:12]:
        row, us = rows[number], float(rows[number]["us"])
        what = f"{row['machine']}, {row['operation']}, {row['ranks']} ranks"
        modelled = us * math.exp(errors[number])
        lines.append(f"| {what}, {bytes_of(int(row['size']))} | {us:.5g} | {modelled:.5g} |")
    low, high = np.quantile(np.exp(-errors), [(1 - COVERED) / 2, (1 + COVERED) / 2])
    lines += [
        "",
        f"Nine of ten measured times of left-out machines are {low:.2f} to {high:.2f} of the "
        f"modelled time. So are {inside(low, high)} blind rows.",
    ]
    lines += ["", "| rows that were dropped | of | reason |", "|---|---|---|"]
    for reason, count, sources in dropped():
        lines.append(f"| {count} | {sources} | {reason} |")
    return "\n".join(lines)


def inside(low, high):
    blind = np.exp(-logs(read(BLIND_FILE)))
    return f"{((low <= blind) & (blind <= high)).sum()} of {len(blind)}"


def nodes_of(row):
    nodes = -(-int(row["ranks"]) // int(row["per_node"]))
    return "one" if nodes == 1 else "two" if nodes == 2 else "ten" if nodes == 10 else str(nodes)


def dropped():
    """(reason, rows, sources) of what is no row."""
    found = defaultdict(list)
    for row in read(DROPPED):
        found[row["reason"]].append(row)
    for reason, rows in found.items():
        if rows[0]["rows"] == "all":
            yield reason, "all", ", ".join(row["source"] for row in rows)
        else:
            yield reason, sum(int(row["rows"]) for row in rows), f"{len(rows)} files"


def write_specs(x):
    """Puts the fitted numbers into the files of specs/, whose comments stay."""
    for (name, key), value in zip(KEYS, x, strict=True):
        file = SPECS / "fabrics" / f"{name}.toml" if name else SPECS / "collectives.toml"
        number = repr(float(f"{math.exp(value):.3g}"))
        lines = file.read_text().splitlines()
        found = [i for i, line in enumerate(lines) if line.startswith(f"{key} = ")]
        assert len(found) == 1, (name, key)
        old, gap, comment = re.fullmatch(r"\w+ = (\S+)( *)(.*)", lines[found[0]]).groups()
        room = len(old + gap) if comment else 0
        lines[found[0]] = f"{key} = {number.ljust(room)}{comment}"
        file.write_text("\n".join(lines) + "\n")
        if not name:
            pattern = rf"(  double {key} = )[^;]+;"
            text, count = re.subn(pattern, rf"\g<1>{number};", HEADER.read_text())
            assert count == 1, key
            HEADER.write_text(text)
    fabric._read.cache_clear()


def main(words):
    lines = current()
    if "--fit" in words:
        rows = read(FILE)
        whole = fit(rows)
        write_specs(whole)
        errors = left_out(rows, whole)
        made = made_page(rows, errors)
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}")
        print(made)
        print("goal:", math.expm1(np.abs(errors).mean()) <= GOAL)
        return 0
    print("\n".join(lines))
    if "--check" in words and any(line not in PAGE.read_text() for line in lines):
        print(f"{PAGE.name} is out of date: python -m claims.evidence.fabrics.fit --fit")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
