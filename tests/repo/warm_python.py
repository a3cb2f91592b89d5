# SPDX-License-Identifier: BSD-3-Clause
"""A `python` that has imported torch already: many short commands in the time of one import.

    warm_python.py serve SOCKET        imports torch, then forks one child per request
    warm_python.py run SOCKET ARGS     the command `python ARGS`, in such a child

A child gets the caller's arguments, variables, folder and standard streams. torch_npusim is loaded
in the child, by torch's autoload, so that it reads the caller's variables.
"""

import array
import json
import multiprocessing.process
import os
import signal
import socket
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

STREAMS = 3


def ask(path: str, arguments: list[str]) -> int:
    """Runs `python ARGUMENTS` in a child of the server; returns its exit status."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = {"arguments": arguments, "variables": dict(os.environ), "folder": os.getcwd()}
        text = json.dumps(request).encode()
        fds = array.array("i", range(STREAMS))
        server.sendmsg(
            [len(text).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        )
        server.sendall(text)
        answer = server.recv(16)
    return int(answer) if answer else 1


def received(client: socket.socket) -> tuple[dict, list[int]]:
    """Returns a request, and the descriptors that came with it."""
    head, fds, _, _ = socket.recv_fds(client, 8, STREAMS)
    text, size = b"", int.from_bytes(head, "big")
    while len(text) < size:
        text += client.recv(size - len(text))
    return json.loads(text), fds


def serve(path: str) -> list[str]:
    """Forks for each request. Returns in the children only, with their arguments."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import numpy  # noqa: F401
    import torch  # noqa: F401

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if os.fork():
            client.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, fds = received(client)
        if child := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            client.sendall(str(status if status >= 0 else 128 - status).encode())
            os._exit(0)
        client.close()
        for stream, fd in enumerate(fds):
            os.dup2(fd, stream)
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["variables"])
        os.chdir(request["folder"])
        multiprocessing.process.ORIGINAL_DIR = request["folder"]  # where spawned children start
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)
        return request["arguments"]


class LateTorch:
    """Hides torch until somebody imports it, and loads torch's backends then, as torch does."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == "torch"]
        self.modules = {name: sys.modules.pop(name) for name in names}
        self.spec = self.modules["torch"].__spec__
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec("torch", self) if name == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules["torch"]

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)
        sys.modules.update(self.modules)
        module.__spec__ = self.spec
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "0":
            module._import_device_backends()


def run(arguments: list[str]) -> None:
    """Does what `python ARGUMENTS` does: -c, -m, or a script."""
    import runpy

    LateTorch()
    first, *rest = arguments
    del sys.path[0]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    command, place, *given = sys.argv[1:]
    if command == "run":
        sys.exit(ask(place, given))
    run(serve(place))
