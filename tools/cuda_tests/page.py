# SPDX-License-Identifier: BSD-3-Clause
"""docs/reference/cuda_tests.md from the results."""

from collections import Counter
from typing import Any

from tables import (
    CHANGED,
    DISTRIBUTED,
    EXPLAINED,
    FILES,
    LARGEST,
    PROCESSOR_SECONDS,
    RANKS_SECONDS,
    TEST_SECONDS,
    UNLOADABLE,
    cause_of,
)

HEAD = """# PyTorch's own CUDA tests under the alias

Generated from `build/cuda_tests/results.json`, which this command writes:

```sh
make cuda-tests SOURCES=pytorch/test
```

The test files are in PyTorch's source tree, not in its wheel or in this repository. Tested are
those of **2.6.0** (Debian's source package `pytorch` 2.6.0+dfsg-7), unmodified, with torch
{torch}. Four names of torch's testing modules that changed since are given back.

Each file runs twice: under the [CUDA alias](../use/cuda_alias.md) with one device, and its **twin**
on the CPU without npusim. Each run of a file is a process, forked from one that has used no device;
its tests run one after the other. A test has failed too if it kills its process, lasts longer than
{wall} s or takes more than {processor} s of the processor. Tests that want more than {largest} GiB
skip themselves. The twin of a file runs first.

| a test counts as | |
|---|---|
| with a twin | it passes on the CPU, for the device there or for none |
| CUDA only | the CPU skips it, or it is made for CUDA alone |
| excluded | it fails on the CPU too, or a machine with one GPU of capability 8.0 skips it too |

The first run of a file fixes which tests count. "First" is its result; `results.json` names
each test that is excluded or fails. 1/n means every n-th test by name, and the twins of those.
Words of skips were added to the gates after a file's first run: each was read in the test, and is
in `tables.py`.

{share}

| file | 1/n | run | excluded | twin | pass, first | pass | | CUDA only | pass, first | pass | |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


RANKS = """## torch.distributed

The files run under the alias alone, with as many devices as the table says; NCCL has no twin on the
CPU. Their ranks are processes, forked from one that has imported torch and used no device. A test
whose ranks take longer than {seconds} s has failed. One that was late on a busy machine, or whose
cause was mended, has run again alone. Two columns are of one version of torch: how many tests
apply, and how many of those pass. From 2.14 on the builds are for CUDA; the alias needs none of
its libraries, and here they were empty ones. All files took 1,746 s on two cores with 2.13: at most
3,492 s of the processor.
The tests of `test_distributed_spawn.py` are in torch's wheel, and so of the torch that runs them.
The other files are of 2.6.0, and torch has changed since. A test that fails on the CPU without
npusim too, with the same words, does not apply. Nor does one that needs a device and asks for what
torch has changed: `tools/cuda_tests/outdated.py` has the line of the installed torch that shows it.

{share}

"""
ALL = "**all**"

Rows = dict[str, dict[str, Any]]  # the first cell of a row -> column -> cell


def _share(passed: int, tests: int) -> str:
    return f"{100 * passed / tests:.1f} %" if tests else ""


def _row(name: str, every: int, sums: Counter[str]) -> str:
    cells: list[object] = [name, every or "", sums["tests"], sums["excluded"]]
    for kind in ("twin", "alone"):
        passed = sums[kind] - sums[f"{kind}_lost"]
        first = sums[f"first_{kind}"] - sums[f"first_{kind}_lost"]
        cells += [sums[kind], first, passed, _share(passed, sums[kind])]
    return f"| {' | '.join(map(str, cells))} |"


def _sums(found: dict[str, Any]) -> Counter[str]:
    sums = Counter({key: value for key, value in found.items() if isinstance(value, int)})
    sums.update({f"first_{key}": n for key, n in found["first"].items() if isinstance(n, int)})
    sums["excluded"] = sum(map(len, found["excluded"].values()))
    return sums


def _rows(page: str, first: str) -> Rows:
    """Returns the rows of a page's tables whose first column is `first`."""
    rows: Rows = {}
    columns: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not columns or not cells:
            columns = cells
        elif columns[0] == first and cells[0].strip("-"):
            rows[cells[0]] = dict(zip(columns, cells, strict=True))
    return rows


def _table(rows: list[dict[str, Any]], first: list[str], last: list[str]) -> str:
    """Returns a table; between the `first` columns and the `last` are those of versions."""
    others = {column for row in rows for column in row} - {*first, *last}
    columns = [*first, *sorted(others), *last]
    lines = [[str(row.get(column, "")) for column in columns] for row in rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in [columns, *lines])
    return text.replace("\n", f"\n{'|---' * len(columns)}|\n", 1)


