# SPDX-License-Identifier: BSD-3-Clause
"""Trains a small convolutional network on scikit-learn's handwritten digits, on npusim.

The script is an ordinary training loop: pinned loader, non-blocking copies, an optimizer, a
checkpoint. It then trains the same network on CPU from the same seed and compares, and it fails
(exit status 1) where the two differ or the accuracy is below 95 %.

    python examples/train_digits.py                  # on npusim, compared with CPU
    python examples/train_digits.py --device cpu     # the CPU run alone
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

SEED = 2026
ACCURACY_WANTED = 0.95


@dataclass
class Run:
    """Result of one training run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: float  # mean over the last epoch
    accuracy: float  # on the held-out split, 0 to 1


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns the training and the held-out split: images (N, 1, 8, 8) in [0, 1] and labels (N)."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    train, held_out = train_test_split(
        range(len(labels)), test_size=0.2, random_state=SEED, stratify=digits.target
    )
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def make_model() -> nn.Module:
    """Builds the network on CPU, so that every device starts from the same weights."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(device: str, epochs: int) -> Run:
    """Trains on `device` and measures the accuracy on the held-out split."""
    pinned = device != "cpu"
    train_set, held_out = load_data()
    order = torch.Generator().manual_seed(SEED)
    loader = DataLoader(
        train_set, batch_size=64, shuffle=True, generator=order, pin_memory=pinned, drop_last=True
    )
    model = make_model().to(device)
    # foreach=False: by default the optimizer groups its work on a GPU but not on CPU, which rounds
    # differently; the two runs are to be compared bit for bit.
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    criterion = nn.CrossEntropyLoss()

    loss = 0.0
    with tqdm(total=epochs * len(loader), desc=f"training on {device}", unit="step") as progress:
        for epoch in range(epochs):
            model.train()
            # The sum stays on the device: reading each step's loss would wait for each step.
            total = torch.zeros((), device=device)
            for images, labels in loader:
                images = images.to(device, non_blocking=True)
                labels = labels.to(device, non_blocking=True)
                optimizer.zero_grad()
                step_loss = criterion(model(images), labels)
                step_loss.backward()
                optimizer.step()
                total += step_loss.detach()
                progress.update()
            loss = total.item() / len(loader)
            progress.set_postfix(epoch=epoch + 1, loss=f"{loss:.4f}")

    accuracy = evaluate(model, DataLoader(held_out, batch_size=128, pin_memory=pinned), device)
    return Run(model, optimizer, loss, accuracy)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]], device: str) -> float:
    """Returns the share of images whose most likely class is their label."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    seen = 0
    for images, labels in loader:
        guesses = model(images.to(device, non_blocking=True)).argmax(dim=1)
        right += (guesses == labels.to(device, non_blocking=True)).sum()
        seen += len(labels)
    return int(right.item()) / seen


def checkpoint_survives(run: Run) -> bool:
    """Saves the run, loads it on CPU, and says whether every tensor has the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.pt"
        state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
        torch.save(state, path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    on_cpu = make_model()
    on_cpu.load_state_dict(loaded["model"])
    torch.optim.AdamW(on_cpu.parameters(), foreach=False).load_state_dict(loaded["optimizer"])
    saved = run.model.state_dict()
    return all(
        tensor.device.type == "cpu" and torch.equal(tensor, saved[name].cpu())
        for name, tensor in on_cpu.state_dict().items()
    )


def print_memory(device: str) -> None:
    """Prints what the caching allocator of `device` holds, in the words of torch.cuda."""
    memory = torch.get_device_module(device)
    kib = 1024
    reserved = memory.memory_reserved()
    # Free pieces of segments that live blocks share: reserved, but no use to a larger request.
    stranded = memory.memory_stats()["inactive_split_bytes.all.current"]
    print(f"memory on {device}:")
    print(f"  allocated      {memory.memory_allocated() / kib:10.1f} KiB")
    print(f"  reserved       {reserved / kib:10.1f} KiB")
    print(f"  peak allocated {memory.max_memory_allocated() / kib:10.1f} KiB")
    print(f"  peak reserved  {memory.max_memory_reserved() / kib:10.1f} KiB")
    print(f"  fragmentation  {stranded / max(reserved, 1):10.1%} of reserved bytes")


def main() -> int:
    """Runs the demonstration; returns the exit status."""
    parser = argparse.ArgumentParser(description="Train a digit classifier on npusim or on CPU.")
    parser.add_argument("--device", choices=["npusim", "cpu"], default="npusim")
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    device: str = arguments.device
    if device == "npusim":
        import torch_npusim  # noqa: F401  (for where autoload has stepped back)

    run = train(device, arguments.epochs)
    intact = checkpoint_survives(run)
    accurate = run.accuracy >= ACCURACY_WANTED
    print(f"held-out accuracy on {device}: {run.accuracy:.2%} ({ACCURACY_WANTED:.0%} wanted)")
    print(f"checkpoint saved, loaded on cpu: {'equal' if intact else 'DIFFERENT'}")
    if device == "cpu":
        print(f"final loss on cpu: {run.loss!r}")
        return 0 if accurate and intact else 1

    print_memory(device)
    cpu = train("cpu", arguments.epochs)
    agree = run.loss == cpu.loss and run.accuracy == cpu.accuracy
    print(f"final loss on {device}: {run.loss!r}")
    print(f"final loss on cpu:    {cpu.loss!r}")
    print("the two runs agree bit for bit" if agree else "the two runs DIFFER")
    return 0 if accurate and intact and agree else 1


if __name__ == "__main__":
    sys.exit(main())
