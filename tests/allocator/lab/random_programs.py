# SPDX-License-Identifier: BSD-3-Clause
"""Programs drawn by a seed that allocate in every way there is, and catch running out of memory.

`python random_programs.py FOLDER COUNT` runs COUNT of them under NPUSIM_ALLOCATOR, each on a device
of its own, and saves their traces as FOLDER/NUMBER.npt.
"""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

import torch

import npusim_lab
from npusim_lab.recording import left_by_run
from torch_npusim.cli import recorded_run

STEPS = 250


def is_policy(rules: str) -> bool:
    """Whether the allocator is a placement policy, whose pools have no options."""
    return rules.partition(",")[0] in ("buddy", "bfc", "banked")


def run(device: int, seed: int, has_pool_options: bool) -> int:
    """Run one program, and return how often it ran out of memory."""
    draw = random.Random(seed)
    torch.npusim.set_device(device)
    side = torch.npusim.Stream(device)
    options = {"use_on_oom": draw.random() < 0.5, "no_split": draw.random() < 0.3}
    pool = torch.npusim.MemPool(**options if has_pool_options else {})
    kept: list[torch.Tensor] = []
    failures = 0
    for _ in range(STEPS):
        size = int(2 ** draw.uniform(5, 25.5))
        where = draw.random()
        try:
            if where < 0.2:
                with torch.npusim.stream(side):
                    tensor = torch.empty(size, dtype=torch.uint8, device="npusim")
            elif where < 0.35 and pool is not None:
                with torch.npusim.use_mem_pool(pool):
                    tensor = torch.empty(size, dtype=torch.uint8, device="npusim")
            else:
                tensor = torch.empty(size, dtype=torch.uint8, device="npusim")
            if draw.random() < 0.4:
                with torch.npusim.stream(side):
                    tensor[: 1 << 20].add_(1)  # work that a free has to wait for
                tensor.record_stream(side)
            kept.append(tensor)
            del tensor
        except torch.OutOfMemoryError:
            failures += 1
            del kept[: len(kept) // 2]
        if kept and draw.random() < 0.45:
            del kept[draw.randrange(len(kept))]
        what = draw.random()
        if what < 0.01:
            torch.npusim.empty_cache()
        elif what < 0.02:
            torch.npusim.synchronize()
        elif what < 0.03:
            torch.npusim.set_per_process_memory_fraction(draw.choice((0.5, 0.7, 1.0)), device)
        elif what < 0.035:
            pool = None
    return failures


def main() -> None:
    """Run the programs of the command line, and print how often each ran out of memory."""
    import os

    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    rules = os.environ.get("NPUSIM_ALLOCATOR", "npusim")
    for number in range(count):
        recorded_run.begin()
        failures = run(number, number, not is_policy(rules))
        recorded_run.leave(folder)
        npusim_lab.save(left_by_run(folder, number), folder / f"{number}.npt")
        print(failures)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
