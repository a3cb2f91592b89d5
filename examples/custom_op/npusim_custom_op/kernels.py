# SPDX-License-Identifier: BSD-3-Clause
"""Loads the compiled kernels: once this module is imported, torch.ops.npusim has the operators."""

from pathlib import Path

import torch

import torch_npusim  # noqa: F401  (the device must exist before it gets kernels)

(_library,) = Path(__file__).parent.glob("_kernels*.so")
torch.ops.load_library(_library)
