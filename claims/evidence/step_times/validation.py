# SPDX-License-Identifier: BSD-3-Clause
"""The model of time against published figures: docs/reference/validation.md.

    python -m claims.evidence.step_times.validation   # prints the part of the page that is made
        --check    # fails if the page or the classes are out of date
        --fit      # fits specs/classes.toml and writes the page
        --errors   # as --fit, with the values as they are
        --blind    # errors on rows that no fit has seen
        --hosts    # what a command costs the hosts of specs/hosts

rows.py chose the rows before the first fit; fit.py fits. The split has three parts:
each chip is left out of a fit, each family of models is, and each source is. The page states the
errors of what was left out, and the intervals are made from them.
"""

import csv
import itertools
import math
import re
import sys
from pathlib import Path

import numpy as np

from claims.evidence.step_times.fit import (
    DISPATCH,
    HOSTS,
    MODULE,
    Data,
    durations,
    fit,
    host_bound,
    host_seconds,
    left_out,
    of_classes,
    predicted,
    write_classes,
)
from claims.evidence.step_times.intervals import COVERED, SPLITS, intervals
from claims.evidence.step_times.rows import BLIND, FOLDER
from torch_npusim.sim import specs

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "validation.md"

GOAL_MEDIAN, GOAL_WITHIN = 0.12, 0.90


def pairs(rows):
    """Yields (change, before, after, factor of the time after) of rows that differ in one thing.

    A change of batch is judged by the time of a sample.
    """
    alike = {}
    for number, row in enumerate(rows):
        fixed = ("source", "chip", "model", "size", "mode", "torch")
        alike.setdefault(tuple(row[key] for key in fixed), []).append(number)
    for group in alike.values():
        for a, b in itertools.permutations(group, 2):
            before, after = ((rows[number]["dtype"], rows[number]["layout"]) for number in (a, b))
            batches = [int(rows[number]["batch"]) for number in (a, b)]
            if (
                batches[0] == batches[1]
                and before[0] == after[0]
                and before[1] == "nchw" != after[1]
            ):
                yield "layout", a, b, 1.0
            elif batches[0] == batches[1] and before[0] in ("fp32", "tf32") and after[0] == "amp":
                yield "precision", a, b, 1.0
            elif (
                before == after
                and batches[0] < batches[1]
                and not any(
                    batches[0] < int(rows[c]["batch"]) < batches[1]
                    for c in group
                    if (rows[c]["dtype"], rows[c]["layout"]) == before
                )
            ):
                yield "batch", a, b, batches[0] / batches[1]


def gains(data, errors):
    """Change -> (gain by the model, gain as published) of each pair; "" has all."""
    times = data.seconds * (1 + errors)
    found = {"": []}
    for change, a, b, factor in pairs(data.rows):
        pair = tuple(1 - factor * t[b] / t[a] for t in (times, data.seconds))
        for key in ("", change):
            found.setdefault(key, []).append(pair)
    return {key: np.array(values) for key, values in found.items()}


def rests(found):
    """Change -> factors of the modelled rest of the time between which nine of ten are."""
    ends = [(1 - COVERED) / 2, (1 + COVERED) / 2]
    return {
        key: tuple(float(end) for end in np.quantile((1 - v[:, 1]) / (1 - v[:, 0]), ends))
        for key, v in found.items()
    }


def quality(errors):
    size = np.abs(errors)
    return (
        f"{len(size)} | {np.median(size):.1%} | {np.quantile(size, 0.9):.0%} | "
        f"{(size < 0.25).mean():.1%} | {np.median(errors):+.0%}"
    )


_HEAD = "| rows | median error | 90 % of rows within | share within 25 % | median, signed |"


def current(data):
    """The line that needs no fit: all rows by what the product has."""
    errors = predicted(data, of_classes()) / data.seconds - 1
    return f"| all rows, by the values of classes.toml | {quality(errors)} |"


def hosts(data):
    """Host -> (factor of the host of no name, rows) by the rows that its machine's host decides."""
    x = of_classes()
    quotient, bound = data.seconds / host_seconds(data, x), host_bound(data, x)
    found = {}
    for number, host in enumerate(HOSTS):
        there = (data.host == number + 1) & bound
        found[host] = float(np.median(quotient[there])), int(there.sum())
    return found


def write_hosts(data):
    """Puts the costs of named hosts into their files."""
    x = of_classes()
    for host, (factor, rows) in hosts(data).items():
        file = specs.HOSTS / f"{host}.toml"
        text = file.read_text()
        for name, key in (("dispatch_us", DISPATCH), ("module_us", MODULE)):
            cost = factor * math.exp(x[key]) * 1e6
            text = re.sub(rf"{name} = \[[\d.]+", f"{name} = [{cost:.1f}", text)
        file.write_text(re.sub(r"of \d+ rows", f"of {rows} rows", text))


