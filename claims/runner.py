# SPDX-License-Identifier: BSD-3-Clause
"""Runs claims, each variant on each subject in a child of its own, and judges what stopped them.

No child may depend on another one, so this process has imported torch and used no device.
"""

import datetime
import functools
import gc
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from claims import as_tests, children, device, ranks
from claims.claim import VARIANTS, Claim, load
from torch_npusim import npusim

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120.0
HOW = {"device": device, "ranks": ranks}

#: The check that stopped each variant of a claim: variant -> subject -> words, "" if nothing did.
Stopped = dict[str, dict[str, str]]


def prepare() -> None:
    """Imports what children need, once for all of them.

    Raises:
        RuntimeError: If npusim is in use already: a child could not use it then.
    """
    if npusim.is_initialized():
        raise RuntimeError("claims run in children, which must be forked before npusim is used")
    torch.set_num_threads(1)
    sys.unraisablehook = lambda _: None  # loaders that could not start complain when they go
    with FakeTensorMode():
        torch.ones(1) + 1
    gc.collect()
    gc.freeze()


def outcomes(names: list[str], subjects: Iterable[str] = ()) -> Iterator[tuple[str, Stopped]]:
    """Yields each claim with its outcome; the short ones together at the end."""
    short = [name for name in names if name.startswith("lists/")]
    for name in names:
        if name not in short:
            yield name, outcome(name, subjects)
    if short and (not subjects or "npusim" in subjects):
        yield from as_tests.outcomes(short).items()


def outcome(name: str, subjects: Iterable[str] = ()) -> Stopped:
    """Returns what stopped the variants of a claim on some subjects, or on all of its kind."""
    how = HOW[load(name).how]
    chosen = [one for one in how.SUBJECTS if not subjects or one in subjects]
    return {
        variant: {subject: stopped(how.examine, name, variant, subject) for subject in chosen}
        for variant in VARIANTS
    }


def stopped(examine: Any, *of: str) -> str:
    """Returns what stopped one variant on one subject, in a child."""
    end = children.run(functools.partial(examine, *of), LIMIT_S)
    if not end.how:
        return str(end.value)
    said = re.findall(r"what\(\): .*?\] (.*)|what\(\): (.*)", end.printed)
    return f"{end.how}: {''.join(said[0])}" if said else end.how


def as_expected(claim: Claim, found: Stopped) -> bool:
    """Says whether npusim stops the wrong program, or misses it for a stated reason, and no twin.

    The plain CPU must pass both: a bug that it shows needs no device. Gloo must pass the twin. Of
    a short claim the report has to say what the claim says.
    """
    if claim.how == "tests":
        said = "wrong" not in claim.variants or re.search(
            claim.says, found["wrong"]["npusim"], re.DOTALL
        )
        return bool(said) and not found["fixed"]["npusim"]
    on_cpu = any(of.get("cpu") for of in found.values()) or bool(found["fixed"].get("gloo"))
    caught = bool(found["wrong"]["npusim"])
    return caught != bool(claim.missed) and not found["fixed"]["npusim"] and not on_cpu


def changed(names: list[str], commit: str) -> list[str]:
    """Returns the claims whose file differs from a commit; all if the runner does."""
    git = ["git", "diff", "--name-only", commit, "--", "claims"]
    found = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    new = ["git", "ls-files", "--others", "--exclude-standard", "--", "claims"]
    found += subprocess.run(new, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = found.split()
    if any(re.fullmatch(r"claims/(lists/device_calls|\w+)\.py", path) for path in files):
        return names
    files += [f"claims/specimens/{name}.py" for name in names if _list_of(name) in files]
    return [name for name in names if f"claims/specimens/{name}.py" in files]


def _list_of(name: str) -> str:
    return f"claims/{name.rpartition('/')[0]}.py"


def stamp() -> dict[str, str]:
    """Returns the commit that is checked out, the day, and the version of torch."""
    git = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"commit": commit.strip(), "day": day, "torch": torch.__version__}
