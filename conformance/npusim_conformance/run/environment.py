# SPDX-License-Identifier: BSD-3-Clause
"""The head of a log: what was run with, so that a report can be read a year later."""

import hashlib
import importlib.util
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from npusim_conformance import __version__
from npusim_conformance.inputs import torch_testing
from npusim_conformance.run.worker import WorkerConfig


def describe(
    config: WorkerConfig,
    selection: dict[str, Any],
    expectations: Path | None = None,
    there: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Everything that decides what a run gives, in plain values.

    `there` replaces entries of machine(), where the cases are executed on another one.
    """
    installed = machine(config.import_name)
    digest = hashlib.sha256(expectations.read_bytes()).hexdigest()[:16] if expectations else ""
    return {
        "kit": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": config.device,
        "import": config.import_name,
        "selection": selection,
        "seed": config.seed,
        "threads": config.threads,
        "expectations": digest,
        "expectations_file": str(expectations) if expectations else "",
        **installed,
        **{key: there[key] for key in installed if key in there},
    }


def machine(import_name: str) -> dict[str, Any]:
    """The versions installed here, the backend's too."""
    return {
        "torch": torch.__version__,
        "torch_git": torch.version.git_version,
        "torch_warning": torch_testing.version_warning(),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "numpy": _version("numpy"),
        "scipy": _version("scipy"),  # without it 53 numpy references are missing
        "backend": _version(import_name),
    }


def _version(package: str) -> str:
    if not package:
        return ""
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "installed" if importlib.util.find_spec(package) else ""
