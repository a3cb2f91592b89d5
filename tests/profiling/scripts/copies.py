# SPDX-License-Identifier: BSD-3-Clause
"""Uploads that the device waits for; mended, the next batch is on its way meanwhile."""

import sys

import torch


def main(pageable):
    weight = torch.full((2048, 4096), 0.001, device="npusim", dtype=torch.bfloat16)
    batch = torch.ones(1024, 2048, dtype=torch.bfloat16)
    if pageable:
        for _ in range(6):
            batch.to("npusim") @ weight
    else:
        pinned = batch.pin_memory()
        main_stream, side = torch.npusim.current_stream(), torch.npusim.Stream()
        ready = torch.npusim.Event()
        with torch.npusim.stream(side):
            ahead = pinned.to("npusim", non_blocking=True)
            ready.record()
        for step in range(6):
            main_stream.wait_event(ready)
            now = ahead
            now.record_stream(main_stream)
            if step < 5:
                ready = torch.npusim.Event()
                with torch.npusim.stream(side):
                    ahead = pinned.to("npusim", non_blocking=True)
                    ready.record()
            now @ weight
    torch.npusim.synchronize()


if __name__ == "__main__":
    main(pageable="mended" not in sys.argv)
