#!/usr/bin/env python
# SPDX-License-Identifier: BSD-3-Clause
"""Records what a GPU does: what it accepts, allocates, answers, and how fast it is.

    python truth_record.py --minutes 10          # writes truth-<chip>-torch-<version>.zip

Needs torch 2.5 or newer, built for CUDA or ROCm, and nothing else; this file can be copied alone.
A recording that was interrupted continues when the same command runs again. The archive has no name
of a host, a user or a path. `npusim truth compare ARCHIVE` compares it with torch_npusim's claims.

How it works: main() imports torch, never touches a device, and forks a worker per batch of
questions. The worker forks a runner, which asks question by question; one that ends the runner, or
outlasts its limit, is answered so, and another runner goes on. Answers go to a journal by lines.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import hashlib
import io
import itertools
import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

SCHEMA = "npusim-truth"
VERSION = 1
LARGEST_ARCHIVE = 15 << 20  # bytes
#: Section -> share of the time.
SECTIONS = {
    "identity": 0.02,
    "acceptance": 0.29,
    "allocation": 0.18,
    "rates": 0.25,
    "steps": 0.18,
    "answers": 0.03,
    "collectives": 0.05,
}
POISONED = 77  # exit status of a runner whose device is of no more use
CUT = 78  # exit status of a worker whose time was up
#: Entered around the questions of a batch; for simulators.
AROUND: Dict[str, Callable[[], Any]] = {}
#: The words that start this file again; a simulator may put a program of its own there.
LAUNCH = [os.path.abspath(__file__)]

Question = Tuple[str, Callable[[], Any]]


class Batch(NamedTuple):
    """Questions that share a process: their section, how they are made, and their limits."""

    section: str
    make: Callable[[], Iterable[Question]]
    limit_s: float = 30
    alone: bool = False  # each question in a runner of its own
    env: Dict[str, str] = {}
    fresh: bool = False  # a Python of its own: torch reads such an `env` when it is imported
    shuffled: bool = False  # by the hash of the key: what time leaves out is then no selection
    timed: bool = False  # other work on the device would disturb it: never asked side by side


BATCHES: Dict[str, Batch] = {}


def batch(section: str, name: str, **how: Any) -> Callable[[Any], Any]:
    """Registers a function that yields questions."""

    def register(make: Any) -> Any:
        BATCHES[section + "." + name] = Batch(section, make, **how)
        return make

    return register


class Options(NamedTuple):
    """The options that decide which questions are asked."""

    minutes: float = 10
    memory: int = 6 << 30  # bytes
    sample: int = 1  # one question in so many
    jobs: int = 1  # workers side by side, where nothing is timed


OPTIONS = Options()


def digest(key: str) -> int:
    """Returns a number that depends on the key alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")


# --- Private things


@functools.lru_cache(None)
def _private() -> List[Tuple[re.Pattern[str], str]]:
    found = []
    for path in (os.path.expanduser("~"), os.getcwd(), tempfile.gettempdir(), sys.prefix):
        if len(path) > 3:
            found.append((re.compile(re.escape(path)), "<path>"))
    hosts = {socket.gethostname(), platform.node()}
    hosts |= {name.partition(".")[0] for name in hosts}
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    for names, stands in ((hosts - {"localhost"}, "<host>"), (users - {"root"}, "<user>")):
        for name in sorted(names, key=len, reverse=True):
            if len(name) > 2:
                found.append((re.compile(r"(?<!\w)" + re.escape(name) + r"(?!\w)"), stands))
    found.append((re.compile(r"(?<![\w.<>:/])/(?:[\w.+@<>-]+/)+([\w.+@-]*)"), r"<path>/\1"))
    found.append((re.compile(r"0x[0-9a-f]{4,}"), "0x<address>"))
    found.append((re.compile(r"(?i)\b(process|pid)[ :=]+\d+"), r"\1 <number>"))
    return found


def scrub(value: Any) -> Any:
    """Returns a value of JSON without names of hosts, users, paths, and without addresses."""
    if isinstance(value, str):
        for pattern, stands in _private():
            value = pattern.sub(stands, value)
        return value
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value


def said(error: BaseException, length: int = 400) -> List[str]:
    """Returns the type and the text of an exception, without C++ frames and advice on debugging."""
    text = str(error).partition("Exception raised from")[0]
    text = re.split(r"\n(?:CUDA kernel errors might|HIP kernel errors might|For debugging)", text)[
        0
    ]
    text = re.split(r"\nSearch for `cuda|\nDevice-side assert", text)[0]
    return [type(error).__name__, text.strip()[:length]]


def is_poisonous(error: BaseException) -> bool:
    """Returns whether the device of this process is of no more use after an exception."""
    text = str(error)
    words = ("CUDA error", "HIP error", "device-side assert", "CUDNN_STATUS", "CUBLAS_STATUS")
    return type(error).__name__ == "AcceleratorError" or any(word in text for word in words)


# --- Runners, workers, the recording


def answer(question: Callable[[], Any]) -> Tuple[Any, bool]:
    """Returns a question's answer, and whether the device is still of use."""
    try:
        return question(), True
    except Exception as error:
        return {"raised": said(error)}, not is_poisonous(error)


def run_questions(name: str, todo: List[Question], pipe: int, journal: int) -> None:
    """Asks one question after the other, in this process, and writes down the answers."""
    around = AROUND.get(name) or AROUND.get(BATCHES[name].section) or contextlib.nullcontext
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


def write_answer(journal: int, name: str, key: str, value: Any, seconds: float = 0.0) -> None:
    """Appends a line to the journal, whole."""
    line = json.dumps([name, key, scrub(value), round(seconds, 3)])
    os.write(journal, line.encode() + b"\n")


def work(name: str, folder: str, deadline: float, turn: int = 0) -> int:
    """Asks the questions of a batch that the journal lacks until time.time() is `deadline`.

    Of several workers side by side, each asks those of its turn.
    """
    only = _only(folder)
    done = {key for of, key, _, _ in read_journal(folder) if of == name}
    todo = []
    for key, question in BATCHES[name].make():
        wanted = key in only if only is not None else digest(key) % OPTIONS.sample == 0
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


def _fork_runner(name: str, todo: List[Question], journal: int, deadline: float) -> Tuple[int, str]:
    """Returns how many questions a runner has answered, and what ended it in the next one."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    runner = os.fork()
    if runner == 0:
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
            ending = "no answer within %g s" % BATCHES[name].limit_s
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
        ending = "signal %d" % of if of else "exit status %d" % (status >> 8)
    return reached, ending


def _calm() -> None:
    import torch

    torch.set_num_threads(1)  # the host's own work is not measured, and may disturb
    gc.freeze()


def _only(folder: str) -> Optional[set[str]]:
    path = os.path.join(folder, "only")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return set(json.load(file))


def read_journal(folder: str) -> Iterator[Tuple[str, str, Any, float]]:
    """Yields batch, key, answer, seconds; not a last line that was cut off."""
    path = os.path.join(folder, "journal")
    if not os.path.exists(path):
        return
    with open(path) as file:
        for line in file:
            with contextlib.suppress(ValueError):
                name, key, value, seconds = json.loads(line)
                yield name, key, value, seconds


def record(folder: str, sections: Iterable[str], batches: str = "") -> None:
    """Runs the batches of the sections, each within its share of the time."""
    with open(os.path.join(folder, "journal"), "a") as file:
        file.write("\n")  # the last line may have been cut off
    end = time.time() + OPTIONS.minutes * 60 - 5
    chosen = [s for s in SECTIONS if s in sections]
    finished = set()
    with contextlib.suppress(OSError), open(os.path.join(folder, "finished")) as file:
        finished = set(file.read().split())
    for place, section in enumerate(chosen):
        shares = [SECTIONS[s] for s in chosen[place:]]
        until = time.time() + (end - time.time()) * shares[0] / sum(shares)
        names = [n for n, b in BATCHES.items() if b.section == section and n not in finished]
        names = [n for n in names if re.search(batches, n)]
        for number, name in enumerate(names):
            # Twice an equal part: few batches need theirs.
            part = (until - time.time()) / (len(names) - number)
            deadline = min(time.time() + max(2 * part, 15), max(until, time.time() + 15), end)
            if deadline - time.time() > 1:
                _run_worker(folder, name, deadline)
            else:
                print("%-24s no time left" % name)


def _jobs(name: str) -> int:
    return 1 if BATCHES[name].timed else max(OPTIONS.jobs, 1)


def _run_worker(folder: str, name: str, deadline: float) -> None:
    began = time.time()
    before = sum(1 for _ in read_journal(folder))
    with tempfile.TemporaryFile("w+") as heard:
        sys.stdout.flush()
        workers = []
        for turn in range(_jobs(name)):
            worker = os.fork()
            if worker == 0:
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
    print("%-24s %6d answers %6.1f s" % (name, got, time.time() - began), end="")
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
            words = [sys.executable, *LAUNCH, "--worker", name, "--work", folder]
            words += ["--deadline", repr(deadline), "--options", json.dumps([*OPTIONS, turn])]
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


def read_answers(folder: str) -> Dict[str, Any]:
    """Returns a recording's sections from the journal."""
    made: Dict[str, Any] = {}
    for name, key, value, seconds in read_journal(folder):
        section = made.setdefault(BATCHES[name].section, {"answers": {}, "seconds": 0.0})
        section["seconds"] = round(section["seconds"] + seconds, 3)
        if value is not None:
            section["answers"][key] = value
    return made


