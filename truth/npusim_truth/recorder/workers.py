# SPDX-License-Identifier: BSD-3-Clause
"""Workers and runners: who asks the questions, so that none can end or stop the recording.

The command imports torch, never touches a device, and forks a worker per batch. The worker forks a
runner, which asks question by question; one that ends the runner, or outlasts its limit, is
answered so, and another runner goes on. Each ends with its parent, whatever ends that.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable
from typing import Any, Callable

from . import batches
from .batches import BATCHES, CUT, POISONED, SECTIONS, Question, digest
from .device import device
from .journal import read_journal, write_answer
from .privacy import is_poisonous, said, scrub


def answer(question: Callable[[], Any]) -> tuple[Any, bool]:
    """Returns a question's answer, and whether the device is still of use."""
    try:
        return question(), True
    except Exception as error:
        return {"raised": said(error)}, not is_poisonous(error)


def run_questions(name: str, todo: list[Question], pipe: int, journal: int) -> None:
    """Asks one question after the other, in this process, and writes down the answers."""
    around = (
        batches.AROUND.get(name)
        or batches.AROUND.get(BATCHES[name].section)
        or contextlib.nullcontext
    )
    with around():
        for number, (key, question) in enumerate(todo):
            os.write(pipe, b"%d\n" % number)
            began = time.process_time()
            value, is_of_use = answer(question)
            write_answer(journal, name, key, value, time.process_time() - began)
            if not is_of_use or value == "refused" or BATCHES[name].alone:
                os.write(pipe, b"%d\n" % (number + 1))
                os._exit(POISONED)
    os.write(pipe, b"%d\n" % len(todo))


