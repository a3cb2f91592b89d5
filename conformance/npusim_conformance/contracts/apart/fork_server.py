# SPDX-License-Identifier: BSD-3-Clause
"""A process that has torch loaded, but no backend, and forks a child for each script.

A child costs what loading the backend costs, and ends as any Python ends. Scripts come as JSON
lines on stdin; each is answered by two lines, the child's process id and its wait status.
"""

import gc
import json
import os
import sys
from typing import Any

import torch  # noqa: F401  (so that children need not)


def main() -> None:
    """Serves until stdin ends; in a child, runs the script and leaves the end to Python."""
    gc.freeze()  # a child that collected what is loaded would copy it
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            run(order)
            return
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


def run(order: dict[str, Any]) -> None:
    """Executes a script as if Python had been started with it, in a process group of its own."""
    os.setpgid(0, 0)
    for descriptor, name in ((0, os.devnull), (1, order["stdout"]), (2, order["stderr"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:0] = filter(None, order["environment"].get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["-c", *order["arguments"]]
    exec(compile(order["script"], "<script>", "exec"), sys.modules["__main__"].__dict__)


if __name__ == "__main__":
    main()
