# SPDX-License-Identifier: BSD-3-Clause
"""A release of Triton whose parts are not those that npusim replaces."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from torch_npusim import triton_interpreter


@pytest.mark.parametrize("missing", ["InterpretedFunction.run", "Autotuner._bench"])
def test_another_release_gets_a_warning_and_keeps_its_parts(monkeypatch, missing):
    """As Triton 3.5 has it, where each function has its own run()."""
    parts: dict[str, dict] = {}
    for name in triton_interpreter._REPLACED:
        module, *path = name.split(".")
        owner = parts.setdefault(module, {}).setdefault(path[0], SimpleNamespace())
        if len(path) > 1 and ".".join(path) != missing:
            setattr(owner, path[1], object())
    triton, runtime = ModuleType("triton"), ModuleType("triton.runtime")
    triton.__version__, triton.runtime = "0.0", runtime
    for module, names in parts.items():
        made = ModuleType(f"triton.runtime.{module}")
        vars(made).update(names)
        setattr(runtime, module, made)
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    before = runtime.interpreter.GridExecutor
    with pytest.warns(UserWarning, match=r"Triton 0\.0's own interpreter.*Triton 3\.7 or newer"):
        triton_interpreter.install()
    assert runtime.interpreter.GridExecutor is before