def work(name: str, folder: str, deadline: float, turn: int = 0) -> int:
    """Asks the questions of a batch that the journal lacks until time.time() is `deadline`.

    Of several workers side by side, each asks those of its turn.
    """
    only = _only(folder)
    done = {key for of, key, _, _ in read_journal(folder) if of == name}
    todo = []
    for key, question in BATCHES[name].make():
        wanted = key in only if only is not None else digest(key) % batches.OPTIONS.sample == 0
        if wanted or BATCHES[name].section == "identity":
            todo.append((key, question))
    if BATCHES[name].shuffled:
        todo.sort(key=lambda item: digest(item[0]))
    # What is done already is left out last: so each worker finds the same turns, whoever began.
    todo = [item for item in todo[turn :: _jobs(name)] if item[0] not in done]
    if todo and (broken := _broken_fork()):
        print(broken, file=sys.stderr)
        return 1
    journal = os.open(os.path.join(folder, "journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    at = 0
    while at < len(todo) and time.time() < deadline:
        reached, ending = _fork_runner(name, todo[at:], journal, deadline)
        at += reached
        if ending and time.time() < deadline:
            write_answer(journal, name, todo[at][0], {"ended": ending})
            at += 1
    return CUT if at < len(todo) else 0


def end_with_parent(parent: int) -> None:
    """Has Linux kill this process when `parent` ends, or now if it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _in_a_fork(ask: Callable[[], str]) -> str:
    """Returns what a forked process answers, "" if nothing: this one must not touch the device."""
    ours, theirs = os.pipe()
    asker = os.fork()
    if asker == 0:
        try:
            os.write(theirs, ask().encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as heard:
        answered = select.select([heard], [], [], 120)[0]
        text = heard.read() if answered else ""
    with contextlib.suppress(OSError):
        os.kill(asker, signal.SIGKILL)
    os.waitpid(asker, 0)
    return text


def _broken_fork() -> str:
    """Returns why forks of this process cannot use the device; "" if they can.

    A library that asks for GPUs while it is imported breaks them, and each answer would be its error.
    """

    def ask() -> str:
        import torch

        try:
            torch.empty(1, device=device())
        except Exception as error:
            return "forks cannot use the device: " + said(error)[1]
        return "it can"

    text = _in_a_fork(ask)
    return "" if text == "it can" else text or "a fork that uses the device ends without an answer"


def _fork_runner(name: str, todo: list[Question], journal: int, deadline: float) -> tuple[int, str]:
    """Returns how many questions a runner has answered, and what ended it in the next one."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    here = os.getpid()
    runner = os.fork()
    if runner == 0:
        end_with_parent(here)
        os.close(ours)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            if not os.environ.get("TRUTH_LOUD"):
                os.dup2(quiet, stream)
        status = 1
        try:
            warnings.simplefilter("ignore")
            _calm()
            run_questions(name, todo, theirs, journal)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(theirs)
    reached, heard, text = 0, time.time(), b""
    ending = ""
    while True:
        left = min(heard + BATCHES[name].limit_s, deadline + 5) - time.time()
        if left <= 0 or not select.select([ours], [], [], left)[0]:
            ending = f"no answer within {BATCHES[name].limit_s:g} s"
            os.kill(runner, signal.SIGKILL)
            break
        got = os.read(ours, 4096)
        if not got:
            break
        text += got
        whole, _, text = text.rpartition(b"\n")
        reached = int(whole.split()[-1]) if whole.split() else reached
        heard = time.time()
        if heard > deadline and reached < len(todo):
            os.kill(runner, signal.SIGKILL)
            os.waitpid(runner, 0)
            os.close(ours)
            return reached, ""
    os.close(ours)
    status = os.waitpid(runner, 0)[1]
    if not ending and reached < len(todo) and status != POISONED << 8:
        of = status & 127
        ending = f"signal {of}" if of else f"exit status {status >> 8}"
    return reached, ending


def _calm() -> None:
    import torch

    torch.set_num_threads(1)  # the host's own work is not measured, and may disturb
    gc.freeze()


def _only(folder: str) -> set[str] | None:
    path = os.path.join(folder, "only")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return set(json.load(file))


def record(folder: str, sections: Iterable[str], named: str = "") -> None:
    """Runs the batches of the sections, each within its share of the time."""
    with open(os.path.join(folder, "journal"), "a") as file:
        file.write("\n")  # the last line may have been cut off
    end = time.time() + batches.OPTIONS.minutes * 60 - 5
    chosen = [s for s in SECTIONS if s in sections]
    finished = set()
    with contextlib.suppress(OSError), open(os.path.join(folder, "finished")) as file:
        finished = set(file.read().split())
    for place, section in enumerate(chosen):
        shares = [SECTIONS[s] for s in chosen[place:]]
        until = time.time() + (end - time.time()) * shares[0] / sum(shares)
        names = [n for n, b in BATCHES.items() if b.section == section and n not in finished]
        names = [n for n in names if re.search(named, n)]
        for number, name in enumerate(names):
            # Twice an equal part: few batches need theirs.
            part = (until - time.time()) / (len(names) - number)
            deadline = min(time.time() + max(2 * part, 15), max(until, time.time() + 15), end)
            if deadline - time.time() > 1:
                _run_worker(folder, name, deadline)
            else:
                print(f"{name:24} no time left")


def _jobs(name: str) -> int:
    return 1 if BATCHES[name].timed else max(batches.OPTIONS.jobs, 1)


def _run_worker(folder: str, name: str, deadline: float) -> None:
    began = time.time()
    before = sum(1 for _ in read_journal(folder))
    with tempfile.TemporaryFile("w+") as heard:
        sys.stdout.flush()
        workers = []
        here = os.getpid()
        for turn in range(_jobs(name)):
            worker = os.fork()
            if worker == 0:
                end_with_parent(here)
                _be_worker(folder, name, deadline, heard.fileno(), turn)
            workers.append(worker)
        ends = [_ended(worker, deadline + 60) for worker in workers]
        status = next((end for end in ends if end not in (0, CUT)), max(ends))
        heard.seek(0)
        last = heard.read().splitlines()
    if status == 0:
        with open(os.path.join(folder, "finished"), "a") as file:
            file.write(name + "\n")
    got = sum(1 for _ in read_journal(folder)) - before
    print(f"{name:24} {got:6} answers {time.time() - began:6.1f} s", end="")
    words = {0: "", CUT: "  out of time"}.get(
        status, "  ended: " + (last or ["no words"])[-1][:120]
    )
    print(scrub(words), flush=True)


def _be_worker(folder: str, name: str, deadline: float, heard: int, turn: int) -> None:
    """Turns this forked process into the worker of a batch; does not return."""
    status = 1
    try:
        os.setsid()
        os.dup2(heard, 1)
        os.dup2(heard, 2)
        os.environ.update(BATCHES[name].env)
        if BATCHES[name].fresh:
            words = [sys.executable, *batches.LAUNCH, "--worker", name, "--work", folder]
            words += [
                "--deadline",
                repr(deadline),
                "--options",
                json.dumps([*batches.OPTIONS, turn]),
            ]
            os.execv(sys.executable, words)
        status = work(name, folder, deadline, turn)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _ended(worker: int, limit: float) -> int:
    """Waits for a worker until `limit`, ends what is left of it, and returns its exit status."""
    status = -1
    while time.time() < limit:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
    with contextlib.suppress(OSError):
        os.killpg(worker, signal.SIGKILL)
    with contextlib.suppress(OSError):
        status = os.waitpid(worker, 0)[1]
    return status >> 8 if status & 127 == 0 else -1
