# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/reference/cuda_temporaries.md: `tools/pages/cuda_temporaries.py`."""

from collections.abc import Iterator
from pathlib import Path

from torch_npusim import _C
from torch_npusim._text import format_bytes
from torch_npusim.profiling.fit import outside
from torch_npusim.sim import specs

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/cuda_temporaries.md"
HEAD = """# CUDA's temporaries

<!-- from csrc/routes/cuda_temporaries.cpp, by tools/pages/cuda_temporaries.py -->

A [dry run](../use/dry_runs.md) with `temporaries="cuda"` allocates these beside results: sizes of
torch 2.13, by its sources or by reports about them. Three buffers of reductions were compared with
a snapshot of an H100 (torch 2.7). `csrc/aten/cuda_attention.cpp` has those of attention.

| operators | temporaries | when | source |
|---|---|---|---|
"""
OUTSIDE = """
## Outside of the allocator

[`npusim fit`](../use/dry_runs.md#outside-of-the-allocator) counts this memory too, from
`torch_npusim/specs/outside.toml`. A context is what a process of torch had on the device, less
what its allocator had reserved, by torch's out-of-memory messages: GiB, each of the three numbers
rounded to 0.01 GiB. The interval is the smallest and the largest, 15 MiB wider on both sides for
the rounding. The messages are of one rank each, of torch 2.1 to 2.14 with CUDA 12 and 13, whose
drivers load kernels when they are needed. CUDA before 11.7 loaded all: 1.3 GiB on a V100
(transformers, perf_train_gpu_one, 2022).

| compute capability | specifications | interval | seen |
|---|---|---|---|
{contexts}

A group of at least two ranks makes a communicator of NCCL at its first collective:

| on a rank | source |
|---|---|
{communicators}

Groups over many nodes, and all-to-all, have been seen to take 1.1 to 4.3 GiB (NVIDIA/nccl 864 and
1685).
"""


def page() -> str:
    """Returns the page."""
    operators: dict[tuple[str, str, str], list[str]] = {}
    for op, what, source, condition in _C.cuda_temporaries():
        operators.setdefault((what, condition, source), []).append(f"`{op.removeprefix('aten::')}`")
    rows = [
        f"| {', '.join(names)} | {what} | {condition} | {source} |"
        for (what, condition, source), names in operators.items()
    ]
    return (
        HEAD
        + "\n".join(rows)
        + "\n"
        + OUTSIDE.format(contexts="\n".join(contexts()), communicators="\n".join(communicators()))
    )


def contexts() -> Iterator[str]:
    """Yields the rows of the driver's contexts."""
    for row in outside.table()["context"]:
        capabilities = ", ".join(f"{major}.{minor}" for major, minor in row["capability"])
        chips = [name for name in specs.names() if name not in specs.BUILT_IN]
        chips = [name for name in chips if list(specs.load(name).capability) in row["capability"]]
        found = outside.context(chips[0])
        assert found is not None
        seen = "; ".join(
            f"{source}: {used - own - kept:.2f}" for used, own, kept, source in row["seen"]
        )
        interval = f"{format_bytes(found.low)} to {format_bytes(found.high)}"
        yield f"| {capabilities} | {', '.join(chips)} | {interval} | {seen} |"


def communicators() -> Iterator[str]:
    """Yields the rows of NCCL's communicators."""
    for mib, source in outside.table()["communicator"]["seen"]:
        yield f"| {mib} MiB | {source} |"


if __name__ == "__main__":
    PAGE.write_text(page())
