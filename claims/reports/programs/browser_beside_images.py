# SPDX-License-Identifier: BSD-3-Clause
"""An image fails although what is allocated and what is asked for fit in the device.

Report: https://github.com/Comfy-Org/ComfyUI/issues/3278
Resolution: the browser and other programs hold a twelfth of the device.
"""

import torch

MEMORY = 240 << 20
OUTSIDE = 20 << 20
CAUSE = "memory held outside of torch"
ADVICE = r"nvidia-smi|other processes"


def program(mended: bool) -> None:
    """Makes three images; `mended` is a device without the browser."""
    weights = [torch.zeros(10 << 20, dtype=torch.uint8, device="cuda") for _ in range(21)]
    for mebibytes in (1, 1, 12):
        latent = torch.zeros(mebibytes << 18, dtype=torch.float32, device="cuda")
        del latent
    del weights, mended