def write_archive(path: str, folder: str) -> Dict[str, Any]:
    """Writes the recording; the longest answers are left out while it is over 15 MB."""
    made: Dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "options": OPTIONS._asdict(),
        "left_out": 0,
        "sections": read_answers(folder),
    }
    while True:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
            info = zipfile.ZipInfo("recording.json")
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, json.dumps(made, sort_keys=True, separators=(",", ":")))
        if len(data.getvalue()) <= LARGEST_ARCHIVE:
            break
        places = [(len(json.dumps(v)), s, k) for s, of in made["sections"].items()
                  for k, v in of["answers"].items()]  # fmt: skip
        for _, section, key in sorted(places, reverse=True)[: max(len(places) // 100, 1)]:
            del made["sections"][section]["answers"][key]
            made["left_out"] += 1
    with open(path + ".part", "wb") as out:
        out.write(data.getvalue())
    os.replace(path + ".part", path)
    return made


# --- What questions share


def device() -> Any:
    """Returns the device that is asked."""
    import torch

    return torch.device("cuda", 0)


def is_simulated() -> bool:
    """Returns whether the device is npusim's."""
    return "torch_npusim" in sys.modules


def short(dtype: Any) -> str:
    """Returns float32 of torch.float32."""
    return str(dtype).rpartition(".")[2]


def shape(value: Any) -> str:
    """Returns a value in few words: float32[2,3], or what Python says."""
    import torch

    if isinstance(value, torch.Tensor):
        return "%s[%s]" % (short(value.dtype), ",".join(map(str, value.shape)))
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(shape, value)) + ")"
    text = repr(value)
    return text if len(text) < 40 else type(value).__name__


def moved(value: Any, grad: bool = False) -> Any:
    """Returns a value whose tensors and names of devices are the device's."""
    import torch

    if isinstance(value, torch.Tensor):
        wants = grad and (value.is_floating_point() or value.is_complex())
        return value.detach().to(device()).requires_grad_(wants)
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return device()
    if isinstance(value, dict):
        return {key: moved(item, grad) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(moved(item, grad) for item in value)
    return value


def tensors(value: Any) -> List[Any]:
    """Returns the tensors in a value."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in tensors(item)]
    return []


def backward(made: Any) -> None:
    """Runs backward of all results that have a gradient."""
    import torch

    roots = [t for t in tensors(made) if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])


DTYPES = (
    "float32 float16 bfloat16 float64 int64 int32 int16 int8 uint8 bool complex64 complex128 "
    "complex32 float8_e4m3fn uint16"
).split()


@functools.lru_cache(None)
def operators() -> Dict[str, Any]:
    """Returns torch's own table of operators, as it is without a GPU: the same everywhere."""
    import types
    import unittest

    import torch

    for name in ("expecttest",):  # what torch's tests import and the table does not need
        try:
            __import__(name)
        except ImportError:
            stand_in: Any = types.ModuleType(name)
            stand_in.TestCase = unittest.TestCase
            stand_in.assert_expected_inline = None
            sys.modules[name] = stand_in
    # Without a GPU the table is the same everywhere, and asking for one would begin to use it.
    compilers = "_create_jit_fn", "_create_multi_output_jit_fn"
    kept: List[Tuple[Any, str, Any]] = [(torch.cuda, "is_available", lambda: False)]
    kept += [(torch.cuda.jiterator, name, lambda *_, **__: print) for name in compilers]
    before = [(of, name, getattr(of, name)) for of, name, _ in kept]
    argv, sys.argv = sys.argv, sys.argv[:1]
    hidden = [n for n in ("numba", "cupy", "cuda.bindings") if n not in sys.modules]
    try:
        for place in kept:
            setattr(*place)
        # torch's tests ask these whether there is a GPU: a fork of that process can use none.
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
        from torch.testing._internal.common_methods_invocations import op_db
    finally:
        sys.argv = argv
        for place in before:
            setattr(*place)
        for name in hidden:
            del sys.modules[name]
    found: Dict[str, Any] = {}
    for info in op_db:
        if "jiterator" not in info.full_name:
            found.setdefault(info.full_name, info)
    return found


def samples(name: str, dtype: str, count: int, grad: bool = False) -> List[Any]:
    """Returns torch's first samples of an operator, on the CPU; [] where it has none."""
    import torch

    torch.manual_seed(0)
    with contextlib.suppress(Exception):
        made = operators()[name].sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)
        return list(itertools.islice(made, count))
    return []


def called(name: str, sample: Any, grad: bool = False) -> Callable[[], Any]:
    """Returns a function that calls an operator on a sample's copy on the device."""
    args = moved((sample.input, *sample.args), grad)
    kwargs = moved(dict(sample.kwargs), grad)
    info = operators()[name]
    return lambda: info(*args, **kwargs)


def described(name: str, sample: Any) -> str:
    """Returns the call as a text."""
    words = [shape(value) for value in (sample.input, *sample.args)]
    words += ["%s=%s" % (key, shape(value)) for key, value in sample.kwargs.items()]
    return "%s(%s)" % (name, ", ".join(words))[:200]


def one_per_operator(kind: str, ask: Callable[[str, Any], Any]) -> Iterator[Question]:
    """Yields a question per operator, about its first sample of the first of a few dtypes."""

    def first(name: str) -> Any:
        for dtype in ("float32", "int64", "bool", "complex64"):
            for sample in samples(name, dtype, 1):
                with contextlib.suppress(Exception):
                    called(name, sample)()
                    return ask(name, sample)
        return None

    for name in operators():
        yield "%s|%s" % (kind, name), functools.partial(first, name)


# --- Section identity


@batch("identity", "device")
def _identity() -> Iterator[Question]:
    import torch

    def of_device(name: str) -> Any:
        return getattr(torch.cuda.get_device_properties(0), name)

    def sensor(name: str) -> Any:
        if not shutil.which("nvidia-smi"):
            return None
        words = ["nvidia-smi", "--query-gpu=" + name, "--format=csv,noheader", "-i", "0"]
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()

    def processor() -> str:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1] for line in file if line.startswith("model name")]
        return names[0].strip() if names else platform.machine()

    yield "chip", lambda: torch.cuda.get_device_name(0)
    yield "capability", lambda: list(torch.cuda.get_device_capability(0))
    for name in "total_memory multi_processor_count".split():
        yield name, functools.partial(of_device, name)
    for name in "L2_cache_size warp_size max_threads_per_multi_processor gcnArchName".split():
        if not is_simulated():
            yield name, functools.partial(of_device, name)
    yield "devices", torch.cuda.device_count
    yield "torch", lambda: torch.__version__
    yield "cuda", lambda: torch.version.cuda
    yield "hip", lambda: torch.version.hip
    yield "cudnn", lambda: torch.backends.cudnn.version()
    yield "nccl", lambda: list(torch.cuda.nccl.version())
    yield "python", lambda: ".".join(map(str, sys.version_info[:3]))
    yield "system", lambda: [platform.system(), platform.machine()]
    yield "host processor", processor
    yield "simulated", is_simulated
    if not is_simulated():
        for (
            name
        ) in "driver_version clocks.max.sm clocks.max.mem power.limit pcie.link.gen.max".split():
            yield name, functools.partial(sensor, name)


# --- Section acceptance

