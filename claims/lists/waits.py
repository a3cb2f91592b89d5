# SPDX-License-Identifier: BSD-3-Clause
"""Waits of the host that a library does not need, and correct programs that wait where one may."""

import torch
from torch import nn
from torch.nn import functional as F

from claims.claim import Brief
from claims.lists.device_calls import x
from torch_npusim.testing import allow_sync


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, data):
        return self.inner(data)


def moves_a_model():
    return Model().to("cuda")


def loads_weights():
    model = Model().cuda()
    model.load_state_dict(Model().state_dict())


def from_pretrained():
    weights = {"inner.weight": torch.ones(4, 4), "inner.bias": torch.zeros(4)}
    return {name: weight.to("cuda") for name, weight in weights.items()}


def steps_with_a_scaler():
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x()).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def waits_for_a_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x().sum()
    stream.synchronize()
    torch.cuda.synchronize()


def returns_values_at_the_end():
    return x().sum(0).cpu().numpy()


def moves_a_number_without_blocking():
    return torch.tensor(0.0).to("cuda", non_blocking=True)


def says_so():

    with allow_sync():
        return x().sum().item()


def clipped(strict):
    weight = x().requires_grad_()
    weight.grad = x()
    return nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=strict)


CLAIMS = {
    "loss_of_every_step": Brief(
        r"called a synchronizing CUDA operation: \.item\(\).*keep it on the device",
        lambda data: sum((data * step).sum().item() for step in range(3)),
        lambda data: sum((data * step).sum() for step in range(3)).cpu(),
    ),
    "branch_on_a_value": Brief(
        r"`if` or `in` of a tensor, waits for a value",
        lambda data: data if data.sum() > 3 else -data,
        lambda data: torch.where(data.sum() > 3, data, -data),
    ),
    "chosen_elements": Brief(
        r"waits for the number of elements that the mask chooses; torch\.where",
        lambda data: data[data > 0].sum(),
        lambda data: torch.where(data > 0, data, 0).sum(),
    ),
    "positions": Brief(
        r"nonzero\(\).*nonzero_static",
        lambda data: data.nonzero(),
        lambda data: torch.nonzero_static(data, size=16),
    ),
    "printing": Brief(
        r"printing a tensor waits for its values",
        lambda data: print(data),
        lambda data: print(data.shape),
    ),
    "constant_of_every_step": Brief(
        r"torch\.tensor\(\.\.\., device=\).*pin_memory\(\) and non_blocking=True",
        lambda data: x(3) * torch.tensor([1.0, 2.0, 3.0], device="cuda"),
        lambda data: x(3) * torch.arange(1.0, 4.0, device="cuda"),
    ),
    "batch_from_pageable_memory": Brief(
        r"a copy from the host.*pin_memory\(\)",
        lambda data: torch.ones(4, 4).to("cuda"),
        lambda data: torch.ones(4, 4).pin_memory().to("cuda", non_blocking=True),
    ),
    "norm_in_the_log": Brief(
        r"bool\(\), int\(\), float\(\).*waits for a value",
        lambda data: float(data.norm()),
        lambda data: data.norm(),
    ),
    "check_for_nans": Brief(
        r"waits for a value",
        lambda data: bool(torch.isnan(data).any()),
        lambda data: torch._assert_async(torch.isfinite(data).all()),
    ),
    "different_values": Brief(
        r"unique\(\) waits for values that decide the size",
        lambda data: data.unique(),
        lambda data: torch.bincount(x(4).long().cpu()).to("cuda", non_blocking=True),
    ),
    "repeats": Brief(
        r"repeat_interleave\(\) waits for the sum of the repeats; pass output_size",
        lambda data: torch.repeat_interleave(x(3), torch.arange(3, device="cuda")),
        lambda data: torch.repeat_interleave(x(3), torch.arange(3, device="cuda"), output_size=3),
    ),
    "comparing": Brief(
        r"torch\.equal\(\) waits for its answer",
        lambda data: torch.equal(data, data),
        lambda data: (data == data).all(),
    ),
    "classes_that_are_counted": Brief(
        r"called a synchronizing CUDA operation",
        lambda data: F.one_hot(x(4).long()),
        lambda data: F.one_hot(x(4).long(), num_classes=4),
    ),
    "largest_of_two_losses": Brief(
        r"called a synchronizing CUDA operation",
        lambda data: max(data.sum(), data.mean()),
        lambda data: torch.maximum(data.sum(), data.mean()),
    ),
    "size_from_the_device": Brief(
        r"called a synchronizing CUDA operation",
        lambda data: torch.zeros(data.sum().long(), device="cuda"),
        lambda data: torch.zeros(data.numel(), device="cuda"),
    ),
    "norm_that_must_be_finite": Brief(
        r"called a synchronizing CUDA operation",
        lambda data: clipped(True),
        lambda data: clipped(False),
    ),
    "moves_a_model": Brief("", None, lambda _: moves_a_model()),
    "loads_weights": Brief("", None, lambda _: loads_weights()),
    "from_pretrained": Brief("", None, lambda _: from_pretrained()),
    "steps_with_a_scaler": Brief("", None, lambda _: steps_with_a_scaler()),
    "waits_for_a_stream": Brief("", None, lambda _: waits_for_a_stream()),
    "returns_values_at_the_end": Brief("", None, lambda _: returns_values_at_the_end()),
    "moves_a_number_without_blocking": Brief("", None, lambda _: moves_a_number_without_blocking()),
    "says_so": Brief("", None, lambda _: says_so()),
}
