# SPDX-License-Identifier: BSD-3-Clause
"""A fraction set to imitate a smaller card is forgotten.

Report: https://github.com/Comfy-Org/ComfyUI/issues/1246
Resolution: the limit was set by the user; without it the same work fits.
"""

import torch

MEMORY = 256 << 20
CAUSE = "a limit that the user set"
ADVICE = r"set_per_process_memory_fraction"


def program(mended: bool) -> None:
    """Denoises an image."""
    fraction = 1.0 if mended else 0.5
    torch.cuda.set_per_process_memory_fraction(fraction)
    model = torch.zeros(20 << 20, device="cuda")
    for _ in range(4):
        latent = torch.zeros(14 << 20, device="cuda")
        del latent
    del model
