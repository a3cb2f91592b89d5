# SPDX-License-Identifier: BSD-3-Clause
"""Intervals of modelled times, from the errors of rows that a fit did not see."""

import math

import numpy as np

COVERED = 0.9
#: The device idles if it works for less than this share of a time.
BUSY = 0.9
#: Split (the property that a fit does not see) -> the groups of errors that count alike.
SPLITS = {"chip": "machines", "family": "families", "source": "machines"}


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


def intervals(rows, found):
    """(Factor of times that the device decides, largest error of others, the table of the page).

    `found` has for each split the errors of fit.left_out. Those by the host of no name count,
    which are what a user without a named host would have seen.
    """
    groups = {
        "machines": np.array([f"{row['source']} {row['chip']}" for row in rows]),
        "families": np.array([row["family"] for row in rows]),
    }
    widths, lines = {True: [], False: []}, []
    for split, kind in SPLITS.items():
        _, errors, works = found[split]
        for busy in (True, False):
            there = (works >= BUSY) == busy
            factors, of = np.exp(np.abs(np.log1p(errors[there]))), groups[kind][there]
            covered = covering(factors, of)
            widths[busy].append(covered if busy else float(factors.max()))
            told = f"{covered:.2f}" if math.isfinite(covered) else "too few groups"
            lines.append(
                f"| {split} | {'works' if busy else 'idles'} | {len(factors)} "
                f"| {len(set(of))} {kind} | {np.median(factors):.2f} | {told} "
                f"| {factors.max():.2f} |"
            )
    return max(widths[True]), max(widths[False]), lines
