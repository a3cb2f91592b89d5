# SPDX-License-Identifier: BSD-3-Clause
"""inside.leak(): device memory that a block of code has left, by allocation site and by keeper."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch_npusim._blame import to_blame
from torch_npusim._frames import FOREIGN
from torch_npusim._text import format_bytes
from torch_npusim.inside._report import Report, wrapped
from torch_npusim.testing import leaks


@dataclass(frozen=True)
class Site:
    """Blocks that one line allocated and that are still held.

    Attributes:
        place: "file:line in function" of the program's own innermost frame; "" if it has none.
        blocks: How many.
        bytes: As requested, of all.
        keepers: Holders of the last of them: one line per reference, up to a name.
    """

    place: str
    blocks: int
    bytes: int
    keepers: tuple[str, ...]


@dataclass(repr=False)  # Report has one
class LeakReport(Report):
    """Device memory that is left of a `with` block.

    Attributes:
        sites: The largest first; filled when the block is over.
    """

    sites: list[Site] = field(default_factory=list)
    title = "leak"

    @property
    def bytes(self) -> int:
        """All that is left."""
        return sum(site.bytes for site in self.sites)

    def text(self) -> str:
        """Returns the sites with their keepers."""
        lines = [f"{format_bytes(self.bytes)} of device memory are left"]
        for site in self.sites:
            told = f"{format_bytes(site.bytes)} in {site.blocks} blocks, allocated at "
            lines += wrapped(told + (site.place or "no Python line (a backward pass)"), "")
            lines.append("  kept alive by")
            lines += [line for one in site.keepers for line in wrapped(one, "    ")]
        return "\n".join(lines)


@contextmanager
def leak() -> Iterator[LeakReport]:
    """Reports, when the `with` block is over, the device memory that it has left.

    Allocations within the block are recorded with their Python stacks. Garbage is collected
    first, so that memory of dead cycles is no leak. Memory of the CPU is not seen.
    """
    report = LeakReport()
    with leaks.allocation_stacks():
        since = leaks.mark()
        yield report
        gc.collect()
        groups: dict[str, list[leaks.LiveBlock]] = {}
        for block in leaks.live_blocks(since):
            frames = [(frame.file, frame.line, frame.function) for frame in block.stack()]
            own = to_blame(frames, FOREIGN)[:1]
            groups.setdefault("".join(f"{f}:{n} in {name}" for f, n, name in own), []).append(block)
        report.sites = sorted(
            (
                Site(place, len(blocks), sum(one.bytes for one in blocks),
                     tuple(leaks.keepers(blocks[-1])))
                for place, blocks in groups.items()
            ),
            key=lambda site: -site.bytes,
        )  # fmt: skip
