# SPDX-License-Identifier: BSD-3-Clause
"""Cross entropy of a batch is the chip's own, forward and backward."""

import torch
import torch_mychip


def loss_and_gradient(device):
    scores = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).to(device)
    scores.requires_grad_()
    target = (torch.arange(8) % 5).to(device)
    before = torch_mychip.fallback_counts()
    loss = torch.nn.functional.cross_entropy(scores, target)
    loss.backward()
    assert torch_mychip.fallback_counts() == before
    return loss.detach().cpu(), scores.grad.cpu()


def test_cross_entropy():
    for there, here in zip(loss_and_gradient("mychip"), loss_and_gradient("cpu"), strict=True):
        torch.testing.assert_close(there, here)
