# SPDX-License-Identifier: BSD-3-Clause
"""Mixed precision with a gradient scaler, clipping and accumulation; resumed from a checkpoint."""

import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda")
inputs = torch.randn(64, 32, device="cuda")
targets = inputs.sum(1, keepdim=True).sin()


def step():
    for part in range(2):
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            output = model(inputs[part::2])
            assert output.dtype is torch.float16
            loss = nn.functional.mse_loss(output.float(), targets[part::2]) / 2
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.is_cuda
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


first = step()
for _ in range(20):
    last = step()
file = io.BytesIO()
torch.save(
    {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    },
    file,
)
file.seek(0)
expected = step()
state = torch.load(file, map_location=lambda storage, location: storage.cuda(0))
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
scaler.load_state_dict(state["scaler"])
print("resumed", step() == expected)
print("learned", last < first / 4)

# An overflow is skipped and halves the scale.
before = [parameter.clone() for parameter in model.parameters()]
scale = scaler.get_scale()
scaler.scale(model(inputs * float("inf")).sum()).backward()
scaler.step(optimizer)
scaler.update()
same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
print("skipped", same, scaler.get_scale() / scale)
