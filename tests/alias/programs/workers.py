# SPDX-License-Identifier: BSD-3-Clause
"""Data from worker processes: forked ones give CPU tensors, a spawned one may use the device."""

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor(float(index)) ** 2


def on_the_device(queue):
    queue.put(torch.arange(4, device="cuda").square().sum().item())


def main():
    torch.zeros(1).cuda()
    loader = DataLoader(
        Squares(), batch_size=3, num_workers=2, pin_memory=True, persistent_workers=True
    )
    for _ in range(2):
        print([batch.cuda(non_blocking=True).sum().item() for batch in loader])
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=on_the_device, args=(queue,))
    process.start()
    print("spawned", queue.get())
    process.join()
    print("exit", process.exitcode)


if __name__ == "__main__":
    main()