#: A row of npusim's rule book by line: operators; dtypes or conditions; arguments; dtype of `out`.
#: T(2, 3) are ones of the dtype (float32 where the line has none), I ones of int64, Z zeros of it, X
#: one index, B int8, P float8, Q quantized numbers. " .out" and " _" go on with the operator before.
RULES = """\
mm .out; {ints}; T(4, 4), T(4, 4)
addmm .out _; {ints}; T(4, 4), T(4, 4), T(4, 4)
_addmm_activation .out; {ints}; T(4), T(4, 4), T(4, 4)
addmv .out _; {ints}; T(4), T(4, 4), T(4)
mv; {ints}; T(4, 4), T(4)
dot vdot; {ints}; T(4), T(4)
bmm .out; {ints}; T(1, 4, 4), T(1, 4, 4)
baddbmm .out _; {ints}; T(1, 4, 4), T(1, 4, 4), T(1, 4, 4)
addbmm .out _; {ints}; T(4, 4), T(1, 4, 4), T(1, 4, 4)
mm .out; {sparse}; T(4, 4).to_sparse(), T(4, 4)
addmm .out _; {sparse}; T(4, 4), T(4, 4).to_sparse(), T(4, 4)
_sparse_addmm; {sparse}; T(4, 4), T(4, 4).to_sparse(), T(4, 4)
hspmm; {sparse}; T(4, 4).to_sparse(), T(4, 4)
bmm .out; {sparse}; T(1, 4, 4).to_sparse(), T(1, 4, 4)
sspaddmm.out; Sparse; T(4, 4).to_sparse(), T(4, 4).to_sparse(), T(4, 4)
kthvalue.values topk .values; self.dim()>24; T({deep}), 1
median.dim .dim_values nanmedian.dim_values; self.dim()>24; T({deep}), -1
floor_divide .out _.Tensor remainder.Tensor .Tensor_out _.Tensor fmod.Tensor .Tensor_out _.Tensor; {ints}; T(4), T(4) - T(4)
floor_divide .out remainder.Tensor .Tensor_out fmod.Tensor .Tensor_out; bool; T(4), I(4) - I(4); int64
remainder.Scalar_Tensor; bool {ints}; 7, T(4) ^ T(4)
div.Tensor_mode .out_mode _.Tensor_mode; {ints}; T(4), T(4) - T(4), rounding_mode='floor'
div.Tensor_mode .out_mode; bool; T(4), I(4) - I(4), rounding_mode='floor'; int64
_int_mm .out; self.size(0)<=16; B(16, 16), B(16, 8); int32
_int_mm .out; self.size(1)%8; B(32, 12), B(12, 8); int32
_int_mm .out; mat2.size(1)%8; B(32, 16), B(16, 4); int32
_scaled_mm .out; capability<8.9; P(16, 16), P(16, 16).t(), T(), T(), out_dtype=torch.bfloat16; bfloat16
native_dropout_backward; bool {ints}; T(4), T(4).bool(), 2.0
convolution; int64 complex32; T(1, 1, 4, 4), T(1, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
convolution_backward; complex32; T(1, 1, 3, 3), T(1, 1, 4, 4), T(1, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
slow_conv3d_forward .output; any; T(1, 1, 4, 4, 4), T(1, 1, 2, 2, 2), [2, 2, 2], None, [1, 1, 1], [0, 0, 0]
avg_pool2d .out; int64; T(1, 1, 4, 4), [2, 2]
avg_pool3d .out; int64 float16 bfloat16; T(1, 1, 4, 4, 4), [2, 2, 2]
avg_pool3d_backward .grad_input; any float16 bfloat16; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None
max_pool2d_with_indices .out; {ints}; T(1, 1, 4, 4), [2, 2]
max_pool3d_with_indices .out; {ints}; T(1, 1, 4, 4, 4), [2, 2, 2]
max_pool3d_with_indices_backward .grad_input; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, Z(1, 1, 2, 2, 2)
_adaptive_avg_pool2d_backward; any; T(1, 1, 2, 2), T(1, 1, 4, 4)
_adaptive_avg_pool3d_backward; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4)
adaptive_max_pool2d_backward .grad_input; any; T(1, 1, 2, 2), T(1, 1, 4, 4), Z(1, 1, 2, 2)
fractional_max_pool2d_backward .grad_input; any; T(1, 1, 2, 2), T(1, 1, 4, 4), [2, 2], [2, 2], Z(1, 1, 2, 2)
fractional_max_pool3d_backward .grad_input; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), [2, 2, 2], [2, 2, 2], Z(1, 1, 2, 2, 2)
grid_sampler_2d_backward; any; T(1, 1, 2, 2), T(1, 1, 4, 4), T(1, 2, 2, 2), 0, 0, False, [True, True]
grid_sampler_3d_backward; any; T(1, 1, 2, 2, 2), T(1, 1, 4, 4, 4), T(1, 2, 2, 2, 3), 0, 0, False, [True, True]
_upsample_bilinear2d_aa .out; uint8 float16 bfloat16; T(1, 1, 4, 4), [8, 8], False
upsample_bilinear2d .out upsample_bicubic2d .out; uint8; T(1, 1, 4, 4), [8, 8], False
_upsample_lanczos2d_aa.out; any; T(1, 1, 4, 4), [8, 8], False
_upsample_bilinear2d_aa_backward .grad_input; any float16 bfloat16; T(1, 1, 8, 8), [8, 8], [1, 1, 4, 4], False
_upsample_bicubic2d_aa_backward .grad_input _upsample_lanczos2d_aa_backward.grad_input; any; T(1, 1, 8, 8), [8, 8], [1, 1, 4, 4], False
upsample_bilinear2d_backward .grad_input upsample_bicubic2d_backward .grad_input; any; T(1, 1, 8, 8), [8, 8], [1, 1, 4, 4], False
upsample_linear1d_backward .grad_input; any; T(1, 1, 8), [8], [1, 1, 4], False
upsample_trilinear3d_backward .grad_input; any; T(1, 1, 8, 8, 8), [8, 8, 8], [1, 1, 4, 4, 4], False
reflection_pad1d_backward .grad_input replication_pad1d_backward .grad_input; any; T(1, 6), T(1, 4), [1, 1]
replication_pad2d_backward .grad_input; any; T(1, 6, 6), T(1, 4, 4), [1, 1, 1, 1]
reflection_pad3d_backward .grad_input replication_pad3d_backward .grad_input; any; T(1, 6, 6, 6), T(1, 4, 4, 4), [1, 1, 1, 1, 1, 1]
_ctc_loss_backward; any; T(1), T(4, 1, 3), I(1, 2), [4], [2], *torch.ops.aten._ctc_loss.default(T(4, 1, 3), I(1, 2), [4], [2]), 0
_ctc_loss_backward.Tensor; any; T(1), T(4, 1, 3), I(1, 2), torch.tensor([4]), torch.tensor([2]), *torch.ops.aten._ctc_loss.default(T(4, 1, 3), I(1, 2), [4], [2]), 0
_embedding_bag_backward; mode=2; T(1, 4), I(2), Z(1), Z(2), I(1), I(1, 4), 4, False, 2, False, None
_embedding_bag_dense_backward; mode=2; T(1, 4), I(2), Z(2), I(1), I(1, 4), 4, False, 2, None
bincount; weights; I(4), T(4)
histc .out; float16 bfloat16 float32 float64; T(4)
median.dim .dim_values nanmedian.dim_values; any; T(4), 0
put_; accumulate=1; T(4), I(1), T(1), True
index_reduce .out _; any; T(4), 0, I(1), T(1), 'prod'
scatter.reduce .reduce_out _.reduce; any; T(4), 0, I(4), T(4), reduce='add'
scatter.reduce .reduce_out _.reduce; reduce!=add; T(4), 0, I(4), T(4), reduce='multiply'
scatter.reduce .reduce_out _.reduce; bool complex32 complex64 complex128; T(4), 0, I(4), T(4), reduce='multiply'
scatter.value_reduce .value_reduce_out _.value_reduce; bool complex32 complex64 complex128; T(4), 0, I(4), 1, reduce='multiply'
scatter_reduce.two .two_out _.two; bool; T(4), 0, I(4), T(4), 'amax'
scatter_reduce.two .two_out _.two; reduce=prod; T(4), 0, I(4), T(4), 'prod'
nll_loss2d_forward .output; reduction!=0; T(1, 2, 1, 1), I(1, 1, 1), None, 1, -100
multi_margin_loss .out; float16 bfloat16; T(2, 4), I(2)
multi_margin_loss_backward .grad_input; float16 bfloat16; T(), T(2, 4), I(2), 1, 1.0
multilabel_margin_loss_forward .output; float16 bfloat16; T(2, 4), I(2, 4), 1
multilabel_margin_loss_backward .grad_input; float16 bfloat16; T(), T(2, 4), I(2, 4), 1, T(2, 4)
abs .out _; bool; T(4)
acos .out acosh .out asin .out asinh .out atan .out atanh .out cos .out cosh .out; complex32; T(4)
exp .out log .out rsqrt .out sigmoid .out sin .out sinh .out sqrt .out tan .out tanh .out; complex32; T(4)
angle .out; float16 bfloat16 complex32; T(4)
igamma .out _ igammac .out _; float16 bfloat16; T(4), T(4)
div.Tensor .out logaddexp .out pow.Tensor_Tensor .Tensor_Tensor_out; complex32; T(4), T(4)
div.Tensor_mode .out_mode; complex32; T(4), T(4), rounding_mode=None
lerp.Scalar .Scalar_out; complex32; T(4), T(4), 0.5
lerp.Tensor .Tensor_out; complex32; T(4), T(4), T(4)
pow.Scalar .Scalar_out; complex32; 2, T(4)
pow.Tensor_Scalar .Tensor_Scalar_out; complex32; T(4), 3
polygamma .out; float16; 1, T(4)
round; float16; T(4)
round.decimals .decimals_out; float16; T(4), decimals=1
rrelu_with_noise .out _; float16; T(4), T(4)
prod; complex32; T(4)
prod.dim_int .int_out; complex32; T(4), 0
sum.dim_IntList .IntList_out; complex32; T(4), [0]
nansum .out; complex32 complex64 complex128; T(4), [0]
trace; bool complex32; T(4, 4)
_fft_c2c; complex32; T(4), [0], 0, True
_fft_c2r; complex32; T(3), [0], 0, 4
_fft_r2c; float16; T(4), [0], 0, True
fft_fft fft_ifft fft_rfft fft_ihfft; float16 bfloat16 complex32; T(4)
fft_hfft fft_irfft; float16 bfloat16 complex32; T(3)
fft_fft2 fft_fftn fft_ifft2 fft_ifftn fft_rfft2 fft_rfftn fft_ihfft2 fft_ihfftn; float16 bfloat16 complex32; T(4, 4)
fft_hfft2 fft_hfftn fft_irfft2 fft_irfftn; float16 bfloat16 complex32; T(4, 3)
_add_relu.Tensor .out _.Tensor; any; T(4), T(4)
_add_relu.Scalar _.Scalar; any; T(4), 1
_convert_weight_to_int4pack_for_cpu; any; T(16, 32).int(), 2
_weight_int4pack_mm_for_cpu; any; T(4, 32), T(8, 16).byte(), 32, T(1, 8, 2)
_dyn_quant_matmul_4bit; any; T(1, 32), T(8).byte(), 32, 32, 8
_dyn_quant_pack_4bit_weight; any; T(8, 16).byte(), T(8, 1), None, 32, 32, 8
_empty_affine_quantized; any; [4], dtype=torch.float32, device='cuda'
_empty_per_channel_affine_quantized; any; [4], scales=T(4), zero_points=I(4), axis=0, dtype=torch.float32, device='cuda'
_histogramdd_bin_edges _histogramdd_from_bin_cts; any; T(4, 2), [2, 2]
_histogramdd_from_bin_tensors; any; T(4, 2), [T(3), T(3)]
histogram.bin_ct .bin_ct_out; any; T(4)
histogram.bins_tensor .bins_tensor_out; any; T(4), T(4)
_scaled_dot_product_flash_attention_for_cpu; any; T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8)
_scaled_dot_product_flash_attention_for_cpu_backward; any; T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4, 8), T(1, 1, 4), 0.0, False
_sparse_mm_reduce_impl; SparseCsr; T(4, 4).to_sparse_csr(), T(4, 4), 'amax'
_sparse_mm_reduce_impl_backward; SparseCsr; T(4, 4).to_sparse_csr(), T(4, 4), T(4, 4), 'amax', I(4, 4), [True, True]
_spdiags; any; T(1, 4), torch.tensor([0], device='cuda'), [4, 4]
narrow_copy.out; any; T(4), 0, 0, 2
to_mkldnn; any; T(4)
quantize_per_tensor.tensors; any; [T(4)], T(1), I(1), torch.quint8
dequantize.tensors; Quantized; [Q(4)]
_nested_sum_backward; NestedTensor; T(2), torch.nested.nested_tensor([T(2), T(3)]), [1]
sum.dim_IntList; NestedTensor; torch.nested.nested_tensor([T(2), T(3)]), [1]
_adaptive_avg_pool3d adaptive_avg_pool3d.out avg_pool3d quantized_max_pool3d; Quantized; Q(1, 1, 4, 4, 4), [2, 2, 2]
avg_pool2d; Quantized; Q(1, 1, 4, 4), [2, 2]
quantized_max_pool1d; Quantized; Q(1, 1, 4), [2]
upsample_nearest2d _upsample_nearest_exact2d; Quantized; Q(1, 1, 4, 4), [8, 8]
upsample_nearest3d _upsample_nearest_exact3d; Quantized; Q(1, 1, 4, 4, 4), [8, 8, 8]
upsample_bilinear2d; Quantized; Q(1, 1, 4, 4), [8, 8], False
grid_sampler_2d; Quantized; Q(1, 1, 4, 4), T(1, 2, 2, 2), 0, 0, False
reflection_pad1d.out; Quantized; Q(1, 4), [1, 1]
reflection_pad2d .out; Quantized; Q(1, 4, 4), [1, 1, 1, 1]
_prelu_kernel; Quantized; Q(1, 4), T(4)
cat .out; Quantized; [Q(4), Q(4)]
channel_shuffle; Quantized; Q(1, 4, 2, 2), 2
clamp; Quantized; Q(4), 0, 1
threshold; Quantized; Q(4), 0, 0
eq.Scalar .Scalar_out ne.Scalar .Scalar_out ge.Scalar .Scalar_out gt.Scalar .Scalar_out le.Scalar .Scalar_out lt.Scalar .Scalar_out; Quantized; Q(4), 1; bool
eq.Tensor .Tensor_out ne.Tensor .Tensor_out ge.Tensor .Tensor_out gt.Tensor .Tensor_out le.Tensor .Tensor_out lt.Tensor .Tensor_out; Quantized; Q(4), Q(4); bool
equal; Quantized; Q(4), Q(4)
gelu_ hardsigmoid .out hardtanh .out _ leaky_relu .out _ sigmoid tanh max .unary_out min .unary_out; Quantized; Q(4)
index.Tensor; Quantized; Q(4), [I(1)]
mean.dim .out std.correction .correction_out; Quantized; Q(4), [0]
quantized_batch_norm; Quantized; Q(1, 2, 4, 4), T(2), T(2), T(2), T(2), 1e-5, 1.0, 0
resize_; Quantized; Q(4), [2]
sort.stable; Quantized; Q(4), stable=True
topk; Quantized; Q(4), 1
_assert_async; asserts; T(1) * 0
_assert_async.msg; asserts; T(1) * 0, 'no'
_embedding_bag _embedding_bag_forward_only; asserts; T(4, 4), X(9), Z(1)
embedding; asserts; T(4, 4), X(9)
embedding_dense_backward; asserts; T(1, 4), X(9), 4, -1, False
binary_cross_entropy .out; asserts; T(1) * 2, T(1)
multi_margin_loss .out; asserts; T(1, 4), X(9)
multinomial .out; asserts; T(4) * -1, 1; int64
nll_loss_forward .output; asserts; T(1, 4), X(9), None, 1, -100
nll_loss2d_forward .output; asserts; T(1, 4, 1, 1), X(9).view(1, 1, 1), None, 1, -100
max_unpool2d .out; asserts; T(1, 1, 1, 1), X(99).view(1, 1, 1, 1), [2, 2]
max_unpool3d .out; asserts; T(1, 1, 1, 1, 1), X(99).view(1, 1, 1, 1, 1), [2, 2, 2], [2, 2, 2], [0, 0, 0]
gather .out index_select .out; asserts; T(4), 0, X(9)
take .out; asserts; T(4), X(9)
bernoulli_.Tensor; asserts; T(4), T(4) * 2
masked_scatter_; asserts; T(4), T(4).bool(), T(1)
put_; asserts; T(4), X(9), T(1)
index.Tensor .Tensor_out; asserts; T(4), [X(9)]
_index_put_impl_; asserts; T(4), [X(9)], T(1)
index_add .out _ index_copy .out _ scatter.src .src_out _.src scatter_add .out _; asserts; T(4), 0, X(9), T(1)
index_fill_.int_Scalar scatter.value .value_out _.value; asserts; T(4), 0, X(9), 1.0
index_fill_.int_Tensor; asserts; T(4), 0, X(9), T()
index_reduce .out _; asserts; T(4), 0, X(9), T(1), 'prod'
scatter_reduce.two .two_out _.two; asserts; T(4), 0, X(9), T(1), 'sum'
scatter.reduce .reduce_out _.reduce; asserts; T(4), 0, X(9), T(1), reduce='add'
scatter.value_reduce .value_reduce_out _.value_reduce; asserts; T(4), 0, X(9), 1.0, reduce='add'
"""  # fmt: skip
_INTS = "uint8 int8 int16 int32 int64"
for _name, _meaning in (
    ("ints", _INTS),
    ("sparse", " ".join("Sparse:" + dtype for dtype in ["bool", *_INTS.split()])),
    ("deep", ", ".join("1" * 25)),
):
    RULES = RULES.replace("{%s}" % _name, _meaning)


def rule_rows() -> Iterator[Tuple[str, str, str, str]]:
    """Yields operator, dtype or condition, arguments, dtype of `out` of each line of RULES."""
    for line in RULES.splitlines():
        names, whats, arguments, out = (line + "; ").split("; ")[:4]
        base = ""
        for name in names.split():
            if name[0] == "." or name == "_" or name[:2] == "_.":
                name = base + name
            else:
                base = name.partition(".")[0]
            for what in whats.split():
                yield name, what, arguments, out.strip("; ")


_MADE = {
    "T": "torch.ones({}, dtype=torch.{dtype}, device='cuda')",
    "I": "torch.ones({}, dtype=torch.int64, device='cuda')",
    "Z": "torch.zeros({}, dtype=torch.int64, device='cuda')",
    "X": "torch.tensor([{}], device='cuda')",
    "B": "torch.ones({}, dtype=torch.int8, device='cuda')",
    "P": "torch.ones({}, device='cuda').to(torch.float8_e4m3fn)",
    "Q": "torch.quantize_per_tensor(torch.ones({}, device='cuda'), 1.0, 0, torch.quint8)",
}


