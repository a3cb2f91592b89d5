# SPDX-License-Identifier: BSD-3-Clause
"""A sparse tensor is built from indices on the CPU and values on the device.

Defect: both halves of a sparse tensor must be on one device.
Passes on the CPU: they are.
Kind: https://github.com/pytorch/pytorch/issues/54075
"""

import torch


def wrong(device: str) -> None:
    """Leaves the indices of the edges on the CPU."""
    edges = torch.tensor([[0, 1], [1, 2]])
    weights = torch.rand(2, device=device)
    torch.sparse_coo_tensor(edges, weights, (3, 3), check_invariants=False)


def fixed(device: str) -> None:
    """Makes both on the device."""
    edges = torch.tensor([[0, 1], [1, 2]], device=device)
    weights = torch.rand(2, device=device)
    torch.sparse_coo_tensor(edges, weights, (3, 3), check_invariants=False)
