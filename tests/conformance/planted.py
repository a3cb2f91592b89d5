# SPDX-License-Identifier: BSD-3-Clause
"""Imported by workers (`--import planted`): makes operators of the database misbehave.

PLANTED="crash:add,hang:sub" names what and where. PLANTED_DEVICE is a module to import first. What
happens only once leaves a file in the directory PLANTED_MARKS.
"""

import ctypes
import importlib
import os
from pathlib import Path

from npusim_conformance import torch_testing


def crash(result):
    ctypes.string_at(0)


def hang(result):
    while True:
        pass


def leave(result):
    os._exit(7)


def wrong(result):
    return result if result.device.type == "cpu" else result + 1


def wrong_once(result):
    mark = Path(os.environ["PLANTED_MARKS"], "wrong_once")
    if mark.exists() or result.device.type == "cpu":
        return result
    mark.touch()
    return result + 1


def plant(behaviour, operator):
    right = operator.op
    operator.op = lambda *args, **kwargs: globals()[behaviour](right(*args, **kwargs))


if os.environ.get("PLANTED_DEVICE"):
    importlib.import_module(os.environ["PLANTED_DEVICE"])
for entry in filter(None, os.environ.get("PLANTED", "").split(",")):
    what, _, where = entry.partition(":")
    plant(what, torch_testing.operators()[where])