def gains_table(found):
    """Lines of the page: gains of pairs of rows."""
    lines = [
        "| change, its chip left out | pairs | median error of the gain | nine of ten within "
        "| the rest of the time is, of the modelled rest |",
        "|---|---|---|---|---|",
    ]
    for change, (low, high) in rests(found).items():
        size = 100 * np.abs(found[change][:, 0] - found[change][:, 1])
        lines.append(
            f"| {change or 'all'} | {len(size)} | {np.median(size):.1f} points "
            f"| {np.quantile(size, 0.9):.0f} points | {low:.2f} to {high:.2f} |"
        )
    return lines


def made_page(data, by_chip, by_family, by_source, kinds):
    rows = data.rows
    lines = [f"| split {_HEAD}", "|---|---|---|---|---|---|", current(data)]
    lines.append(f"| each chip left out | {quality(by_chip)} |")
    lines.append(f"| each family left out | {quality(by_family)} |")
    lines.append(f"| each source left out | {quality(by_source)} |")
    for title, key, errors in (
        ("chip, left out", "chip", by_chip),
        ("family, left out", "family", by_family),
        ("mode, its chip left out", "mode", by_chip),
    ):
        lines += ["", f"| {title} {_HEAD}", "|---|---|---|---|---|---|"]
        groups = np.array([row[key] for row in rows])
        lines += [
            f"| {group} | {quality(errors[groups == group])} |" for group in sorted(set(groups))
        ]
    lines += ["", "| the worst ten, their chip left out | published | model |", "|---|---|---|"]
    for number in np.argsort(-np.abs(np.log1p(by_chip)))[:10]:
        row = rows[number]
        what = " ".join(row[k] for k in ("chip", "model", "mode", "dtype", "layout") if row[k])
        value = float(row["value"])
        lines.append(
            f"| {what}, batch {row['batch']} | {value:.4g} ms "
            f"| {value * (1 + by_chip[number]):.4g} |"
        )
    lines += [
        "", "| left out | the device | rows | groups | median factor | for nine of ten | largest |",
        "|---|---|---|---|---|---|---|", *kinds,
    ]  # fmt: skip
    lines += ["", *gains_table(gains(data, by_chip))]
    lines += ["", "| rows that were dropped | reason |", "|---|---|"]
    with (FOLDER / "dropped.csv").open() as file:
        lines += [f"| {r['rows']} of {r['source']} | {r['reason']} |" for r in csv.DictReader(file)]
    if data.without:
        lines.append(f"| {data.without} | the program fails: its fused form mixes precisions |")
    return "\n".join(lines)


BEGIN, END = "<!-- made by claims/evidence/step_times/validation.py -->", "<!-- end -->"


def blind_page():
    """Errors and coverage of the intervals on rows that no fit has seen."""
    data = Data(BLIND)
    errors = predicted(data, of_classes()) / data.seconds - 1
    x = of_classes()
    busy = np.bincount(data.index, durations(data, x) * data.counts, len(errors))
    busy /= predicted(data, x)
    within = np.array([
        low <= 1 / (1 + error) <= high
        for row, error, works in zip(data.rows, errors, busy, strict=True)
        for low, high in [specs.interval(row["chip"], works)]
    ])  # fmt: skip
    lines = [f"| blind {_HEAD} in the interval |", "|---|---|---|---|---|---|---|"]
    groups = {"all": np.ones(len(errors), bool)}
    for key in ("mode", "chip", "family"):
        of = np.array([row[key] for row in data.rows])
        groups |= {name: of == name for name in sorted(set(of))}
    for name, there in groups.items():
        lines.append(f"| {name} | {quality(errors[there])} | {within[there].mean():.0%} |")
    return "\n".join(lines)


def main(words):
    if "--blind" in words:
        print(blind_page())
        return 0
    data = Data(FOLDER)
    if "--fit" in words or "--errors" in words:
        fitted = "--fit" in words
        whole = fit(data, np.ones(len(data.rows), bool)) if fitted else of_classes()
        found = {split: left_out(data, split, whole) for split in SPLITS}
        by_chip, by_family, by_source = (found[split][0] for split in SPLITS)
        *widths, kinds = intervals(data.rows, found)
        write_classes(whole, widths, rests(gains(data, by_chip)))
        specs.classes.cache_clear()
        write_hosts(data)
        head, rest = PAGE.read_text().split(BEGIN)
        made = made_page(data, by_chip, by_family, by_source, kinds)
        PAGE.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}")
        print(made)
        for errors in (by_chip, by_family):
            reached = np.median(np.abs(errors)) <= GOAL_MEDIAN, (np.abs(errors) < 0.25).mean()
            print("goal:", reached[0], reached[1] >= GOAL_WITHIN)
        return 0
    if "--hosts" in words:
        x = of_classes()
        for host, (factor, rows) in hosts(data).items():
            command, module = (factor * np.exp(x[key]) * 1e6 for key in (DISPATCH, MODULE))
            print(f"{host}: {command:.1f} us a command, {module:.1f} us a module, {rows} rows")
        return 0
    line = current(data)
    print(line)
    if "--check" in words and line not in PAGE.read_text():
        print(f"{PAGE.name} is out of date: python -m claims.evidence.step_times.validation --fit")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
