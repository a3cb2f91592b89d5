# SPDX-License-Identifier: BSD-3-Clause
"""The root cause of an exception: status, one line, and a key that groups failures."""

import re
from dataclasses import dataclass

import torch

from npusim_conformance.verdict import Mismatch, Status, blanked

_NO_KERNEL = re.compile(
    r"Could not run '(?P<name>[\w:.]+)' with arguments from the '(?P<backend>\w+)' backend"
)
_NAMED_OPERATOR = re.compile(r"(?:operator|kernel for|op) '?(?P<name>aten::[\w.]+)'?")
# What a backend's fallback for all operators says that computes none; a refused dtype is no such.
_REFUSED = re.compile(
    r"\boperator '?(?P<name>aten::[\w.]+)'? is not (?:implemented|supported)\b"
    r"(?! for (?:\w+ )?(?:dtype|data ?type|torch\.))",
    re.IGNORECASE,
)
# A composite kernel that only tells a backend to write one: "convolution_overrideable not ...".
_TO_OVERRIDE = re.compile(r"^(?P<name>\w*overrideable\w*)\b.*TORCH_LIBRARY_IMPL", re.DOTALL)
# As backends say that no operator takes a dtype; of one operator, torch says "not implemented for".
_NO_DTYPE = re.compile(
    r"\b(?:unsupported|unknown|unhandled) (?:data ?type|dtype|scalar ?type)"
    r"|\b(?:data ?type|dtype|scalar ?type)\b[^.]{0,40} (?:not|n't) supported",
    re.IGNORECASE,
)
# Of the kit's own loops over what the CPU gave and what the device gave, in this order.
_NUMBER_OF_RESULTS = re.compile(r"^zip\(\) argument 2 is (?P<how>shorter|longer) than argument 1$")
# Its elements are many lines, and no two failures have the same.
_PRINTED = re.compile(r"\btensor\((?:[^()]|\([^()]*\))*\)?")
LINE_MAX = 300
NO_DTYPE = "unsupported data type"


@dataclass(frozen=True)
class Diagnosis:
    """`cause` is equal for failures that look alike; `missing` is an overload without kernel."""

    status: Status
    message: str
    cause: str
    missing: str = ""


def diagnose(error: BaseException) -> Diagnosis:
    """Looks at the type and the text of what a case raised."""
    text = str(error)
    shown = _PRINTED.sub("tensor(...)", text)
    first = next((line.strip() for line in shown.splitlines() if line.strip()), "")
    message = first[:LINE_MAX]
    no_kernel = _NO_KERNEL.search(text)
    if no_kernel is not None and no_kernel.group("backend").startswith("Autocast"):
        # Not this kernel is missing: whichever operator comes first under autocast is named.
        key = no_kernel.group("backend")
        message = f"nothing is registered for {key}, not even a fallthrough for all operators"
        return Diagnosis(Status.UNIMPLEMENTED, message, f"no fallback for {key}")
    missing = _missing_overload(error, text)
    if missing:
        return Diagnosis(Status.UNIMPLEMENTED, message, f"no kernel: {missing}", missing)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Diagnosis(Status.OOM, message or "out of memory", "out of memory")
    if isinstance(error, Mismatch):
        return Diagnosis(Status.FAIL, message, _shape_of(message))
    number = _NUMBER_OF_RESULTS.match(text) if isinstance(error, ValueError) else None
    if number is not None:
        how = "fewer" if number.group("how") == "shorter" else "more"
        message = f"the device gives {how} results than the CPU"
        return Diagnosis(Status.FAIL, message, message)
    name = type(error).__name__
    unknown = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(unknown, torch.dtype):  # looked up in a backend's table of dtypes
        cause = f"{NO_DTYPE}: {str(unknown).removeprefix('torch.')}"
        return Diagnosis(Status.FAIL, f"{name}: {message}", cause)
    if _NO_DTYPE.search(text):
        return Diagnosis(Status.FAIL, f"{name}: {message}", NO_DTYPE)
    return Diagnosis(Status.FAIL, f"{name}: {message}", f"{name}: {_shape_of(message)}")


def _missing_overload(error: BaseException, text: str) -> str:
    found = _NO_KERNEL.search(text) or _REFUSED.search(text)
    if found is None and isinstance(error, NotImplementedError):
        found = _NAMED_OPERATOR.search(text)
        to_override = _TO_OVERRIDE.match(text)
        if to_override is not None:
            return f"aten::{to_override.group('name')}"
    return found.group("name") if found else ""


def _shape_of(message: str) -> str:
    return blanked(message)[:160]
