# SPDX-License-Identifier: BSD-3-Clause
"""Each function that torch's interfaces for a device let a backend answer is answered.

Most have a default that raises. Others have one that is a wrong answer, such as "this stream is not
being captured", and nobody notices.
"""

import re
from pathlib import Path

import pytest
import torch
from repo.sources import ROOT

INCLUDE = Path(torch.__file__).parent / "include"
VIRTUAL = re.compile(r"virtual\s[^;{}()~]*?(\w+)\s*\(")
OVERRIDE = re.compile(r"(\w+)\([^;{}]*\)[^;{}]*\boverride\b")
INTERFACES = {  # header below torch/include -> our file
    "ATen/core/GraphImplInterface.h": "csrc/python/bind_graphs.cpp",
    "ATen/detail/AcceleratorHooksInterface.h": "csrc/runtime/hooks.cpp",
    "ATen/detail/PrivateUse1HooksInterface.h": "csrc/runtime/hooks.cpp",
    "c10/core/GeneratorImpl.h": "csrc/runtime/generator.h",
    "c10/core/impl/DeviceGuardImplInterface.h": "csrc/runtime/guard.cpp",
}
# From 2.15 on; its default raises, which is right: the generator's numbers are the CPU's.
OF_PHILOX = {"philox_state"}


@pytest.mark.parametrize("header", INTERFACES)
def test_every_virtual_function_is_overridden(header):
    text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", (INCLUDE / header).read_text())
    overridden = OVERRIDE.findall((ROOT / INTERFACES[header]).read_text())
    assert set(VIRTUAL.findall(text)) - set(overridden) <= OF_PHILOX
