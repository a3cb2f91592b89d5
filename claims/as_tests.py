# SPDX-License-Identifier: BSD-3-Clause
"""Short claims as tests of a library that is written for CUDA: one run of pytest for all.

`outcomes` starts pytest with this file, as its tests and as a plugin that notes what each says.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from claims.claim import load

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900
OPTIONS = ("--npusim-as-cuda", "--npusim-sync=error", "--npusim-races=error", "--npusim-devices=2")
CHOSEN: list[str] = json.loads(os.environ.get("CLAIMS_CHOSEN", "[]"))
ENDS: dict[str, dict[str, str]] = {}


def outcomes(names: list[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Returns what stopped the variants of short claims on npusim: name -> variant -> subject."""
    kept = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["--import-mode=importlib", "-p", "no:cacheprovider", "-p", "claims.as_tests"]
    with tempfile.NamedTemporaryFile("r") as ends:
        kept |= {"CLAIMS_CHOSEN": json.dumps(names), "CLAIMS_ENDS": ends.name}
        done = subprocess.run(
            [*command, *OPTIONS, __file__], cwd=ROOT, env={**kept, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        told = ends.read()
    if not told:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-3000:]}")
    found = json.loads(told)
    none = {"wrong": "", "fixed": "no end"}
    return {
        name: {variant: {"npusim": found.get(name, none).get(variant, "")} for variant in none}
        for name in names
    }


@pytest.mark.parametrize(
    ("name", "variant"), [(name, variant) for name in CHOSEN for variant in load(name).variants]
)
def test_claim(name: str, variant: str) -> None:
    """Runs a variant; what it raises, and what the plugin says of it, is its outcome."""
    import torch

    load(name).variants[variant](torch.ones(4, 4, device="cuda"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes why a variant was stopped, "" if it was not."""
    name, _, variant = report.nodeid.partition("[")[2].rstrip("]").rpartition("-")
    said = report.longreprtext if report.failed else ""
    said += "".join(text for _, text in report.sections) if said else ""
    of = ENDS.setdefault(name, {})
    of[variant] = of.get(variant, "") + said


def pytest_sessionfinish() -> None:
    """Writes the outcomes where `outcomes` reads them."""
    if "CLAIMS_ENDS" in os.environ:
        Path(os.environ["CLAIMS_ENDS"]).write_text(json.dumps(ENDS))
