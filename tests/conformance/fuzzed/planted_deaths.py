# SPDX-License-Identifier: BSD-3-Clause
"""npusim with overloads that end or stop the process: what `npusim-conformance fuzz` must find."""

import os
import signal
import time

import torch

import torch_npusim  # noqa: F401

library = torch.library.Library("aten", "IMPL")


def dies(self):
    os.kill(os.getpid(), signal.SIGSEGV)


def dies_of_a_second_call(self):
    if dies_of_a_second_call.was_called:
        os.kill(os.getpid(), signal.SIGBUS)
    dies_of_a_second_call.was_called = True
    return torch.empty_like(self)


dies_of_a_second_call.was_called = False


def hangs(self):
    time.sleep(60)


library.impl("special_i0e", dies, "PrivateUse1")
library.impl("special_i1", dies_of_a_second_call, "PrivateUse1")
library.impl("special_i1e", hangs, "PrivateUse1")
