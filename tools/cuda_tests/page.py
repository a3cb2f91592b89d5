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
whose ranks take longer than {seconds} s has failed. Seconds are of the clock, on two busy cores.
The tests of `test_distributed_spawn.py` are in torch's wheel, and so of the torch that runs them.
The other files are of 2.6.0, and torch has changed since. A test that fails on the CPU without
npusim too, with the same words, does not apply. Nor does one that needs a device and asks for what
torch has changed: `tools/cuda_tests/outdated.py` has the line of the installed torch that shows it.

{share}

| file | devices | run | not applicable | apply | pass | | s |
|---|---|---|---|---|---|---|---|
"""


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


def _causes(results: dict[str, Any], title: str) -> list[str]:
    """Returns the tables of what is excluded and of what failed."""
    excluded: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for name, found in results.items():
        for why, tests in found["excluded"].items():
            excluded[why] += len(tests)
        for test, end in found["lost"].items():
            cause = cause_of(test, end["outcome"], end["why"])
            causes[cause] += 1
            examples.setdefault(cause, f"`{name}`: `{test}`")
    lines = "\n".join(f"| {why} | {count} |" for why, count in excluded.most_common())
    parts = [f"{title} Excluded\n\n| why | tests |\n|---|---|\n{lines}"]
    known = [(cause, n) for cause, n in causes.most_common() if cause in EXPLAINED]
    other = sum(causes.values()) - sum(n for _, n in known)
    lines = "\n".join(f"| {cause} | {n} | {examples[cause]} |" for cause, n in known)
    lines += f"\n| not looked into: `results.json` has the error of each | {other} | |"
    head = "| cause | tests | the first |\n|---|---|---|"
    return [*parts, f"{title} Failures by cause\n\n{head}\n{lines}"]


def _ranks(results: dict[str, Any]) -> str:
    """Returns the section of torch.distributed."""
    rows, total = [], Counter[str]()
    for name, found in results.items():
        sums = _sums(found)
        total.update(sums)
        cut = "" if found["whole"] else ", until its time was over"
        rows.append(_ranks_row(f"`{name.removeprefix('distributed/')}`{cut}", name, sums))
    rows.append(_ranks_row("**all**", "", total))
    passed = total["alone"] - total["alone_lost"]
    share = f"{passed} of {total['alone']} tests that apply pass, {_share(passed, total['alone'])}."
    parts = [RANKS.format(seconds=RANKS_SECONDS, share=share) + "\n".join(rows)]
    missing = ", ".join(f"`{name}`" for name in DISTRIBUTED if name not in results)
    if missing:
        parts.append(f"Not run yet: {missing}.")
    parts += [f"`{name}` does not load: {why}." for name, why in UNLOADABLE.items()]
    return "\n\n".join([*parts, *_causes(results, "###")])


def _ranks_row(title: str, name: str, sums: Counter[str]) -> str:
    passed = sums["alone"] - sums["alone_lost"]
    cells = [title, DISTRIBUTED.get(name, ""), sums["tests"], sums["excluded"], sums["alone"]]
    cells += [passed, _share(passed, sums["alone"]), sums["seconds"]]
    return f"| {' | '.join(map(str, cells))} |"


def write_page(results: dict[str, Any], before: str) -> str:
    """Returns the page; a half without any result stays as it was."""
    of_ranks = {name: found for name, found in results.items() if name in DISTRIBUTED}
    results = {name: found for name, found in results.items() if name not in DISTRIBUTED}
    title = RANKS.partition("\n")[0]
    first, _, second = before.partition(title)
    first = _one_device(results) if results else first.strip()
    second = _ranks(of_ranks) if of_ranks else (title + second).strip()
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
    rows.append(_row("**all**", 0, total))
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
    return "\n\n".join([*parts, *_causes(results, "##")])
