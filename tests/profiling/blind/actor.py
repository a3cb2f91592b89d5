# SPDX-License-Identifier: BSD-3-Clause
"""A policy learns from rollouts; each step asks whether an episode is over. Cause: host_waits."""

import torch


class Policy(torch.nn.Module):
    def __init__(self, seen, hidden, moves):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(seen, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden)
        )
        self.moves = torch.nn.Linear(hidden, moves)
        self.value = torch.nn.Linear(hidden, 1)

    def forward(self, state):
        hidden = self.body(state).tanh()
        return self.moves(hidden).log_softmax(-1), self.value(hidden)


def rollout(policy, state, steps):
    best, kept, shown = float("-inf"), [], []
    for _ in range(steps):
        chances, value = policy(state)
        state = state + 0.1 * chances.exp().mean() * value
        done = state.abs().amax(-1) > 1e3
        if done.any():
            state = torch.zeros_like(state)
        if value.max().item() > best:
            best = float(value.max())
        shown.append([part.item() for part in (value.mean(), value.std(), state.norm())])
        kept.append(chances)
    return torch.stack(kept), shown


def main():
    device = torch.device("npusim")
    policy = Policy(2048, 4096, 512).to(device, torch.bfloat16)
    state = torch.zeros(4096, 2048, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(4):
            rollout(policy, state, steps=8)


main()
