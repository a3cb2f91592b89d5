# SPDX-License-Identifier: BSD-3-Clause
"""Pinned host memory, and the DataLoader that uses it."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_pins(workers):
    data = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    seen = []
    for values, labels in loader:
        assert values.is_pinned()
        assert labels.is_pinned()
        on_device = values.to("npusim", non_blocking=True)
        assert torch.equal(on_device.cpu(), values)
        seen += labels.tolist()
    assert seen == list(range(10))


def test_data_loader_works_when_its_workers_fork_after_first_use():
    torch.ones(1, device="npusim")
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(
        data, num_workers=2, pin_memory=True, multiprocessing_context="fork", batch_size=2
    )
    assert sorted(torch.cat([batch for (batch,) in loader]).tolist()) == list(range(8))


def test_seeded_workers_may_call_manual_seed():
    torch.ones(1, device="npusim")
    loader = DataLoader(
        TensorDataset(torch.arange(2)), num_workers=1, worker_init_fn=lambda _: torch.manual_seed(1)
    )
    assert len(list(loader)) == 2
