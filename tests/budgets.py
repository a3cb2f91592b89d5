# SPDX-License-Identifier: BSD-3-Clause
"""Compares the processor seconds of all tests with the budget of each folder (parts.toml).

    NPUSIM_TEST_SECONDS=build/seconds.json pytest tests && budgets.py build/seconds.json

The unit is E, the time of compiling an empty extension here and now (tools/bench/build_cost.py).
The exit status is 1 if a folder took more than twice its budget.
"""

import collections
import json
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools" / "bench"))

import build_cost  # noqa: E402

MARGIN = 2  # other machines, other programs beside


def empty_extension() -> float:
    """The processor seconds of E."""
    unit, _ = next(iter(build_cost.units(ROOT / "build" / "release").values()))
    with tempfile.TemporaryDirectory() as folder:
        command = build_cost.empty_extension(unit, Path(folder) / "empty.cpp")
        return build_cost.compile_once(command, Path(folder) / "out.o", folder).seconds


def main(path: str) -> int:
    budgets = tomllib.loads((ROOT / "tests" / "parts.toml").read_text())["budgets"]
    unit, spent = empty_extension(), collections.Counter[str]()
    for test, seconds in json.loads(Path(path).read_text()).items():
        folder = test.removeprefix("tests/").partition("::")[0].rpartition("/")[0]
        spent[folder.partition("/")[0] or "."] += seconds / unit
    print(f"tests took {spent.total():.1f} E; E = {unit:.1f} s")
    over = [name for name in spent if spent[name] > MARGIN * budgets.get(name, 0)]
    for name in sorted(over):
        print(f"{name}: {spent[name]:.2f} E, where {budgets.get(name, 0)} are planned: parts.toml")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