def _causes(results: dict[str, dict[str, Any]], title: str, before: str = "") -> list[str]:
    """Returns the tables of what is excluded and of what failed; each key is a column."""
    excluded, causes = _rows(before, "why"), _rows(before, "cause")
    for column, files in results.items():
        for row in (*excluded.values(), *causes.values()):
            row.pop(column, None)
        for name, found in files.items():
            for why, tests in found["excluded"].items():
                row = excluded.setdefault(why, {"why": why})
                row[column] = row.get(column, 0) + len(tests)
            for test, end in found["lost"].items():
                cause, first = cause_of(test, end["outcome"], end["why"]), f"`{name}`: `{test}`"
                if cause not in EXPLAINED:
                    cause, first = "not looked into: `results.json` has the error of each", ""
                row = causes.setdefault(cause, {"cause": cause, "the first": first})
                row[column] = row.get(column, 0) + 1

    def counted(rows: Rows) -> list[dict[str, Any]]:
        def count(row: dict[str, Any]) -> int:
            return sum(int(cell) for cell in row.values() if str(cell).isdigit())

        return sorted(filter(count, rows.values()), key=count, reverse=True)

    return [
        f"{title} Excluded\n\n{_table(counted(excluded), ['why'], [])}",
        f"{title} Failures by cause\n\n{_table(counted(causes), ['cause'], ['the first'])}",
    ]


def _ranks(results: dict[str, dict[str, Any]], before: str) -> str:
    """Returns the section of torch.distributed; versions without results keep their columns."""
    rows = _rows(before, "file")
    total = rows.pop(ALL, {"file": ALL})
    for version, files in results.items():
        apply, passes = f"{version} apply", f"{version} pass"
        for row in rows.values():
            row |= {apply: "", passes: ""}
        sums = {apply: 0, passes: 0}
        for name, found in files.items():
            title = f"`{name.removeprefix('distributed/')}`"
            row = rows.setdefault(title, {"file": title, "devices": DISTRIBUTED[name]})
            row |= {apply: found["alone"], passes: found["alone"] - found["alone_lost"]}
            sums = {column: count + row[column] for column, count in sums.items()}
            if not found["whole"]:
                row[passes] = f"{row[passes]}, until its time was over"
        total |= sums
    shares, missing = [], []
    for version in sorted(column.split()[0] for column in total if column.endswith(" apply")):
        tests, passed = (int(total[f"{version} {word}"]) for word in ("apply", "pass"))
        shares.append(
            f"With {version}, {passed} of {tests} tests that apply pass, {_share(passed, tests)}."
        )
        found = {name for name, row in rows.items() if row.get(f"{version} apply", "") != ""}
        names = [
            name.removeprefix("distributed/") for name in DISTRIBUTED if name not in UNLOADABLE
        ]
        if lacking := ", ".join(f"`{name}`" for name in names if f"`{name}`" not in found):
            missing.append(f"Not run with {version}: {lacking}.")
    text = RANKS.format(seconds=RANKS_SECONDS, share="\n".join(shares))
    text += _table([*(rows[name] for name in sorted(rows)), total], ["file", "devices"], [])
    reasons = [f"`{name}` does not load: {why}." for name, why in UNLOADABLE.items()]
    return "\n\n".join([text, *missing, *reasons, *_causes(results, "###", before)])


def write_page(results: dict[str, dict[str, Any]], before: str) -> str:
    """Returns the page from the results by torch's version; what has none stays as it was."""
    ranks: dict[str, dict[str, Any]] = {}
    alone: dict[str, Any] = {}
    for version, files in sorted(results.items()):
        for name, found in files.items():
            if name in DISTRIBUTED:
                ranks.setdefault(version, {})[name] = found
            else:
                alone.setdefault(name, found)  # of the oldest torch
    title = RANKS.partition("\n")[0]
    first, _, second = before.partition(title)
    first = _one_device(alone) if alone else first.strip()
    second = _ranks(ranks, second) if ranks else (title + second).strip()
    return f"{first}\n\n{second}\n"


def _one_device(results: dict[str, Any]) -> str:
    """Returns the page's first half."""
    total: Counter[str] = Counter()
    rows = []
    for name, found in results.items():
        sums = _sums(found)
        total.update(sums)
        cut = "" if found["whole"] else ", until its time was over"
        rows.append(_row(f"`{name}`{cut}", found["every"], sums))
    rows.append(_row(ALL, 0, total))
    count, lost = total["twin"] + total["alone"], total["twin_lost"] + total["alone_lost"]
    older = sum(
        cause_of(test, end["outcome"], end["why"]) == CHANGED
        for found in results.values()
        for test, end in found["lost"].items()
    )
    weights: Counter[str] = Counter()
    for found in results.values():
        tests, failed = (found["twin"] + found["alone"], found["twin_lost"] + found["alone_lost"])
        weights.update(tests=tests * found["every"], passed=(tests - failed) * found["every"])
    share = (
        f"{count - lost} of {count} tests pass, {_share(count - lost, count)}. With the tests of a "
        "file weighted by its n,\nso that `test_cuda.py` counts whole, it is "
        f"**{_share(weights['passed'], weights['tests'])}; the goal is 97 %.**\n"
        f"Of the {lost} that do not pass, {older} are older than the torch that runs them: by "
        "their words,\nor by torch's headers, they would fail on a GPU too. "
        "They count as failures here."
    )
    head = HEAD.format(
        torch=", ".join(sorted({found["torch"] for found in results.values()})),
        wall=TEST_SECONDS, processor=PROCESSOR_SECONDS, largest=LARGEST >> 30, share=share,
    )  # fmt: skip
    parts = [head + "\n".join(rows)]
    missing = ", ".join(f"`{name}`" for name in FILES if name not in results)
    if missing:
        parts.append(f"Not run yet: {missing}. PyTorch has about 150 more files.")
    return "\n\n".join([*parts, *_causes({"tests": results}, "##")])