def rule_call(name: str, what: str, arguments: str, out: str) -> str:
    """Returns the call that a row of the rule book is about."""
    import torch

    dtype = what.rpartition(":")[2]  # "int64", or of a kind of tensors "Sparse:int64"
    dtype = dtype if dtype in DTYPES else "float32"

    def made(found: Any) -> str:
        return _MADE[found[1]].format(found[2] or "()", dtype=dtype)

    packet, _, overload = name.partition(".")
    words = [re.sub(r"\b([TIZXBPQ])\(([\d, ]*)\)", made, arguments)]
    of = getattr(getattr(torch.ops.aten, packet), overload or "default")
    for argument in of._schema.arguments:
        if argument.kwarg_only and argument.alias_info is not None:
            kind = "int64" if argument.name == "indices" else out or dtype
            made_of = "torch.empty(0, dtype=torch.%s, device='cuda')" % kind
            words.append("%s=%s" % (argument.name, made_of))
    return "torch.ops.aten.%s.%s(%s)" % (packet, overload or "default", ", ".join(words))


@batch("acceptance", "rules", env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
def _rule_questions() -> Iterator[Question]:
    """Yields a question per row: the call as it is, and where determinism is requested."""
    import torch

    def ask(*words: str) -> Any:
        text = rule_call(*words)
        found: Dict[str, Any] = {"call": text, "said": []}
        for is_strict in (False, True):
            torch.use_deterministic_algorithms(is_strict)
            try:
                made = eval(text, {"torch": torch})
                torch.cuda.synchronize()
                found["said"].append("ok " + " ".join(short(t.dtype) for t in tensors(made)[:4]))
            except Exception as error:
                if is_poisonous(error):
                    raise
                kind, heard = said(error)
                found["said"].append("%s: %s" % (kind, heard.partition("\n")[0][:200]))
            finally:
                torch.use_deterministic_algorithms(False)
        return found

    for name, what, *words in rule_rows():
        if what != "asserts":
            key = "rules|aten::%s|%s" % (name, what)
            yield key, functools.partial(ask, name, what, *words)


#: More calls that end the device of their process, and one that does not.
ASSERTS = {
    "index_fill": "torch.ones(4, 4, device='cuda').index_fill(0, torch.tensor([9], device='cuda'), 0.0)",
    "cross_entropy": "torch.nn.functional.cross_entropy(torch.ones(1, 4, device='cuda'), torch.tensor([9], device='cuda'))",
    "multinomial": "torch.multinomial(torch.tensor([-1.0, 2.0], device='cuda'), 1)",
    "bincount": "torch.bincount(torch.tensor([-1], device='cuda'))",
    "one_hot": "torch.nn.functional.one_hot(torch.tensor([9], device='cuda'), 4)",
    "none": "torch.ones(4, device='cuda')[torch.tensor([-4], device='cuda')]",
}  # fmt: skip


@batch("acceptance", "asserts", alone=True)
def _assert_questions() -> Iterator[Question]:
    import torch

    def ask(make: Callable[[], str]) -> Any:
        text = make()
        found: Dict[str, Any] = {"call": text, "said": []}
        last = "torch.ones(1, device='cuda').add(1)"
        for step in ("torch.cuda.synchronize()", text, "torch.cuda.synchronize()", last):
            try:
                eval(step, {"torch": torch})
                found["said"].append("ok")
            except Exception as error:
                kind, words = said(error)
                found["said"].append("%s: %s" % (kind, words.partition("\n")[0]))
        return found

    for name, what, *words in rule_rows():
        if what == "asserts":
            make = functools.partial(rule_call, name, what, *words)
            yield "asserts|aten::%s" % name, functools.partial(ask, make)
    for name, text in ASSERTS.items():
        yield "asserts|%s" % name, functools.partial(ask, functools.partial(str, text))


def _accepts(name: str, dtype: str) -> Any:
    found = samples(name, dtype, 2)
    if not found:
        return None
    outcomes = []
    for sample in found:
        import torch

        try:
            call = called(name, sample)
            made = call()
            torch.cuda.synchronize()
            outcomes.append("ok " + " ".join(short(t.dtype) for t in tensors(made)[:4]))
        except Exception as error:
            if is_poisonous(error):
                raise
            kind, text = said(error)
            outcomes.append("%s: %s" % (kind, text.partition("\n")[0][:160]))
    return {"call": described(name, found[0]), "said": outcomes}


def _overloads(name: str, dtype: str) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: List[str] = []

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    for sample in samples(name, dtype, 1):
        call = called(name, sample, grad=True)
        with Listener(), contextlib.suppress(Exception):
            backward(call())
    return sorted(set(seen)) or None


def _alerts(name: str, sample: Any) -> Any:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            backward(called(name, sample, grad=True)())
    finally:
        torch.use_deterministic_algorithms(False)
    texts = {str(one.message).partition(",")[0][:120] for one in heard}
    return sorted(text for text in texts if "deterministic" in text)


def _warns(name: str, sample: Any) -> Any:
    import torch

    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            backward(called(name, sample, grad=True)())
    finally:
        torch.set_warn_always(False)
    texts = [(one.category.__name__, str(one.message).partition("\n")[0][:160]) for one in heard]
    return sorted({"%s: %s" % each for each in texts})


def _waits(name: str, sample: Any) -> Any:
    import torch

    call = called(name, sample, grad=True)
    backward(call())
    torch.cuda.synchronize()
    found = []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        for part in ("forward", "backward"):
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                if part == "forward":
                    made = call()
                else:
                    backward(made)
            if any("synchronizing" in str(one.message) for one in heard):
                found.append(part)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return found


def _captures(name: str, sample: Any) -> Any:
    import torch

    call = called(name, sample)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        torch.cuda.synchronize()
        return "ok"
    except Exception:
        return "refused"


@batch("acceptance", "operators", shuffled=True, env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
def _operator_questions() -> Iterator[Question]:
    for name, dtype in itertools.product(operators(), DTYPES):
        yield "accepts|%s|%s" % (name, dtype), functools.partial(_accepts, name, dtype)
    for name in operators():
        # A rule is about an overload: so it finds its answers.
        yield "calls|%s" % name, functools.partial(_overloads, name, "float32")
    kinds = {"alerts": _alerts, "warns": _warns, "waits": _waits, "captures": _captures}
    for kind, ask in kinds.items():
        yield from one_per_operator(kind, ask)


# --- Section allocation

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:[64:8,256:4,>:1]",
    "max_non_split_rounding_mb:64",
    "expandable_segments:True,max_split_size_mb:128",
)


class Blocks:
    """Blocks of device memory, by number, for programs that only allocate."""

    def __init__(self) -> None:
        self.live: Dict[int, Any] = {}
        self.count = 0
        self.state = 12345
        self.limit: Optional[int] = None  # bytes

    def random(self, below: int) -> int:
        """Returns a number that depends on the calls before alone."""
        self.state = (self.state * 1103515245 + 12345) & 0x7FFFFFFF
        return (self.state >> 8) % below

    def take(self, size: int) -> int:
        """Allocates `size` bytes; returns the block's number."""
        import torch

        self.count += 1
        self.live[self.count] = torch.empty(size, dtype=torch.uint8, device=device())
        return self.count

    def give(self, number: int) -> None:
        """Frees a block."""
        del self.live[number]

    def mix(self, steps: int, sizes: Callable[[], int], most: int) -> None:
        """Allocates and frees at random, at most `most` bytes at a time."""
        held: Dict[int, int] = {}
        for _ in range(steps):
            size = sizes()
            while held and (sum(held.values()) + size > most or self.random(5) < 2):
                number = sorted(held)[self.random(len(held))]
                self.give(number)
                del held[number]
            held[self.take(size)] = size


def _small(blocks: Blocks) -> None:
    blocks.mix(300, lambda: 1 + blocks.random(1 << 20), 32 << 20)


def _mixed(blocks: Blocks) -> None:
    blocks.mix(300, lambda: 1 << 9 << blocks.random(17), 256 << 20)


def _odd(blocks: Blocks) -> None:
    blocks.mix(300, lambda: 1 + blocks.random(1 + (1 << blocks.random(26))), 256 << 20)


def _growing(blocks: Blocks) -> None:
    for step in range(40):
        number = blocks.take((1 << 20) + step * 700_000)
        kept = blocks.take(1000 + step * 300_000)
        blocks.give(number)
        if step % 3 == 0:
            blocks.give(kept)


def _streams(blocks: Blocks) -> None:
    import torch

    side = torch.cuda.Stream()
    for step in range(30):
        number = blocks.take(300_000 * (1 + step % 7))
        with torch.cuda.stream(side):
            other = blocks.take(500_000 * (1 + step % 5))
        blocks.live[number].record_stream(side)
        blocks.give(number)
        torch.cuda.synchronize()
        if step % 2:
            blocks.give(other)


def _pools(blocks: Blocks) -> None:
    import torch

    pool = torch.cuda.MemPool()
    for step in range(12):
        with torch.cuda.use_mem_pool(pool):
            number = blocks.take(700_000 * (1 + step % 4))
        other = blocks.take(900_000)
        if step % 3:
            blocks.give(number)
        if step % 2:
            blocks.give(other)
    torch.cuda.empty_cache()
    blocks.take(5 << 20)


def _graphs(blocks: Blocks) -> None:
    import torch

    x = torch.ones(1 << 18, device=device())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        z = y * 2
        del y
        w = z + x
    graph.replay()
    torch.cuda.synchronize()
    del z, w
    blocks.take(3 << 20)


def _emptied(blocks: Blocks) -> None:
    import torch

    for step in range(6):
        numbers = [blocks.take((3 + step) << 20) for _ in range(6)]
        small = [blocks.take(100_000) for _ in range(9)]
        for number in numbers[::2] + small[1:]:
            blocks.give(number)
        torch.cuda.empty_cache()


def _limit(blocks: Blocks, most: int) -> None:
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(most / total)
    blocks.limit = most


def _full(blocks: Blocks) -> None:
    import torch

    _limit(blocks, 512 << 20)
    blocks.mix(120, lambda: (1 + blocks.random(40)) << 20, 430 << 20)
    for size in (300 << 20, 500 << 20, 64 << 20, 1 << 30):
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            blocks.take(size)


def _fractioned(blocks: Blocks) -> None:

    _limit(blocks, 256 << 20)
    blocks.mix(200, lambda: (1 + blocks.random(20)) << 20, 150 << 20)


PROGRAMS = (_small, _mixed, _odd, _growing, _streams, _pools, _graphs, _emptied, _full, _fractioned)
ACTIONS = (
    "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap "
    "snapshot oom"
).split()


def begin_history() -> None:
    """Begins to record what is allocated, without stacks."""
    import torch

    torch.cuda.memory._record_memory_history("all", context=None, stacks="python")


def history() -> Dict[str, Any]:
    """Returns what was recorded: [action, address, bytes, stream, pool] each, and the segments."""
    import torch

    snapshot = torch.cuda.memory._snapshot()
    entries = [e for e in snapshot["device_traces"][0] if e["action"] in ACTIONS]
    segments = [s for s in snapshot["segments"] if s["device"] == 0]
    base = min([e["addr"] for e in entries if e["action"] not in ("oom", "snapshot")] or [0])
    base = base // (1 << 25) * (1 << 25)  # private in no way, but long
    streams: Dict[int, int] = {0: 0}
    pools: Dict[Any, int] = {(0, 0): 0}

    def number(of: Dict[Any, int], key: Any) -> int:
        return of.setdefault(key, len(of))

    def place(entry: Any) -> Any:
        is_place = entry["action"] not in ("oom", "snapshot")
        return entry["addr"] - base if is_place else entry.get("device_free", entry.get("addr", 0))

    rows = [
        [ACTIONS.index(e["action"]), place(e), e["size"], number(streams, e["stream"]),
         number(pools, tuple(e.get("pool_id", e.get("segment_pool_id", (0, 0)))))]
        for e in entries
    ]  # fmt: skip
    kept = [
        [s["address"] - base, s["total_size"], number(streams, s["stream"]), s["segment_type"],
         number(pools, tuple(s.get("segment_pool_id", (0, 0)))), bool(s.get("is_expandable")),
         [[b["size"], b.get("requested_size", b["size"]), b["state"]] for b in s["blocks"]]]
        for s in segments
    ]  # fmt: skip
    return {"entries": rows, "segments": kept}


COUNTERS = (
    "allocation.all.peak segment.all.peak reserved_bytes.all.peak allocated_bytes.all.peak "
    "requested_bytes.all.peak inactive_split_bytes.all.peak active_bytes.all.peak "
    "reserved_bytes.all.current num_alloc_retries num_ooms num_device_alloc num_device_free "
    "oversize_segments.peak"
).split()


def _run_program(program: Callable[[Blocks], None]) -> Any:
    import torch

    torch.cuda.init()
    begin_history()
    blocks = Blocks()
    program(blocks)
    found = history()
    found["limit"] = blocks.limit
    found["capacity"] = torch.cuda.get_device_properties(0).total_memory
    found["settings"] = os.environ.get("PYTORCH_ALLOC_CONF", "")
    stats = torch.cuda.memory_stats()
    found["stats"] = {name: stats[name] for name in COUNTERS if name in stats}
    return found


def _allocation_batches() -> None:
    def questions(settings: str) -> Iterator[Question]:
        for program in PROGRAMS:
            key = "places|%s|%s" % (program.__name__.strip("_"), settings or "default")
            yield key, functools.partial(_run_program, program)

    for number, settings in enumerate(SETTINGS):
        names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        env = dict.fromkeys(names, settings)
        make = functools.partial(questions, settings)
        env = env if settings else {}
        batch("allocation", "places-%d" % number, alone=True, env=env, fresh=bool(env))(make)


_allocation_batches()


def sizes_of(entries: List[List[int]]) -> List[int]:
    """Returns allocations as bytes and frees as -1 - (how many allocations ago)."""
    made: List[int] = []
    live: Dict[int, int] = {}
    count = 0
    for action, address, size, _, _ in entries:
        if ACTIONS[action] == "alloc":
            live[address] = count
            count += 1
            made.append(size)
        elif ACTIONS[action] == "free_requested" and address in live:
            made.append(live.pop(address) - count)
    return made


def listed(steps: List[Callable[[], Any]]) -> List[List[int]]:
    """Returns what each of the steps allocates and frees, results kept until the end."""
    import torch

    kept = []
    gc.collect()
    gc.disable()  # else its turns decide what is freed when
    torch.cuda.synchronize()
    begin_history()
    ends = []
    try:
        for step in steps:
            kept.append(step())
            torch.cuda.synchronize()
            ends.append(len(history()["entries"]))
        entries = history()["entries"]
    finally:
        torch.cuda.memory._record_memory_history(None)
        gc.enable()
    found = []
    for begin, end in [(0, ends[0])] + [(ends[i], ends[i + 1]) for i in range(len(ends) - 1)]:
        found.append(sizes_of(entries[begin:end]))
    return found


def taken(call: Callable[[], Any], text: str) -> Any:
    """Returns what a call saves for backward, and what both allocate and free."""
    import torch

    saved: List[str] = []

    def pack(tensor: Any) -> Any:
        saved.append(shape(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        first = call()
    backward(first)
    del first
    made: List[Any] = []
    found = listed([lambda: made.append(call()), lambda: backward(made[0])])
    return {"call": text, "saved": saved, "forward": found[0], "backward": found[1]}


def _temporaries(name: str, sample: Any) -> Any:
    return taken(called(name, sample, grad=True), described(name, sample))


@batch("allocation", "operators", shuffled=True)
def _temporary_questions() -> Iterator[Question]:
    yield from one_per_operator("lists", _temporaries)


@functools.lru_cache(None)
def layers() -> Dict[str, str]:
    """Returns layers and functions of usual sizes, as texts of a function of nothing."""
    t = "torch.randn(%s, device='cuda', dtype=torch.%s, requires_grad=True)"
    found = {}
    for dtype in ("float32", "bfloat16"):
        x, w, q = t % ("256, 512", dtype), t % ("512, 512", dtype), t % ("2, 4, 256, 64", dtype)
        image, more = t % ("4, 32, 56, 56", dtype), "device='cuda', dtype=torch.%s" % dtype
        made = {
            "mm": "a @ b; a = %s; b = %s" % (x, w),
            "linear": "m(a); m = torch.nn.Linear(512, 512, %s); a = %s" % (more, x),
            "bmm": "a @ a.transpose(-1, -2); a = %s" % q,
            "sdpa": "F.scaled_dot_product_attention(a, a, a); a = %s" % q,
            "sdpa causal": "F.scaled_dot_product_attention(a, a, a, is_causal=True); a = %s" % q,
            "conv2d": "m(a); m = torch.nn.Conv2d(32, 64, 3, padding=1, %s); a = %s" % (more, image),
            "conv2d channels_last": "m(a); m = torch.nn.Conv2d(32, 64, 3, padding=1, %s).to("
            "memory_format=torch.channels_last); a = %s.detach().to("
            "memory_format=torch.channels_last).requires_grad_()" % (more, image),
            "conv_transpose2d": "m(a); m = torch.nn.ConvTranspose2d(32, 16, 2, 2, %s); a = %s" % (more, image),
            "batch_norm": "m(a); m = torch.nn.BatchNorm2d(32, %s); a = %s" % (more, image),
            "group_norm": "m(a); m = torch.nn.GroupNorm(8, 32, %s); a = %s" % (more, image),
            "layer_norm": "m(a); m = torch.nn.LayerNorm(512, %s); a = %s" % (more, x),
            "rms_norm": "m(a); m = torch.nn.RMSNorm(512, %s); a = %s" % (more, x),
            "max_pool2d": "F.max_pool2d(a, 2); a = %s" % image,
            "avg_pool2d": "F.avg_pool2d(a, 2); a = %s" % image,
            "interpolate": "F.interpolate(a, scale_factor=2, mode='bilinear'); a = %s" % image,
            "softmax": "a.softmax(-1); a = %s" % x,
            "log_softmax": "a.log_softmax(-1); a = %s" % x,
            "cross_entropy": "F.cross_entropy(a, torch.arange(256, device='cuda')); a = %s" % x,
            "gelu": "F.gelu(a); a = %s" % x,
            "relu": "F.relu(a); a = %s" % x,
            "silu": "F.silu(a); a = %s" % x,
            "dropout": "F.dropout(a, 0.1); a = %s" % x,
            "embedding": "m(i); m = torch.nn.Embedding(1000, 256, %s); i = torch.arange(4096, device='cuda') %% 1000" % more,
            "sum": "a.sum(); a = %s" % x,
            "mean of rows": "a.mean(1); a = %s" % x,
            "sort": "a.sort(-1); a = %s" % x,
            "topk": "a.topk(8); a = %s" % x,
            "cumsum": "a.cumsum(0); a = %s" % x,
            "index": "a[i]; i = torch.arange(100, device='cuda'); a = %s" % x,
            "cat": "torch.cat([a, a]); a = %s" % x,
        }  # fmt: skip
        found.update({"%s|%s" % (name, dtype): text for name, text in made.items()})
    lstm = "m(a)[0]; m = torch.nn.LSTM(128, 128, device='cuda'); a = torch.randn(32, 8, 128, device='cuda')"
    found["lstm|float32"] = lstm
    for kind in ("SGD", "Adam", "AdamW"):
        for how in ("foreach", "fused"):
            found["%s %s|float32" % (kind, how)] = (
                "o.step(); p = [torch.ones(512, 512 + i, device='cuda') for i in range(4)]; "
                "[setattr(t, 'grad', torch.ones_like(t)) for t in p]; "
                "o = torch.optim.%s(p, lr=0.1, %s=True)" % (kind, how)
            )
    return found


def layer(text: str) -> Callable[[], Any]:
    """Returns the function that a text of layers() describes."""
    import torch

    call, *rest = text.split("; ")
    names: Dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    for statement in sorted(rest, key=lambda s: (s.startswith("o = "), s.startswith("["))):
        exec(statement, names)
    if "o" in names and "[setattr" in text:
        exec(next(s for s in rest if s.startswith("[")), names)
    code = compile(call, "layer", "eval")
    return lambda: eval(code, names)


@batch("allocation", "layers")
def _layer_questions() -> Iterator[Question]:
    def ask(text: str) -> Any:
        call = layer(text)
        backward(call())
        return taken(call, text)

    for name, text in layers().items():
        yield "layers|%s" % name, functools.partial(ask, text)


@batch("allocation", "outside", alone=True, timed=True)
def _outside_questions() -> Iterator[Question]:
    import torch

    def outside(text: str) -> Any:
        torch.cuda.init()
        torch.empty(1, device=device())
        eval(text, {"torch": torch})
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free - torch.cuda.memory_reserved())

    image = "torch.ones(1, 8, 32, 32, device='cuda')"
    programs = {
        "context": "None",
        "product": "torch.ones(64, 64, device='cuda') @ torch.ones(64, 64, device='cuda')",
        "convolution": "torch.nn.functional.conv2d(%s, torch.ones(8, 8, 3, 3, device='cuda'))"
        % image,
        "random": "torch.randn(1000, device='cuda').sort()",
    }
    for name, text in programs.items():
        yield "outside|%s" % name, functools.partial(outside, text)


# --- Section rates


def timed(call: Callable[[], Any], bytes_: float = 0, flops: float = 0, inner: int = 5) -> Any:
    """Returns the time of a call on its stream, in us: median, 10th and 90th percentile."""
    import torch

    for _ in range(3):
        call()
    found: List[float] = []
    began = time.monotonic()
    while len(found) < 5 or (len(found) < 25 and time.monotonic() - began < 0.2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(inner):
            call()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) * 1e3 / inner)
    found.sort()
    low, median, high = (found[int(share * (len(found) - 1))] for share in (0.1, 0.5, 0.9))
    made = {"us": median, "low": low, "high": high, "bytes": bytes_, "flops": flops}
    return {name: float("%.5g" % value) for name, value in made.items()}


def _sizes() -> List[int]:
    return [size for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28) if size * 4 < OPTIONS.memory]  # fmt: skip


