# SPDX-License-Identifier: BSD-3-Clause
"""Memory that is kept, generators, mixed precision."""

import functools
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from claims.claim import Brief
from claims.lists.device_calls import check, x
from torch_npusim.testing import allow_sync

KEPT = []
CACHE = {}


@functools.lru_cache
def table(size):
    return x(size)


def running_loss(data):
    weight = data.requires_grad_()
    return sum((weight * step).exp().sum() for step in range(3))


@contextmanager
def default_device():
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


def shuffled(device):
    with default_device():
        generator = torch.Generator(device)
        loader = torch.utils.data.DataLoader(range(8), shuffle=True, generator=generator)
        with allow_sync():
            return list(loader)


def same_dropout(get, put):
    state = get()
    first = F.dropout(x(64, 64))
    put(state)
    check((first == F.dropout(x(64, 64))).all())


def scaled(dtype=torch.float, times=1, scales=True):
    model = nn.Linear(4, 4).cuda().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    loss = model(x(dtype=dtype)).sum()
    (scaler.scale(loss) if scales else loss).backward()
    with allow_sync():
        for _ in range(times):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)


def skipped_unscale(scales):
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    if scales:
        scaler.scale(model(x()).sum()).backward()
    with allow_sync():
        scaler.step(optimizer)


def loss_under_autocast(loss):
    with torch.autocast("cuda", dtype=torch.float16):
        return loss(torch.sigmoid(x(4)) if loss is F.binary_cross_entropy else x(4), x(4))


def changed_under_autocast(cache):
    weight = x().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16, cache_enabled=cache):
        first = x() @ weight
        with torch.no_grad():
            weight.mul_(2)
        second = x() @ weight
    check((second == 2 * first).all())


CLAIMS = {
    "history_of_outputs": Brief(
        r"the test left .* of device memory[\s\S]*global variable 'KEPT'",
        lambda data: KEPT.append(data),
        lambda data: KEPT.append(data.cpu()),
    ),
    "cached_table": Brief(
        r"results cached by functools\.lru_cache of table\(\)",
        lambda data: table(64),
        lambda data: (table(32), table.cache_clear()),
    ),
    "graphs_of_a_running_loss": Brief(
        r"in the autograd graph of|the test left",
        lambda data: CACHE.update(loss=running_loss(data)),
        lambda data: CACHE.update(loss=running_loss(data).detach().cpu()),
    ),
    "too_large": Brief(
        r"CUDA out of memory\. Tried to allocate",
        lambda data: torch.empty(20 << 30, dtype=torch.uint8, device="cuda"),
        lambda data: torch.empty(20 << 10, dtype=torch.uint8, device="cuda"),
    ),
    "shuffles_on_the_default_device": Brief(
        r"Expected a 'cuda' device type for generator but found 'cpu'",
        lambda data: shuffled("cpu"),
        lambda data: shuffled("cuda"),
    ),
    "restores_the_hosts_numbers": Brief(
        r"AssertionError|assert bool",
        lambda data: same_dropout(torch.get_rng_state, torch.set_rng_state),
        lambda data: same_dropout(torch.cuda.get_rng_state, torch.cuda.set_rng_state),
    ),
    "unscales_twice": Brief(
        r"unscale_\(\) has already been called",
        lambda data: scaled(times=2),
        lambda data: scaled(times=1),
    ),
    "gradients_of_half": Brief(
        r"Attempting to unscale FP16 gradients",
        lambda data: scaled(torch.half),
        lambda data: scaled(torch.float),
    ),
    "steps_without_gradients": Brief(
        r"Attempted step but _scale is None",
        lambda data: skipped_unscale(False),
        lambda data: skipped_unscale(True),
    ),
    "probabilities_under_autocast": Brief(
        r"unsafe to autocast",
        lambda data: loss_under_autocast(F.binary_cross_entropy),
        lambda data: loss_under_autocast(F.binary_cross_entropy_with_logits),
    ),
    "weight_changes_under_autocast": Brief(
        r"AssertionError|assert bool",
        lambda data: changed_under_autocast(True),
        lambda data: changed_under_autocast(False),
    ),
}
