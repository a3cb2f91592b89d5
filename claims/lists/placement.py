# SPDX-License-Identifier: BSD-3-Clause
"""Tensors, modules and processes on another device than the one that they meet."""

import io
import os
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from claims.claim import Brief
from claims.lists.device_calls import x
from torch_npusim.testing import allow_sync


class Scaled(nn.Module):
    def __init__(self, registered):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        if registered:
            self.register_buffer("scale", torch.ones(4))
        else:
            self.scale = torch.ones(4)

    def forward(self, data):
        return self.inner(data) * self.scale


SAME = r"Expected all tensors to be on the same device, but found at least two devices, "
#: Of the kernels that torch generates; the others have SAME.
GENERATED = (
    r"Expected all tensors to be on the same device, but got \w+ is on c.*\n.*\.to\(\"cuda:0\"\)"
)
SAME_CPU = SAME + r"cuda:0 and cpu.*\.to\(\"cuda:0\"\)"


def loaded(location):
    with allow_sync():
        file = io.BytesIO()
        torch.save({"weight": torch.ones(4, device="cuda:1")}, file)
        count = torch.cuda.device_count
        torch.cuda.device_count = lambda: 1
        try:
            torch.load(io.BytesIO(file.getvalue()), map_location=location)
        finally:
            torch.cuda.device_count = count


def child_uses_the_device(device):
    torch.zeros(1, device="cuda")
    pid = os.fork()
    if not pid:
        try:
            torch.zeros(1, device=device)
        except RuntimeError as error:
            os._exit(7 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 8)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"


def batches_of_device_tensors(device):
    dataset = torch.utils.data.TensorDataset(torch.ones(4, 4, device=device))
    loader = torch.utils.data.DataLoader(dataset, pin_memory=True)
    return list(loader)


def parallel(device):
    return nn.DataParallel(nn.Linear(4, 4).to(device), device_ids=[0, 1])(x())


@contextmanager
def nccl():
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def reduced(tensor):
    with nccl():
        dist.all_reduce(tensor)


CLAIMS = {
    "tensor_that_is_no_buffer": Brief(
        SAME_CPU, lambda data: Scaled(False).cuda()(data), lambda data: Scaled(True).cuda()(data)
    ),
    "noise_on_the_host": Brief(
        SAME_CPU,
        lambda data: data + torch.randn(data.shape),
        lambda data: data + torch.randn_like(data),
    ),
    "targets_on_the_host": Brief(
        r"cuda:0 and cpu",
        lambda data: F.cross_entropy(data, torch.zeros(4, dtype=torch.long)),
        lambda data: F.cross_entropy(data, torch.zeros(4, dtype=torch.long, device="cuda")),
    ),
    "two_devices": Brief(
        r"cuda:0 and cuda:1",
        lambda data: data + torch.ones(4, device="cuda:1"),
        lambda data: data + torch.ones(4, device="cuda:1").to("cuda:0"),
    ),
    "numpy_of_a_device": Brief(
        r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)",
        lambda data: data.numpy(),
        lambda data: data.cpu().numpy(),
    ),
    "generator_of_the_host": Brief(
        r"Expected a 'cuda' device type for generator but found 'cpu'",
        lambda data: torch.randn(3, device="cuda", generator=torch.Generator()),
        lambda data: torch.randn(3, device="cuda", generator=torch.Generator("cuda")),
    ),
    "state_of_a_recurrent_network": Brief(
        r"cuda:0 and cpu|same device",
        lambda data: nn.GRU(4, 4).cuda()(x(2, 1, 4), torch.zeros(1, 1, 4)),
        lambda data: nn.GRU(4, 4).cuda()(x(2, 1, 4), torch.zeros(1, 1, 4, device="cuda")),
    ),
    "factor_of_the_host": Brief(
        r"cuda:0 and cpu",
        lambda data: torch.gcd(x(4).long(), torch.tensor(2)),
        lambda data: torch.gcd(x(4).long(), torch.full((), 2, device="cuda")),
    ),
    "only_the_branch_for_devices": Brief(
        SAME_CPU,
        lambda data: data * torch.ones(4) if data.device.type == "cuda" else data,
        lambda data: (
            data * torch.ones(4, device=data.device) if data.device.type == "cuda" else data
        ),
    ),
    "checkpoint_of_another_machine": Brief(
        r"Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count\(\) is 1",
        lambda data: loaded(None),
        lambda data: loaded("cuda:0"),
    ),
    "rank_of_the_cluster_as_device": Brief(
        r"invalid device ordinal",
        lambda data: torch.cuda.set_device(77),
        lambda data: torch.cuda.set_device(0),
    ),
    "forked_child": Brief(
        r"the child failed",
        lambda data: child_uses_the_device("cuda"),
        lambda data: child_uses_the_device("cpu"),
    ),
    "batches_pinned_twice": Brief(
        r"cannot pin .*only dense CPU tensors can be pinned",
        lambda data: batches_of_device_tensors("cuda"),
        lambda data: batches_of_device_tensors("cpu"),
    ),
    "parallel_module_elsewhere": Brief(
        r"module must have its parameters and buffers on device cuda:0",
        lambda data: parallel("cuda:1"),
        lambda data: parallel("cuda:0"),
    ),
    "reduces_on_the_host": Brief(
        r"No backend type associated with device type cpu",
        lambda data: reduced(torch.ones(2)),
        lambda data: reduced(torch.ones(2).pin_memory().to("cuda", non_blocking=True)),
    ),
    "reduces_a_transposed_tensor": Brief(
        r"ensors must be contiguous|non-overlapping and dense",
        lambda data: reduced(data[:, ::2]),
        lambda data: reduced(data[:, ::2].contiguous()),
    ),
    "dlpack_to_numpy": Brief(
        r"Unsupported device|BufferError|__dlpack",
        lambda data: np.from_dlpack(data),
        lambda data: np.from_dlpack(data.cpu()),
    ),
    "list_of_losses": Brief(
        r"can't convert cuda:0 device type tensor to numpy",
        lambda data: np.mean([data.sum(), data.sum()]),
        lambda data: np.mean([data.sum().cpu(), data.sum().cpu()]),
    ),
}
