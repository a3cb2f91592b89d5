# SPDX-License-Identifier: BSD-3-Clause
"""Ends of processes: seen without the help of the dying process, and leaving nothing behind.

A worker leads a session of its own: by that, whatever it starts, a backend's helpers too, is found
and ended with it.
"""

import ctypes
import os
import resource
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def lead_session(parent: int) -> None:
    """Makes this process the leader of a session that ends with its parent, whatever ends that."""
    os.setsid()
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """Has the system kill this process when its parent ends, or now if it has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def ended(pid: int) -> int | None:
    """How a child ended, as waitpid() says, or None while it lives; reaps it."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return status if found else None


def end_of(status: int) -> str:
    """How a process ended, of subprocess's exit status: "by SIGSEGV" or "with status 1"."""
    return f"by {name_of(-status)}" if status < 0 else f"with status {status}"


def name_of(number: int) -> str:
    """The name of a signal; those for real time have a number alone."""
    known = {int(each): each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")


def end(pid: int, patience_seconds: float = 0.0) -> int:
    """Ends a child that leads a session, and all in it; returns how the child ended.

    It may end by itself for so long. Never waits for anything else.
    """
    deadline = time.monotonic() + patience_seconds
    status = ended(pid)
    while status is None and time.monotonic() < deadline:
        time.sleep(0.005)
        status = ended(pid)
    end_session(pid)
    if status is None:
        os.kill(pid, signal.SIGKILL)  # it may not have come to lead a session
        status = os.waitpid(pid, 0)[1]
    return status


def end_session(leader: int) -> None:
    """Kills every process of a session; the leader may be gone."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _session_of(folder) == leader:
            try:
                os.kill(int(folder.name), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # it ended by itself


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM now; 0 if it is gone.

    Not its address space: devices that map their memory sparsely reserve much that they never use.
    """
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def private_bytes(pid: int) -> int:
    """Likewise without pages of files, which the machine takes back under pressure."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    rows = (line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return sum(int(row[1]) << 10 for row in rows)


def memory_bytes() -> int:
    """The memory of this machine, or of this container."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(pages, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return pages


def _session_of(folder: Path) -> int:
    try:
        # The name, in brackets, may hold anything; after it come state, parent, group, session.
        return int((folder / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError, ValueError):
        return -1
