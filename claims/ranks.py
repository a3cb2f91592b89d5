# SPDX-License-Identifier: BSD-3-Clause
"""Runs one variant of a claim on two ranks, threads of one process: gloo on the CPU, npusim."""

import gc
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from claims.claim import Claim, load
from torch_npusim import npusim
from torch_npusim.testing.ranks import RanksFailed, run_ranks

RANKS = 2
LIMIT_S = 3.0
SUBJECTS = {"gloo": "cpu", "npusim": "npusim"}


class Found(Exception):
    """Report of one of npusim's checks."""


def _collectives_of(step: Callable[[], object]) -> int:
    group: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npusim"))
    step()
    step()  # DDP has made its final buckets
    before = group._get_sequence_number_for_group()
    step()
    return int(group._get_sequence_number_for_group() - before)


def _bytes_held_by(build: Callable[[], object]) -> int:
    before = npusim.memory_allocated()
    kept = build()
    gc.collect()
    held = npusim.memory_allocated() - before
    del kept
    return held


def _be_rank(claim: Claim, variant: str, subject: str) -> None:
    use = claim.variants[variant](SUBJECTS[subject])
    if claim.check == "raises":
        return
    assert use is not None
    if subject == "gloo":  # nobody watches
        use()
    elif claim.check == "collectives":
        taken = _collectives_of(use)
        if taken > claim.most:
            raise Found(f"{taken} collectives a step where {claim.most} would do")
    else:
        held = _bytes_held_by(use)
        if held > claim.most:
            raise Found(f"{held >> 10} KiB of the device are held, {claim.most >> 10} would do")


def _first_line(failure: BaseException) -> str:
    """The raised error, without what differs from run to run: files, ports and times."""
    lines = str(failure).splitlines() or [""]
    text = re.sub(r"\[?/?\S*/gloo/\S*\]? ?", "", lines[0])
    text = re.sub(r" ?\[?(127\.0\.0\.1|::1|0\.0\.0\.0)\]?:\d+", "", text)
    text = re.sub(r"\bran for \d+ milliseconds", "ran for ... milliseconds", text)
    text = re.sub(r" at \S+\.py:\d+", "", text)
    return f"{type(failure).__name__}: {text}"


def examine(name: str, variant: str, subject: str) -> str:
    """Returns what stopped a variant on a subject, as the lowest rank that was stopped puts it."""
    claim = load(name)
    gc.collect()
    before = npusim.get_race_detection()
    npusim.set_race_detection("error")
    try:
        run_ranks(
            _be_rank,
            RANKS,
            claim,
            variant,
            subject,
            timeout=LIMIT_S if variant == "wrong" and claim.check == "raises" else 60.0,
            backend="gloo" if subject == "gloo" else claim.backend,
        )
    except RanksFailed as failed:
        return _first_line(failed.failures[min(failed.failures)])
    finally:
        npusim.set_race_detection(before)
    return ""
