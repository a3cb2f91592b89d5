# SPDX-License-Identifier: BSD-3-Clause
"""Processes forked from a server of their own: that of multiprocessing belongs to the program."""

import io
import os
from multiprocessing import context, forkserver, popen_forkserver, spawn, util
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

_server = forkserver.ForkServer()  # ends with this process
# A fork has imported torch, and has no device yet.
_server.set_forkserver_preload(["torch_npusim.fit.run"])


class _Popen(popen_forkserver.Popen):
    """As its base, from the server above."""

    _fds: list[int]

    def _launch(self, process: BaseProcess) -> None:
        told = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            ForkingPickler(told).dump(spawn.get_preparation_data(process.name))
            ForkingPickler(told).dump(process)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, sender = _server.connect_to_new_process(self._fds)
        kept = os.dup(sender)  # the child ends when this process has
        close: Any = getattr(util, "close_fds")  # noqa: B009
        self.finalizer = util.Finalize(self, close, (kept, self.sentinel))
        with open(sender, "wb") as file:
            file.write(told.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class Process(context.ForkServerProcess):
    """A process of that server; else as multiprocessing.Process."""

    @staticmethod
    def _Popen(process: BaseProcess) -> _Popen:
        return _Popen(process)
