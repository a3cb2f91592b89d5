# SPDX-License-Identifier: BSD-3-Clause
"""The tables of docs/reference/cuda_temporaries.md, which the site makes when it is built."""

from collections.abc import Iterator

from torch_npusim import _C
from torch_npusim._text import format_bytes
from torch_npusim.fit import outside
from torch_npusim.sim import specs


def operators() -> Iterator[str]:
    """Yields the table of csrc/routes/cuda_temporaries.cpp."""
    yield "| operators | temporaries | when | source |\n|---|---|---|---|"
    rows: dict[tuple[str, str, str], list[str]] = {}
    for op, what, source, condition in _C.cuda_temporaries():
        rows.setdefault((what, condition, source), []).append(f"`{op.removeprefix('aten::')}`")
    for (what, condition, source), names in rows.items():
        yield f"| {', '.join(names)} | {what} | {condition} | {source} |"


def kernels() -> Iterator[str]:
    """Yields the table of csrc/routes/cuda_kernels.cpp."""
    yield "| operators | kernels | source |\n|---|---|---|"
    for operators, what, source in _C.cuda_kernels():
        yield f"| {', '.join(f'`{name}`' for name in operators.split())} | {what} | {source} |"


def contexts() -> Iterator[str]:
    """Yields the table of the driver's contexts."""
    yield "| compute capability | specifications | interval | seen |\n|---|---|---|---|"
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
    """Yields the table of NCCL's communicators."""
    yield "| on a rank | source |\n|---|---|"
    for mib, source in outside.table()["communicator"]["seen"]:
        yield f"| {mib} MiB | {source} |"
