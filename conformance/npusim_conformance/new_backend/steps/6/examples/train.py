# SPDX-License-Identifier: BSD-3-Clause
"""Trains a small network to tell three clouds of points apart; prints what the CPU had to do."""

import torch
import torch_mychip


def train(device="mychip", steps=100):
    """Returns (accuracy after training, overloads that the CPU computed meanwhile)."""
    torch.manual_seed(0)
    centres = torch.tensor([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    labels = torch.arange(300) % 3
    points = centres[labels] + 0.5 * torch.randn(300, 2)
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    points, labels = points.to(device), labels.to(device)
    before = torch_mychip.fallback_counts()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(points), labels)
        loss.backward()
        optimizer.step()
    after = torch_mychip.fallback_counts()
    guesses = network(points).cpu().argmax(1)
    on_cpu = sorted(name for name, calls in after.items() if calls > before.get(name, 0))
    return (guesses == labels.cpu()).float().mean().item(), on_cpu


if __name__ == "__main__":
    accuracy, on_cpu = train()
    print(f"accuracy {accuracy:.3f}; computed by the CPU: {', '.join(on_cpu) or 'nothing'}")
