# SPDX-License-Identifier: BSD-3-Clause
"""tools/cuda_allocator: its programs, and that it finds a difference; without a build of torch."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "cuda_allocator" / "compare.py"


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("cuda_allocator_compare", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("preset", "differs"), [("cuda-2.13", False), ("ascend", True)])
def test_a_difference_of_one_preset_to_another_is_found(compare, monkeypatch, preset, differs):
    """Where another preset answers in the place of torch."""
    monkeypatch.setattr(
        compare, "theirs", lambda _driver, *program: compare.ours(program[0], preset, *program[1:])
    )
    row = compare.compared(compare.Build("0", Path()), "cuda-2.13", 4)
    assert row.answers > 10_000
    assert row.ooms > 0
    assert row.programs == [2 * len(compare.SETTINGS)] * 2
    assert row.different == (row.programs if differs else [0, 0])
    assert bool(row.first) == differs


def test_programs_ask_for_everything(compare):
    operations = {line[0] for seed in range(4) for line in compare.program(seed)}
    assert operations == set("mfrewasbnx")


def test_a_build_for_the_cpu_is_refused(compare, tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\n")
    with pytest.raises(compare.Unusable, match="no CUDA build of torch"):
        compare.built(str(tmp_path / "torch"), tmp_path)
