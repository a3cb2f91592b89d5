# SPDX-License-Identifier: BSD-3-Clause
"""Defects in the Python interface of the device."""

import ctypes
import gc

import torch

from .defect import call


# torch.manual_seed() arrives at the device's module and is dropped there.
@call("contract:rng/*", "op:*/random*")
def ignored_seed() -> None:
    torch.npusim.manual_seed = lambda seed: None
    torch.npusim.manual_seed_all = lambda seed: None


# start.elapsed_time(end) answers for end.elapsed_time(start): what was recorded later lies earlier.
# Events are torch's own objects and their type does not let itself be changed; its dictionary does.
@call("contract:event/*")
def event_order() -> None:
    original = torch.Event.elapsed_time
    (members,) = gc.get_referents(torch.Event.__dict__)
    members["elapsed_time"] = lambda start, end: original(end, start)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.Event))
