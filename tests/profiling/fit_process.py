# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit` in a process of its own."""

from processes import python


def fit(*words):
    """Returns the exit status, and what the command printed to stdout and stderr."""
    # With the allocator and the device of the command: it does not begin again.
    chosen = {"NPUSIM_ALLOCATOR": "cuda-2.13", "NPUSIM_DEVICE_COUNT": "1"}
    done = python("-m", "torch_npusim", "fit", *words, variables=chosen, timeout=500)
    return done.returncode, done.stdout, done.stderr
