# SPDX-License-Identifier: BSD-3-Clause
"""A loss that is asked for at every step; mended, it is asked for once."""

import sys

import torch


def main(chatty):
    x = torch.ones(768, 768, device="npusim", dtype=torch.bfloat16)
    weight = torch.full((768, 768), 0.001, device="npusim", dtype=torch.bfloat16)
    total = 0.0
    losses = []
    for _ in range(20):
        loss = (x @ weight).mean()
        if chatty:
            total += loss.item()
        else:
            losses.append(loss)
    if not chatty:
        total = torch.stack(losses).sum().item()
    print(total)


main(chatty="mended" not in sys.argv)
