# SPDX-License-Identifier: BSD-3-Clause
"""The examples in the docstrings of the Python surface run and print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch
from repo.sources import ROOT

FILES = sorted((ROOT / "torch_npusim").rglob("*.py"))
WITH_EXAMPLES = [path for path in FILES if ">>>" in path.read_text()]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("name", [module_name(path) for path in WITH_EXAMPLES])
def test_examples_are_true(name):
    result = doctest.testmod(
        importlib.import_module(name),
        extraglobs={"torch": torch},
        optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL,
    )
    assert result.attempted > 0
    assert result.failed == 0


def test_there_are_examples():
    assert len(WITH_EXAMPLES) >= 8
