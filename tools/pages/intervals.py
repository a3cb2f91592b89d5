# SPDX-License-Identifier: BSD-3-Clause
"""Intervals of modelled times, from published/left_out.csv, which validation.py writes."""

import csv
import math

import numpy as np
from pages.published_rows import FOLDER

COVERED = 0.9
#: The device idles if it works for less than this share of a time.
BUSY = 0.9
#: Split (the property that a fit does not see) -> the groups of errors that count alike.
SPLITS = {"chip": "machines", "family": "families", "source": "machines"}
LEFT_OUT = FOLDER / "left_out.csv"


def write_left_out(data, found):
    """Keeps what a user without a named host would have seen of each row."""
    with LEFT_OUT.open("w") as file:
        names = [f"{what}_{split}" for split in found for what in ("ratio", "busy")]
        print("machines,families,mode,batch", *names, sep=",", file=file)
        for number, row in enumerate(data.rows):
            seen = [
                f"{value:.4f}"
                for _, error, busy in (of[:, number] for of in found.values())
                for value in (1 / (1 + error), busy)
            ]
            machine = f"{row['source']} {row['chip']}"
            print(machine, row["family"], row["mode"], row["batch"], *seen, sep=",", file=file)


def covering(factors, groups):
    """Factor that nine of ten errors of one more group do not exceed; infinite if none is known.

    Each group counts the same, and the one to come counts as one whose errors exceed all: the
    conformal quantile of groups (Dunn, Wasserman and Ramdas, Distribution-Free Prediction Sets for
    Two-Layer Hierarchical Models: pooled CDFs).
    """
    names, which, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    level = COVERED * (len(names) + 1) / len(names)
    order = np.argsort(factors)
    reached = np.cumsum(1 / sizes[which[order]]) / len(names)
    if level >= 1:
        return math.inf
    return float(factors[order][np.searchsorted(reached, level)])


def factors_of(rows, split, busy):
    """(Factors by which rows of left_out.csv are off, groups): of busy devices or of the others."""
    there = [row for row in rows if (float(row[f"busy_{split}"]) >= BUSY) == busy]
    ratios = np.array([float(row[f"ratio_{split}"]) for row in there])
    return np.maximum(ratios, 1 / ratios), np.array([row[SPLITS[split]] for row in there])


def intervals():
    """(Factor of times that the device decides, largest error of others, the table of the page)."""
    with LEFT_OUT.open() as file:
        rows = list(csv.DictReader(file))
    found, lines = {True: [], False: []}, []
    for split, kind in SPLITS.items():
        for busy in (True, False):
            factors, groups = factors_of(rows, split, busy)
            covered = covering(factors, groups)
            found[busy].append(covered if busy else float(factors.max()))
            told = f"{covered:.2f}" if math.isfinite(covered) else "too few groups"
            lines.append(
                f"| {split} | {'works' if busy else 'idles'} | {len(factors)} "
                f"| {len(set(groups))} {kind} | {np.median(factors):.2f} | {told} "
                f"| {factors.max():.2f} |"
            )
    return max(found[True]), max(found[False]), lines