def _copy_rates() -> Iterator[Question]:
    import torch

    def copy(way: str, pinned: bool, size: int) -> Any:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        there = torch.empty(size, dtype=torch.uint8, device=device())
        to, source = (there, host) if way == "h2d" else (host, there)
        return timed(lambda: to.copy_(source, non_blocking=pinned), bytes_=size, inner=2)

    for way, pinned, size in itertools.product(("h2d", "d2h"), (True, False), _sizes()):
        key = "copy|%s|%s|%d" % (way, "pinned" if pinned else "pageable", size)
        yield key, functools.partial(copy, way, pinned, size)


def _streaming_rates() -> Iterator[Question]:
    import torch

    def make(text: str, size: int, dtype: str) -> Any:
        kind = getattr(torch, dtype)
        count = size // torch.empty(0, dtype=kind).element_size()
        names: Dict[str, Any] = {"torch": torch, "n": count, "rows": max(count // 1024, 1)}
        names["a"] = torch.empty(max(count // 1024, 1), 1024, dtype=kind, device=device())
        names["b"] = torch.empty_like(names["a"])
        call, _, first = text.partition("; ")
        if first:
            exec(first, names)
        code = compile(call, "rate", "eval")
        factor = {"copy": 2, "fill": 1, "sum": 1}.get(call.split("(")[0].strip(), 2)
        if ".sum" in call or "fill_" in call or "amax" in call:
            factor = 1
        if "torch.add" in call:
            factor = 3
        return timed(lambda: eval(code, names), bytes_=factor * size)

    texts = {
        "copy": "b.copy_(a)",
        "fill": "b.fill_(1)",
        "add": "torch.add(a, b, out=b)",
        "relu": "a.relu()",
        "sum": "a.sum()",
        "sum of rows": "a.sum(1)",
        "sum of columns": "a.sum(0)",
        "softmax": "a.softmax(-1)",
        "transposed copy": "b.t().copy_(a.t().contiguous()) if False else a.t().contiguous()",
        "strided": "a[:, ::2].contiguous()",
        "gathered rows": "a[i]; i = torch.arange(rows - 1, -1, -1, device='cuda')",
        "gathered elements": "a.view(-1)[i]; i = torch.arange(n - 1, -1, -1, device='cuda') // 32 * 32 % n",
    }
    for (name, text), size in itertools.product(texts.items(), _sizes()):
        if size >= 1 << 16:
            yield (
                "stream|%s|float32|%d" % (name, size),
                functools.partial(make, text, size, "float32"),
            )
    for name, dtype in itertools.product(
        ("copy", "add", "relu", "softmax"), ("float16", "bfloat16")
    ):
        key = "stream|%s|%s|%d" % (name, dtype, 1 << 26)
        yield key, functools.partial(make, texts[name], 1 << 26, dtype)


@batch("rates", "products", shuffled=True, timed=True)
def _product_rates() -> Iterator[Question]:
    import torch

    def product(dtype: str, m: int, n: int, k: int, tf32: bool = False, layout: str = "nn") -> Any:
        make = functools.partial(torch.empty, device=device(), dtype=getattr(torch, dtype))
        a = make(m, k) if layout[0] == "n" else make(k, m).t()
        b = make(k, n) if layout[1] == "n" else make(n, k).t()
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return timed(lambda: a @ b, flops=2.0 * m * n * k)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    def convolution(
        dtype: str, last: bool, n: int, c: int, size: int, k: int, tf32: bool = True
    ) -> Any:
        layout = torch.channels_last if last else torch.contiguous_format
        make = functools.partial(torch.empty, device=device(), dtype=getattr(torch, dtype))
        a, w = make(n, c, size, size), make(c, c, k, k)
        a, w = a.to(memory_format=layout), w.to(memory_format=layout)
        call = functools.partial(torch.nn.functional.conv2d, a, w, padding=k // 2)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            return timed(call, flops=2.0 * n * c * c * size * size * k * k)

    def attention(dtype: str, n: int, heads: int, length: int, width: int, causal: bool) -> Any:
        q = torch.empty(n, heads, length, width, device=device(), dtype=getattr(torch, dtype))
        call = functools.partial(torch.nn.functional.scaled_dot_product_attention, q, q, q, is_causal=causal)  # fmt: skip
        return timed(call, flops=4.0 * n * heads * length * length * width)

    shapes = [(256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096)]
    shapes += [(8192, 8192, 8192), (64, 4096, 4096), (4096, 64, 4096), (2048, 13312, 2048)]
    shapes += [(1, 4096, 4096), (4224, 8192, 2048), (1000, 1000, 1000), (512, 50257, 768)]
    kinds = [("float32", False), ("float32", True), ("bfloat16", False), ("float16", False)]
    for (dtype, tf32), (m, n, k) in itertools.product([*kinds, ("float64", False)], shapes):
        if dtype != "float64" or m * n * k <= 1 << 33:
            key = "mm|%s|%dx%dx%d" % ("tf32" if tf32 else dtype, m, n, k)
            yield key, functools.partial(product, dtype, m, n, k, tf32)
    for dtype, layout in itertools.product(("float32", "bfloat16"), ("nt", "tn", "tt")):
        for m, n, k in shapes[1:6:2]:
            key = "mm|%s %s|%dx%dx%d" % (dtype, layout, m, n, k)
            yield key, functools.partial(product, dtype, m, n, k, False, layout)
    images = [
        (32, 64, 56, 3),
        (32, 128, 28, 3),
        (32, 256, 14, 3),
        (32, 512, 7, 3),
        (32, 256, 56, 1),
    ]
    for dtype, last, given in itertools.product(
        ("float32", "float16", "bfloat16"), (False, True), images
    ):
        key = "conv|%s|%s|%s" % (dtype, "channels_last" if last else "contiguous", "x".join(map(str, given)))  # fmt: skip
        yield key, functools.partial(convolution, dtype, last, *given)
    for last, given in itertools.product((False, True), images):
        key = "conv|float32 plain|%s|%s" % ("channels_last" if last else "contiguous", "x".join(map(str, given)))  # fmt: skip
        yield key, functools.partial(convolution, "float32", last, *given, tf32=False)
    heads = [(4, 16, 512, 64), (4, 16, 1024, 64), (2, 16, 2048, 64), (1, 16, 4096, 128)]
    for dtype, causal, given in itertools.product(("float32", "bfloat16"), (False, True), heads):
        key = "sdpa|%s|%s|%s" % (dtype, "causal" if causal else "full", "x".join(map(str, given)))
        yield key, functools.partial(attention, dtype, *given, causal)


#: Calls of small operators and layers; the text behind # names the layer.
SMALL = (
    "x.add_(1)", "x + y", "x.mul(2).add(1)", "x @ y", "x.sum()", "x.softmax(-1)", "x[0]",
    "torch.cat([x, y])", "x.t().contiguous()", "torch.empty(8, 8, device='cuda')",
    "torch.zeros(8, 8, device='cuda')", "x.fill_(0)", "torch._foreach_add([x, y], 1)",
    "m(x) # Linear(8, 8)", "m(x) # LayerNorm(8)", "m(x, x, x)[0] # MultiheadAttention(8, 2)",
    "m(x)[0] # LSTM(8, 8)", "m(x) # TransformerEncoderLayer(8, 2, 16)",
)  # fmt: skip


def _gap_rates() -> Iterator[Question]:
    import torch

    def small(text: str) -> Callable[[], Any]:
        names: Dict[str, Any] = {"torch": torch, "x": torch.ones(8, 8, device=device())}
        names["y"] = torch.ones(8, 8, device=device())
        call, _, made = text.partition(" # ")
        if made:
            names["m"] = eval("torch.nn." + made, {"torch": torch}).to(device())
        code = compile(call, "gap", "eval")
        return lambda: eval(code, names)

    def gap(text: str) -> Any:
        with torch.no_grad():
            return timed(small(text), inner=20 if "#" in text else 100)

    def host(text: str) -> Any:
        """Returns the host's time of a call, in us; a simulator's host is no claim."""
        call, found = small(text), []
        with torch.no_grad():
            for _ in range(12):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(50):
                    call()
                found.append((time.perf_counter() - began) / 50 * 1e6)
        found.sort()
        made = {"us": found[6], "low": found[1], "high": found[10], "bytes": 0, "flops": 0}
        return None if is_simulated() else made

    for text in SMALL:
        yield "gap|%s" % text, functools.partial(gap, text)
        yield "host|%s" % text, functools.partial(host, text)


def kernels(call: Callable[[], Any]) -> int:
    """Returns how many kernels and copies of the device a call launches."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    host = torch._C._autograd.DeviceType.CPU
    # Annotations are ranges, not work: npusim's say what its virtual host did.
    return sum(
        1
        for event in seen.events()
        if event.device_type != host
        and "Memset" not in event.name
        and not getattr(event, "is_user_annotation", False)
    )


def _launches(name: str, sample: Any) -> Any:
    call = called(name, sample, grad=True)
    backward(call())
    made: List[Any] = []
    found = [kernels(lambda: made.append(call())), kernels(lambda: backward(made[0]))]
    return {"call": described(name, sample), "forward": found[0], "backward": found[1]}


def _layer_kernels() -> Iterator[Question]:
    def forward(text: str) -> Any:
        call = layer(text)
        call()
        return kernels(call)

    for name, text in layers().items():
        if "float32" in name:
            yield "kernels|%s" % name, functools.partial(forward, text)


@batch("rates", "kernels", shuffled=True)
def _operator_kernels() -> Iterator[Question]:
    yield from one_per_operator("launches", _launches)


def _clocks() -> Iterator[Question]:
    import torch

    def under_load(name: str) -> Any:
        if not shutil.which("nvidia-smi") or is_simulated():
            return None
        a = torch.randn(4096, 4096, device=device())
        until = time.monotonic() + 1
        while time.monotonic() < until:
            a @ a
            torch.cuda.synchronize()
        for _ in range(200):
            a @ a
        words = ["nvidia-smi", "--query-gpu=" + name, "--format=csv,noheader", "-i", "0"]
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()

    for name in ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"):
        yield "load|%s" % name, functools.partial(under_load, name)


@batch("rates", "others", shuffled=True, timed=True)
def _rates_others() -> Iterator[Question]:
    for questions in (_copy_rates, _streaming_rates, _gap_rates, _layer_kernels, _clocks):
        yield from questions()


# --- Section steps


def models() -> Dict[str, Callable[[], Tuple[Any, Callable[[], Any]]]]:
    """Returns ten small models: each a function that makes the module and the function of a loss."""
    import torch
    from torch import nn
    from torch.nn import functional

    def rand(*size: int) -> Any:
        return torch.randn(*size, device=device())

    def tokens(n: int, length: int, most: int = 1000) -> Any:
        return torch.arange(n * length, device=device()).view(n, length) * 7 % most

    def simple(module: Any, x: Any, y: Any) -> Tuple[Any, Callable[[], Any]]:
        module = module.to(device())

        def loss() -> Any:
            out = module(x)
            out = out[0] if isinstance(out, tuple) else out
            return functional.cross_entropy(out.flatten(0, -2).float(), y.flatten())

        return module, loss

    class Residual(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    class Attention(nn.Module):
        def __init__(self, width: int, heads: int, causal: bool) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.heads, self.causal = heads, causal

        def forward(self, x: Any) -> Any:
            n, length, width = x.shape
            parts = self.qkv(x).view(n, length, 3, self.heads, width // self.heads)
            q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return self.out(mixed.transpose(1, 2).reshape(n, length, width))

    class Experts(nn.Module):
        def __init__(self, width: int, count: int) -> None:
            super().__init__()
            self.gate = nn.Linear(width, count)
            self.up = nn.Parameter(torch.randn(count, width, 2 * width) / width**0.5)
            self.down = nn.Parameter(torch.randn(count, 2 * width, width) / width**0.5)

        def forward(self, x: Any) -> Any:
            flat = x.flatten(0, 1)
            weight, chosen = self.gate(flat).softmax(-1).topk(2)
            every = torch.einsum("tw,ewh->teh", flat, self.up)
            every = torch.einsum("teh,ehw->tew", functional.gelu(every), self.down)
            index = chosen.unsqueeze(-1).expand(-1, -1, every.shape[-1])
            return (every.gather(1, index) * weight.unsqueeze(-1)).sum(1).view_as(x)

    def block(width: int, heads: int, causal: bool, feed: Any = None, drop: float = 0.0) -> Any:
        feed = feed or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        first = nn.Sequential(
            nn.LayerNorm(width), Attention(width, heads, causal), nn.Dropout(drop)
        )
        return nn.Sequential(Residual(first), Residual(nn.Sequential(nn.LayerNorm(width), feed)))

    def transformer(causal: bool, feed: Any = None, drop: float = 0.0) -> Any:
        middle = [block(128, 4, causal, feed and feed(), drop) for _ in range(2)]
        return nn.Sequential(nn.Embedding(1000, 128), *middle, nn.Linear(128, 1000))

    def conv(a: int, b: int, stride: int = 1) -> List[Any]:
        return [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    def resnet() -> Any:
        body = [Residual(nn.Sequential(*conv(32, 32), *conv(32, 32))) for _ in range(2)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        return nn.Sequential(*conv(3, 32, 2), nn.MaxPool2d(2), *body, *conv(32, 64, 2), *head)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(*conv(3, 16))
            self.middle = nn.Sequential(
                nn.MaxPool2d(2), *conv(16, 32), nn.ConvTranspose2d(32, 16, 2, 2)
            )
            self.up = nn.Sequential(*conv(32, 16), nn.Conv2d(16, 10, 1))

        def forward(self, x: Any) -> Any:
            kept = self.down(x)
            return self.up(torch.cat([kept, self.middle(kept)], 1)).movedim(1, -1)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(1000, 64), nn.LSTM(64, 64, 2, batch_first=True)
            self.out = nn.Linear(64, 1000)

        def forward(self, x: Any) -> Any:
            return self.out(self.lstm(self.words(x))[0])

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList([nn.EmbeddingBag(500, 16, mode="sum") for _ in range(4)])
            self.top = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, x: Any) -> Any:
            return self.top(torch.cat([bag(x) for bag in self.bags], 1))

    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(256, 64), nn.Linear(32, 256)

        def forward(self, x: Any) -> Any:
            mean, spread = self.enter(x).chunk(2, -1)
            return self.leave(mean + torch.randn_like(mean) * spread.exp())

    def vision() -> Any:
        stem = [nn.Conv2d(3, 128, 8, 8), nn.Flatten(2), Turned()]
        return nn.Sequential(*stem, block(128, 4, False), block(128, 4, False), nn.Linear(128, 10))

    class Turned(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.transpose(1, 2)

    def mlp() -> Any:
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))

    words = functools.partial(tokens, 4, 64)
    return {
        "mlp": lambda: simple(mlp(), rand(64, 256), tokens(64, 1, 10)),
        "resnet": lambda: simple(resnet(), rand(8, 3, 64, 64), tokens(8, 1, 10)),
        "bert": lambda: simple(transformer(False, drop=0.1), words(), words()),
        "gpt": lambda: simple(transformer(True), words(), words()),
        "lstm": lambda: simple(Recurrent(), words(), words()),
        "unet": lambda: simple(UNet(), rand(2, 3, 32, 32), tokens(2, 1024, 10)),
        "moe": lambda: simple(transformer(True, lambda: Experts(128, 4)), words(), words()),
        "vit": lambda: simple(vision(), rand(4, 3, 64, 64), tokens(4, 64, 10)),
        "dlrm": lambda: simple(Recommender(), tokens(64, 8, 500), tokens(64, 1, 2)),
        "vae": lambda: simple(Variational(), rand(64, 256), tokens(64, 1, 256)),
    }


def offset() -> int:
    """Returns the generator's Philox offset."""
    import torch

    state = torch.cuda.get_rng_state()
    return int.from_bytes(bytes(state.tolist()[8:16]), "little")


@functools.lru_cache(None)
def train(name: str, mode: str) -> Dict[str, Any]:
    """Trains a model for a few steps; returns times, peaks, allocations and offsets of one."""
    import torch

    torch.manual_seed(0)
    module, loss = models()[name]()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, capturable=mode == "captured")
    forward = torch.compile(loss) if mode == "compiled" else loss

    def step() -> None:
        optimizer.zero_grad(set_to_none=mode != "captured")
        with torch.autocast("cuda", torch.bfloat16, enabled=mode == "amp"):
            value = forward()
        value.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    if mode == "captured":
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run: Callable[[], Any] = graph.replay
    else:
        run = step
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = offset()
    run()
    torch.cuda.synchronize()
    found: Dict[str, Any] = {
        "offset": offset() - before,
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "list": listed([run])[0],
        "time": timed(run, inner=2),
    }
    return found


def _step_questions(modes: Iterable[str]) -> Iterator[Question]:
    for name, mode in itertools.product(models(), modes):
        for what in ("time", "peak", "reserved", "list", "offset"):
            key = "%s|%s|%s" % (what, name, mode)
            yield key, functools.partial(lambda n, m, w: train(n, m)[w], name, mode, what)


@batch("steps", "trained", limit_s=120, timed=True)
def _steps_trained() -> Iterator[Question]:
    yield from _step_questions(("eager", "amp", "captured"))


@batch("steps", "compiled", limit_s=300, timed=True)
def _steps_compiled() -> Iterator[Question]:
    yield from _step_questions(("compiled",))


# --- Section answers

MODULES = (
    "torch.cuda torch.cuda.memory torch.cuda.random torch.cuda.amp torch.cuda.graphs "
    "torch.cuda.nvtx torch.cuda.profiler torch.cuda.comm torch.cuda.nccl torch.cuda.tunable "
    "torch.backends.cuda torch.backends.cudnn torch.accelerator torch.accelerator.memory"
).split()
ASKED = """\
torch.cuda.is_available()
torch.cuda.is_initialized()
torch.cuda.current_device()
torch.cuda.get_sync_debug_mode()
torch.cuda.is_bf16_supported()
torch.cuda.is_current_stream_capturing()
torch.cuda.get_allocator_backend()
torch.cuda.initial_seed()
torch.cuda.can_device_access_peer(0, 0)
torch.cuda.default_stream()
torch.cuda.current_stream().query()
torch.cuda.Stream.priority_range()
torch.cuda.Event().query()
torch.cuda.memory_allocated()
torch.cuda.get_rng_state().shape
torch.cuda.get_rng_state().dtype
torch.cuda.default_generators[0].device
torch.cuda.get_stream_from_external
torch.backends.cuda.is_built()
torch.backends.cuda.matmul.allow_tf32
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
torch.backends.cuda.flash_sdp_enabled()
torch.backends.cuda.mem_efficient_sdp_enabled()
torch.backends.cuda.math_sdp_enabled()
torch.backends.cuda.cudnn_sdp_enabled()
torch.backends.cuda.preferred_linalg_library()
torch.backends.cuda.preferred_blas_library()
torch.backends.cudnn.enabled
torch.backends.cudnn.benchmark
torch.backends.cudnn.deterministic
torch.backends.cudnn.allow_tf32
torch.backends.cudnn.is_available()
torch.get_float32_matmul_precision()
torch.accelerator.is_available()
torch.accelerator.current_accelerator()
torch.accelerator.current_device_index()
torch.accelerator.device_count()
torch.ones(2, device='cuda').device
torch.ones(2, device='cuda').is_cuda
torch.ones(2, device='cuda').type()
torch.ones(2, device='cuda').data_ptr() % 512
torch.ones(2, device='cuda')
torch.ones(2, device='cuda').numpy()
torch.ones(2, device='cuda').storage().device
torch.device('cuda')
torch.device('cuda', 1)
torch.tensor(1.5, device='cuda').item()
torch.randn(8, generator=torch.Generator('cuda').manual_seed(1), device='cuda').shape
torch.get_autocast_dtype('cuda')
torch.is_autocast_enabled('cuda')
torch.ones(0, device='cuda').data_ptr()
torch.cuda.memory_stats()['allocation.all.current']
sorted(torch.cuda.memory_stats())
torch.cuda.get_device_properties(0).name == torch.cuda.get_device_name(0)
torch.cuda.get_device_properties(0).major
torch.cuda.get_device_properties(0).warp_size
torch.cuda.get_device_properties(0).max_threads_per_multi_processor
torch.cuda.get_device_properties(0).max_threads_per_block
torch.cuda.get_device_properties(0).regs_per_multiprocessor
torch.cuda.get_device_properties(0).shared_memory_per_block
torch.cuda.get_device_properties(0).shared_memory_per_block_optin
torch.cuda.get_device_properties(0).shared_memory_per_multiprocessor
torch.cuda.get_device_properties(0).L2_cache_size
torch.cuda.get_device_properties(0).is_integrated
torch.cuda.get_device_properties(0).is_multi_gpu_board
torch.cuda.nvtx.range_push('a')
torch.ones(2, device='cuda') + torch.ones(2)
torch.ones(2, device='cuda') @ torch.ones(3, device='cuda')
torch.ones(2, device='cuda:99')
torch.ones(2, 3, device='cuda') @ torch.ones(2, 3, device='cuda')
torch.ones(2, device='cuda')[5]
torch.ones(2, device='cuda').view(3)
torch.ones(2, device='cuda').to('cuda:99')
torch.empty(-1, device='cuda')
torch.empty(1 << 50, device='cuda')
torch.empty(1 << 62, device='cuda')
torch.cuda.set_device(99)
torch.cuda.get_device_properties(99)
torch.cuda.get_device_name(99)
torch.cuda.synchronize(99)
torch.cuda.set_per_process_memory_fraction(2.0)
torch.cuda.set_per_process_memory_fraction('x')
torch.cuda.set_sync_debug_mode('loud')
torch.cuda.memory.list_gpu_processes
torch.cuda.memory_stats(99)
torch.cuda.Stream(priority='x')
torch.cuda.Stream(device='cpu')
torch.cuda.stream('x')
torch.cuda.Event().elapsed_time(torch.cuda.Event())
torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True))
torch.cuda.CUDAGraph().replay()
torch.cuda.CUDAGraph().capture_end()
torch.cuda.current_stream('cpu')
torch.cuda.manual_seed('x')
torch.cuda.set_rng_state(torch.zeros(3, dtype=torch.uint8))
torch.cuda.memory._record_memory_history('loud')
torch.cuda.comm.broadcast(torch.ones(2), [0])
torch.nn.Linear(2, 2).cuda()(torch.ones(2))
torch.nn.functional.embedding(torch.tensor([0.5], device='cuda'), torch.ones(2, 2, device='cuda'))
torch.nn.functional.conv2d(torch.ones(1, 2, 4, 4, device='cuda'), torch.ones(1, 3, 2, 2, device='cuda'))
torch.nn.functional.cross_entropy(torch.ones(2, 3, device='cuda'), torch.ones(3, dtype=torch.long, device='cuda'))
torch.ones(2, 2, device='cuda', dtype=torch.half).cholesky_inverse()
torch.linalg.inv(torch.zeros(2, 2, device='cuda'))
torch.linalg.cholesky(-torch.eye(2, device='cuda'))
torch.ones(2, device='cuda').sparse_mask(torch.ones(2, device='cuda'))
torch.from_dlpack(torch.ones(2, device='cuda')).device
torch.ones(2, device='cuda').pin_memory()
torch.ones(2, device='cuda').share_memory_().device
torch.ones(2).pin_memory().is_pinned()
torch.ones(2, device='cuda', names=('a',)).names
torch.cat([torch.ones(2, device='cuda'), torch.ones(2)])
torch.where(torch.ones(2, device='cuda').bool(), 1.0, torch.zeros(2))
torch.ones(4, device='cuda').add_(torch.ones(3, device='cuda'))
torch.stack([torch.ones(2, device='cuda'), torch.ones(3, device='cuda')])
torch.bmm(torch.ones(2, 2, device='cuda'), torch.ones(2, 2, device='cuda'))
torch.ones(2, device='cuda').random_(5, 1)
torch.normal(0.0, -1.0, (2,), device='cuda')
torch.randperm(-1, device='cuda')
torch.multinomial(torch.zeros(2, device='cuda'), 1)
torch.bernoulli(torch.full((2,), 0.5, device='cuda'), 3.0)
""".splitlines()

#: The order in which work is done, as queries see it: statements, then what is asked.
ORDERS = {
    "stream is busy": "torch.cuda._sleep(200_000_000); s.query()",
    "stream is done": "torch.cuda._sleep(1000); torch.cuda.synchronize(); s.query()",
    "event behind work": "torch.cuda._sleep(200_000_000); e.record(); e.query()",
    "event before work": "e.record(); torch.cuda.synchronize(); torch.cuda._sleep(200_000_000); e.query()",
    "event never recorded": "e.query()",
    "event waited for": "torch.cuda._sleep(1000); e.record(); e.synchronize(); (e.query(), s.query())",
    "other stream is idle": "torch.cuda._sleep(200_000_000); o.query()",
    "other stream waits": "torch.cuda._sleep(200_000_000); e.record(); e.wait(o); o.query()",
    "other stream waits for an event": "torch.cuda._sleep(200_000_000); e.record(); o.wait_event(e); f.record(o); f.query()",
    "event recorded again": "e.record(); torch.cuda.synchronize(); torch.cuda._sleep(200_000_000); e.record(); e.query()",
    "device waited for": "torch.cuda._sleep(1000); e.record(); o.wait_event(e); torch.cuda.synchronize(); (s.query(), o.query())",
    "item waits": "torch.cuda._sleep(1000); x.item(); s.query()",
    "copy to pinned memory does not wait": "torch.cuda._sleep(200_000_000); p.copy_(x, non_blocking=True); s.query()",
    "copy to pageable memory waits": "torch.cuda._sleep(1000); x.cpu(); s.query()",
    "streams have turns": "len({torch.cuda.Stream().stream_id for _ in range(64)})",
    "time of nothing": "t.record(); u.record(); torch.cuda.synchronize(); t.elapsed_time(u) >= 0",
    "time in the wrong order": "t.record(); torch.cuda._sleep(9_000_000); u.record(); torch.cuda.synchronize(); u.elapsed_time(t) < 0",
    "time not reached": "t.record(); torch.cuda._sleep(200_000_000); u.record(); t.elapsed_time(u)",
    "block freed early": "del x; torch.empty(1, device='cuda').data_ptr() == a",
    "block freed early on another stream": "del x; torch.cuda.stream(o).__enter__(); torch.empty(1, device='cuda').data_ptr() == a",
}


def plain(value: Any) -> Any:
    """Returns a value for JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and len(value) < 400:
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(repr(item) for item in value)
    text = repr(value)
    return text[:300] if not callable(value) else type(value).__name__


def _kind(value: Any) -> str:
    import types

    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    if value is None or isinstance(value, (bool, int, float, str)):
        return "%s: %s" % (type(value).__name__, plain(value))
    return "callable" if callable(value) else type(value).__name__


def _name_questions() -> Iterator[Question]:
    import importlib

    def kinds(name: str) -> Any:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [n for n in dir(module) if n[0] != "_"]
        return {
            n: _kind(getattr(module, n)) if hasattr(module, n) else "missing"
            for n in sorted(public)
        }

    for module in MODULES:
        yield "names|%s" % module, functools.partial(kinds, module)


#: Public functions without arguments that begin so are called, but for those that name a machine.
GETTERS = ("is_", "get_", "has_", "current_", "device_count", "initial_seed")
NOT_CALLED = ("get_device_properties", "current_blas_handle", "get_results", "get_filename")


def _value_questions() -> Iterator[Question]:
    import importlib
    import inspect

    def value(module: str, name: str) -> Any:
        import torch

        torch.cuda.init()
        return plain(getattr(importlib.import_module(module), name)())

    for module in MODULES:
        of = importlib.import_module(module)
        public = getattr(of, "__all__", None) or [n for n in dir(of) if n[0] != "_"]
        for name in sorted(n for n in set(public) - set(NOT_CALLED) if n.startswith(GETTERS)):
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                inspect.signature(getattr(of, name)).bind()
                yield "value|%s.%s()" % (module, name), functools.partial(value, module, name)


def _answer_questions() -> Iterator[Question]:
    import torch

    def ask(text: str) -> Any:
        torch.cuda.init()
        found = plain(eval(text, {"torch": torch}))
        torch.cuda.synchronize()  # a device assert belongs to its own question
        return found

    for text in ASKED:
        yield "says|%s" % text, functools.partial(ask, text)


def _order_questions() -> Iterator[Question]:
    import torch

    def ask(text: str) -> Any:
        torch.cuda.synchronize()
        timing = functools.partial(torch.cuda.Event, enable_timing=True)
        names: Dict[str, Any] = {
            "torch": torch,
            "s": torch.cuda.current_stream(),
            "o": torch.cuda.Stream(),
        }
        names.update(e=torch.cuda.Event(), f=torch.cuda.Event(), t=timing(), u=timing())
        names.update(x=torch.ones(1, device=device()), p=torch.ones(1).pin_memory())
        names["a"] = names["x"].data_ptr()
        torch.cuda.synchronize()
        *first, last = text.split("; ")
        before = torch.cuda.current_stream()
        try:
            for statement in first:
                exec(statement, names)
            return plain(eval(last, names))
        finally:
            torch.cuda.set_stream(before)
            torch.cuda.synchronize()

    for name, text in ORDERS.items():
        yield "order|%s: %s" % (name, text), functools.partial(ask, text)


@batch("answers", "asked")
def _answers_asked() -> Iterator[Question]:
    for questions in (_name_questions, _value_questions, _answer_questions, _order_questions):
        yield from questions()


# --- Section collectives

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send")


def _rank(rank: int, ranks: int, folder: str, operation: str, size: int) -> Any:
    """Times a collective of `size` bytes; returns what rank 0 found."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method="file://%s/store" % folder, rank=rank, world_size=ranks
    )
    count = max(size // 4, ranks) // ranks * ranks
    x = torch.ones(count, device=torch.device("cuda", rank))
    part = torch.ones(count // ranks, device=x.device)
    peer = (rank + 1) % ranks

    def send() -> Any:
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            dist.recv(x, 0)

    calls = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(x, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(x), x),
        "send": send,
    }
    call = calls[operation]
    found = []
    for number in range(8):
        dist.barrier()
        torch.cuda.synchronize()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        if number > 2:
            found.append(first.elapsed_time(last) * 1e3)
    found.sort()
    del peer
    dist.destroy_process_group()
    return {"us": found[len(found) // 2], "low": found[0], "high": found[-1], "bytes": count * 4}


def _together(ranks: int, operation: str, size: int, env: Dict[str, str]) -> Any:
    """Runs a collective in as many processes as ranks."""
    with tempfile.TemporaryDirectory() as folder:
        runners = []
        for rank in range(ranks):
            runner = os.fork()
            if runner == 0:
                os.environ.update(env)
                status = 1
                try:
                    found = _rank(rank, ranks, folder, operation, size)
                    if rank == 0:
                        with open(os.path.join(folder, "found"), "w") as file:
                            json.dump(found, file)
                    status = 0
                except BaseException as error:
                    with open(os.path.join(folder, "failed"), "w") as file:
                        json.dump(said(error), file)
                finally:
                    os._exit(status)
            runners.append(runner)
        for runner in runners:
            os.waitpid(runner, 0)
        for name in ("found", "failed"):
            if os.path.exists(os.path.join(folder, name)):
                with open(os.path.join(folder, name)) as file:
                    answered = json.load(file)
                return answered if name == "found" else {"raised": answered}
    return {"raised": ["RuntimeError", "a rank ended"]}


def _device_count() -> int:
    def ask() -> str:
        import torch

        return str(torch.cuda.device_count())

    return int(_in_a_fork(ask) or 0)


def _peer_questions() -> Iterator[Question]:
    import torch

    def reach(a: int, b: int) -> Any:
        return torch.cuda.can_device_access_peer(a, b)

    def copy(a: int, b: int, size: int) -> Any:
        x = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", a))
        y = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", b))
        return timed(lambda: y.copy_(x, non_blocking=True), bytes_=size)

    count = _device_count()
    for a, b in itertools.permutations(range(min(count, 4)), 2):
        yield "reach|%d|%d" % (a, b), functools.partial(reach, a, b)
    if count > 1:
        for size in (1 << 12, 1 << 20, 1 << 26):
            yield "peer|%d" % size, functools.partial(copy, 0, 1, size)


def _collective_questions() -> Iterator[Question]:
    count = _device_count()
    for ranks in sorted({2, count} & set(range(2, count + 1))):
        sizes = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 27)
        for operation, size in itertools.product(COLLECTIVES, sizes):
            key = "%s|%d ranks|%d" % (operation, ranks, size)
            yield key, functools.partial(_together, ranks, operation, size, {})
        for protocol, size in itertools.product(("LL", "LL128", "Simple"), sizes):
            key = "all_reduce %s|%d ranks|%d" % (protocol, ranks, size)
            env = {"NCCL_PROTO": protocol}
            yield key, functools.partial(_together, ranks, "all_reduce", size, env)


@batch("collectives", "together", alone=True, limit_s=60, timed=True)
def _collectives_together() -> Iterator[Question]:
    yield from itertools.chain(_peer_questions(), _collective_questions())


# --- The command


def missing() -> str:
    """Returns what this machine lacks, in a sentence; "" if there is a device."""
    try:
        import torch
    except ImportError:
        return "torch is not installed: pip install torch"
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if numbers < (2, 5):
        return "torch %s is too old: 2.5 or newer is needed" % torch.__version__
    if not (torch.version.cuda or torch.version.hip):
        return "torch %s is built without CUDA and without ROCm" % torch.__version__
    if is_simulated():
        return ""
    question = "import torch; torch.ones(1, device='cuda').sum().item()"
    try:
        words = [sys.executable, "-W", "ignore", "-c", question]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "the GPU did not answer within two minutes"
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or ["no words"]
        kind = "CUDA " + torch.version.cuda if torch.version.cuda else "ROCm"
        return "torch %s (%s) finds no GPU that works: %s" % (
            torch.__version__,
            kind,
            scrub(lines[-1]),
        )
    return ""


def memory(text: str) -> int:
    """Returns the bytes of a text such as 6GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text)
    if not found:
        raise argparse.ArgumentTypeError("%r is not a size such as 6GiB" % text)
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long at most (default 10)")
    parser.add_argument(
        "--memory", type=memory, default="6GiB", help="of the device, at most (6GiB)"
    )
    parser.add_argument("--sections", default=",".join(SECTIONS), help="default: %(default)s")
    parser.add_argument("--sample", type=int, default=1, help="ask one question in so many")
    parser.add_argument(
        "--jobs", type=int, default=1, help="workers side by side, where nothing is timed (1)"
    )
    parser.add_argument("--work", default="truth-work", help="folder of the journal (truth-work)")
    parser.add_argument("--out", help="the archive (default: named after chip and torch)")
    parser.add_argument(
        "--ask", metavar="KEY", help="ask one question, print the answer, write nothing"
    )
    for hidden in ("--worker", "--deadline", "--options", "--batches"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    return parser


def ask_one(key: str) -> int:
    """Asks one question in this process and prints the answer."""
    for name, its in BATCHES.items():
        for of, question in its.make():
            if key in (of, its.section + "|" + of):
                if any(os.environ.get(k) != v for k, v in its.env.items()):
                    os.environ.update(its.env)
                    os.execv(sys.executable, [sys.executable, *LAUNCH, *sys.argv[1:]])
                with (AROUND.get(name) or contextlib.nullcontext)():
                    print(json.dumps(answer(question)[0], indent=1))
                return 0
    print("there is no question %r" % key)
    return 2


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs the command; returns 0, or 1 where nothing can be recorded, or 2 for a wrong command."""
    global OPTIONS
    options = _parser().parse_args(arguments)
    OPTIONS = Options(options.minutes, options.memory, options.sample, options.jobs)
    if options.worker:
        *known, turn = json.loads(options.options)
        OPTIONS = Options(*known)
        return work(options.worker, options.work, float(options.deadline), turn)
    chosen = options.sections.split(",")
    if unknown := [name for name in chosen if name not in SECTIONS]:
        print("there is no section %s; there are %s" % (unknown[0], ", ".join(SECTIONS)))
        return 2
    if problem := missing():
        print("truth_record: " + problem)
        return 1
    if options.ask:
        return ask_one(options.ask)
    os.makedirs(options.work, exist_ok=True)
    kept = os.path.join(options.work, "options.json")
    asked = json.dumps([OPTIONS.memory, OPTIONS.sample])
    if os.path.exists(kept) and open(kept).read() != asked:
        print("%s holds a recording with other options: finish it, or remove it" % options.work)
        return 2
    with open(kept, "w") as file:
        file.write(asked)
    record(options.work, chosen, options.batches)
    identity = read_answers(options.work).get("identity", {"answers": {}})["answers"]
    words = ["truth", identity.get("chip", "unknown"), "torch", identity.get("torch", "")]
    name = re.sub(r"[^\w.+]+", "-", "-".join(map(str, words))).lower() + ".zip"
    made = write_archive(options.out or name, options.work)
    counts = ["%s %d" % (s, len(of["answers"])) for s, of in made["sections"].items()]
    print("%s: %s" % (options.out or name, ", ".join(counts)))
    shutil.rmtree(options.work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
