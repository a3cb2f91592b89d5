# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint keeps the CPU's random state only.

Defect: after a resume the device draws other numbers than it would have.
Passes on the CPU: its state is all there is.
Kind: https://github.com/Lightning-AI/pytorch-lightning/pull/14384
"""

import torch


def wrong(device: str) -> None:
    """Saves and restores torch.get_rng_state()."""
    saved = torch.get_rng_state()
    expected = torch.rand(4, device=device)
    torch.set_rng_state(saved)
    assert torch.equal(torch.rand(4, device=device), expected), "the resumed run differs"


def fixed(device: str) -> None:
    """Saves the device's state as well."""
    module = torch if device == "cpu" else torch.get_device_module(device)
    saved = module.get_rng_state()
    expected = torch.rand(4, device=device)
    module.set_rng_state(saved)
    assert torch.equal(torch.rand(4, device=device), expected), "the resumed run differs"
