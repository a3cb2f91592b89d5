# SPDX-License-Identifier: BSD-3-Clause
"""A `python` that has imported torch already: many short commands in the time of one import.

    warm.py serve SOCKET        imports torch, then forks one child per request
    warm.py run SOCKET ARGS     the command `python ARGS`, in such a child

A child gets the caller's arguments, variables, folder and standard streams. `import torch` in it
finds the server's modules and then torch's backends, so that torch_npusim reads the caller's
variables. Modules that torch itself imports late come from the server's shelf when they are
imported. A server ends with its standard input.
"""

import array
import gc
import importlib
import json
import multiprocessing.process
import os
import select
import signal
import socket
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

STREAMS = 3
# Imports that take seconds and that commands want later than torch: the first step of an optimizer
# imports torch._dynamo, the conformance kit torch's database of operators.
LATE = (
    "torch._dynamo",
    "torch.testing._internal.common_methods_invocations",
    "torch.testing._internal.custom_op_db",
)


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
    status = int(answer) if answer else 1
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def received(client: socket.socket) -> tuple[dict, list[int]]:
    """Returns a request, and the descriptors that came with it."""
    head, fds, _, _ = socket.recv_fds(client, 8, STREAMS)
    text, size = b"", int.from_bytes(head, "big")
    while len(text) < size:
        text += client.recv(size - len(text))
    return json.loads(text), fds


def watch(child: int, client: socket.socket) -> None:
    """Tells the client how the child ended. A client that is gone takes the child with it."""
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([client, ended], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended in ready:
        client.sendall(str(status).encode())
    os._exit(0)


class Shelf:
    """Modules of torch that have run in the server and that no import has asked for in the child.

    One import brings back the modules that were imported together, after those imported before
    them. PathFinder finds them, because torch_npusim's own finder asks it. Functions that
    torch_npusim calls after imports run in the order in which the modules had run.
    """

    def __init__(self) -> None:
        self.groups: list[dict[str, ModuleType]] = []
        self.completed: list[str] = []
        run, self.find = SourceFileLoader.exec_module, PathFinder.find_spec

        def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
            run(loader, module)
            self.completed.append(module.__name__)

        SourceFileLoader.exec_module = exec_module
        shelved: dict[str, ModuleType] = {}
        for module in ("torch", *LATE):
            importlib.import_module(module)
            self.groups.append({n: sys.modules[n] for n in self.of_torch() if n not in shelved})
            shelved |= self.groups[-1]
        SourceFileLoader.exec_module = run
        for name, module in shelved.items():
            del sys.modules[name]
            owner, _, attribute = name.rpartition(".")
            group = self.group_of(name)
            # An attribute would be found without an import.
            if owner and owner not in group and vars(shelved[owner]).get(attribute) is module:
                del vars(shelved[owner])[attribute]
        PathFinder.find_spec = self.find_spec

    @staticmethod
    def of_torch() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in ("torch", "torchgen")]

    def group_of(self, name: str) -> dict[str, ModuleType]:
        return next((group for group in self.groups if name in group), {})

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if self.group_of(name):
            return ModuleSpec(name, Back(self))
        return self.find(name, path, target)

    def bring_back(self, group: dict[str, ModuleType]) -> None:
        sys.modules.update(group)
        for name, module in group.items():
            owner, _, attribute = name.rpartition(".")
            if owner:
                vars(sys.modules[owner]).setdefault(attribute, module)
        hooks = sys.modules.get("torch_npusim._after_import")
        for name in self.completed:
            if name in group and hooks is not None:
                for function in hooks._waiting.pop(name, []):
                    function()


class Back:
    """The loader of a module from the shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self.shelf.group_of(spec.name)[spec.name]
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self.spec  # modules of settings refuse to have one set
        groups = self.shelf.groups
        last = groups.index(self.shelf.group_of(module.__name__))
        self.shelf.groups = groups[last + 1 :]
        for group in groups[: last + 1]:
            self.shelf.bring_back(group)
        if module.__name__ == "torch" and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
            module._import_device_backends()


def serve(path: str) -> list[str]:
    """Forks for each request. Returns in the children only, with their arguments."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import numpy  # noqa: F401

    Shelf()
    told = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    rest = [entry for entry in sys.path[1:] if entry not in told]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watchers: set[int] = set()  # waited for, so that their processor time is the server's
    gc.collect()
    gc.freeze()  # children do not copy every page at their exit to count references
    while True:
        ready, _, _ = select.select([listener, 0, *watchers], [], [])
        for ended in watchers.intersection(ready):
            os.waitid(os.P_PIDFD, ended, os.WEXITED)
            watchers.remove(ended)
            os.close(ended)
        if 0 in ready:
            os._exit(0)
        if listener not in ready:
            continue
        client, _ = listener.accept()
        if watcher := os.fork():
            client.close()
            watchers.add(os.pidfd_open(watcher))
            continue
        listener.close()
        for watcher in watchers:
            os.close(watcher)
        request, fds = received(client)
        if child := os.fork():
            watch(child, client)
        client.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream, fd in enumerate(fds):
            os.dup2(fd, stream)
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["variables"])
        os.chdir(request["folder"])
        told = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        sys.path[:] = [*told, *rest]
        multiprocessing.process.ORIGINAL_DIR = request["folder"]  # where spawned children start
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=stream is sys.stderr or os.isatty(stream.fileno()))
        return request["arguments"]


def run(arguments: list[str]) -> None:
    """Does what `python ARGUMENTS` does: -c, -m, or a script."""
    import runpy

    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__builtins__ = __builtins__
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0], alter_argv=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(first).resolve().parent))
        main.__file__ = os.path.abspath(first)
        exec(compile(Path(first).read_bytes(), main.__file__, "exec"), main.__dict__)


if __name__ == "__main__":
    command, place, *given = sys.argv[1:]
    if command == "run":
        sys.exit(ask(place, given))
    run(serve(place))
