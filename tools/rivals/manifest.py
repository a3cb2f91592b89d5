# SPDX-License-Identifier: BSD-3-Clause
"""TorchCTS's description of npusim, for run_torchcts.py: everything that npusim claims to have.

TorchCTS 0.4.1 knows torch up to 2.12.1. The end of this file lets it treat 2.13 as that version, so
that its tables apply, and remember one of them that it would build anew for each test.
"""

import fnmatch
import functools
import os

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torchcts import op_metadata
from torchcts.core import dtype_contracts, pytorch_compat

ASKED = os.environ["TORCHCTS_OPERATORS"].split()
OPERATORS = {
    operator.name
    for operator in op_db
    if any(fnmatch.fnmatch(operator.name, glob) for glob in ASKED)
}
DTYPES = """float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool
    complex32 complex64 complex128""".split()
CAPABILITIES = """inference training serialization rng device_generator rng_distributions
    double_backward gradcheck gradient_checkpointing autocast fused_optimizer dataloader
    module_hooks channels_last sparse named_tensor foreach pinned_memory streams events
    deterministic guard_alloc device_api multi_device ieee754""".split()

manifest = {
    "manifest_version": 1,
    "device_name": "npusim",
    "backend_import": "defects",
    "supported_dtypes": {getattr(torch, name): True for name in DTYPES},
    "device_count": 2,
    "semantic_level": 8,
    "hardware": {
        "memory_model": "discrete",
        "device_memory_gb": "auto",
        "system_memory_gb": "auto",
        "oom_recoverable": True,
    },
    "capabilities": dict.fromkeys(CAPABILITIES, True),
    # The tests made from torch's operator database, which are collected one by one on the CPU.
    "skip_ops": sorted({operator.name for operator in op_db} - OPERATORS),
}

_normalize = pytorch_compat.normalize_torch_version
_validation = op_metadata._validation_metadata


def _known(version: str | None = None) -> str | None:
    normalized = _normalize(version)
    return "2.12.1" if (normalized or "").startswith("2.13.") else normalized


@functools.cache
def _validation_of_package() -> dict:
    return _validation(None)


def _remembered(metadata: dict | None) -> dict:
    packaged = metadata is None or metadata is op_metadata.load_op_metadata()
    return _validation_of_package() if packaged else _validation(metadata)


for module in (op_metadata, dtype_contracts, pytorch_compat):
    module.normalize_torch_version = _known
op_metadata._validation_metadata = _remembered
