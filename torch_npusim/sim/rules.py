# SPDX-License-Identifier: BSD-3-Clause
"""The rule books (docs/rules.md): what they say, and what ran in a wider dtype because of them.

>>> torch.npusim.set_rules("cuda")
>>> half = torch.ones(8, dtype=torch.half, device="npusim")
>>> torch.fft.rfft(half).dtype  # the CPU has no Fourier transform of it
torch.complex32
>>> widened_calls()["aten::fft_rfft"] > 0
True
>>> torch.npusim.set_rules("auto")
"""

from torch_npusim import _C
from torch_npusim._rules import Rule, rows

__all__ = ["Rule", "get_device_assert", "rows", "set_device_assert", "widened_calls"]


def widened_calls() -> dict[str, int]:
    """Returns how often each operator ran in a wider dtype, because the CPU lacks CUDA's kernel.

    Its results are rounded once; CUDA's may differ in the last place.
    """
    return _C.widened_calls()


def get_device_assert() -> str:
    """Returns when an index out of range is reported: "now" or "late"."""
    return _C.get_device_assert()


def set_device_assert(when: str) -> None:
    """Sets when an index out of range is reported under the rules; NPUSIM_DEVICE_ASSERT at first.

    Args:
        when: "now", an error of the call; or "late": what is computed is undefined, the next
            synchronising call raises torch.AcceleratorError, and so does every call after it, until
            torch_npusim.sim.faults.clear().
    """
    _C.set_device_assert(when)
