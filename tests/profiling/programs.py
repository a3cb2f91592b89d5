# SPDX-License-Identifier: BSD-3-Clause
"""Short programs on one device, of every kind of row that a timeline has."""

import torch
from torch import nn

from torch_npusim.sim import clock

DEVICE = "npusim"


def products():
    a = torch.ones(96, 96, device=DEVICE)
    for _ in range(3):
        a = a @ a


def tiny_operators():
    x = torch.ones(64, 64, device=DEVICE)
    for _ in range(40):
        x = x * 1.01


def large_pointwise():
    x = torch.ones(1 << 16, device=DEVICE)
    for _ in range(5):
        x = torch.relu(x)


def item_in_a_loop():
    x = torch.ones(64, 64, device=DEVICE)
    for _ in range(5):
        (x @ x).sum().item()


def pageable_upload():
    host = torch.ones(1 << 14)
    for _ in range(4):
        host.to(DEVICE).mul_(2).sum()


def pinned_prefetch():
    pinned = torch.ones(1 << 14).pin_memory()
    side, ready = torch.Stream(DEVICE), torch.Event(DEVICE)
    main = torch.npusim.current_stream()
    for _ in range(4):
        with side:
            batch = pinned.to(DEVICE, non_blocking=True)
            ready.record(side)
        main.wait_event(ready)
        batch.record_stream(main)
        batch * 2


def download():
    torch.ones(1 << 14, device=DEVICE).cpu()


def fork_and_join():
    x = torch.ones(1 << 14, device=DEVICE)
    main, side = torch.npusim.current_stream(), torch.npusim.Stream()
    side.wait_stream(main)
    with torch.npusim.stream(side):
        y = x * 2
    z = x + 1
    main.wait_stream(side)
    y + z


def polling():
    event = torch.npusim.Event()
    x = torch.ones(1 << 18, device=DEVICE)
    x + 1
    event.record()
    while not event.query():
        pass
    x + 2
    while not torch.npusim.current_stream().query():
        pass


def timed():
    start, end = (torch.npusim.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(64, device=DEVICE) + 1
    end.record()
    end.synchronize()
    start.elapsed_time(end)


def recorded_twice():
    event, side = torch.npusim.Event(), torch.npusim.Stream()
    x = torch.ones(1 << 14, device=DEVICE)
    event.record()
    side.wait_event(event)
    x + 1
    event.record()
    with torch.npusim.stream(side):
        x * 2
    event.synchronize()
    torch.npusim.current_stream().wait_stream(side)


def host_works():
    x = torch.ones(1 << 14, device=DEVICE)
    x + 1
    clock.advance(123_456)
    x + 1
    torch.npusim.synchronize()


def busy_before():
    torch.npusim.synchronize()
    torch.ones(8, device=DEVICE) + 1


def two_devices():
    x = torch.ones(1 << 12, device="npusim:0")
    y = x.to("npusim:1")
    (y + 1).to("npusim:0")
    torch.npusim.synchronize(1)


def memory_is_given_back():
    x = torch.ones(1 << 20, device=DEVICE)
    x + 1
    del x
    torch.npusim.empty_cache()
    torch.ones(8, device=DEVICE)


def linear_training():
    model = nn.Linear(32, 8, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 32, device=DEVICE)).sum().backward()
        optimizer.step()


def adamw_training():
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 16, device=DEVICE)).square().mean().backward()
        optimizer.step()


def convolutions():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(DEVICE)
    model(torch.ones(2, 3, 16, 16, device=DEVICE)).sum().backward()


def attention():
    q = torch.ones(1, 2, 16, 8, device=DEVICE)
    nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def mixed_precision():
    model = nn.Linear(32, 32, device=DEVICE)
    scaler = torch.amp.GradScaler(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.autocast(DEVICE, dtype=torch.float16):
        loss = model(torch.ones(4, 32, device=DEVICE)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def indices():
    x = torch.arange(1000.0, device=DEVICE)
    x[x > 500].sum()
    torch.nonzero(x)
    nn.functional.embedding(torch.zeros(16, dtype=torch.long, device=DEVICE), x.view(100, 10))


def random_numbers():
    torch.randn(1000, device=DEVICE)
    nn.functional.dropout(torch.ones(1000, device=DEVICE))


PROGRAMS = [
    products, tiny_operators, large_pointwise, item_in_a_loop, pageable_upload, pinned_prefetch,
    download, fork_and_join, polling, timed, recorded_twice, host_works, busy_before, two_devices,
    memory_is_given_back, linear_training, adamw_training, convolutions, attention,
    mixed_precision, indices, random_numbers,
]  # fmt: skip
