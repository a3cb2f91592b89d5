# SPDX-License-Identifier: BSD-3-Clause
"""Members that send each other tensors, fork, end, and are killed: rules M9, M10, M11 and M12.

Oracle: a model of who has which block, and of what was written to it last. Every wait has a limit;
at the end nothing is allocated, mapped or open that was not at the beginning.
"""

from engine import Program

START = """
import gc, os, pickle, signal
from multiprocessing import Pipe
from multiprocessing.reduction import ForkingPickler
import torch
import torch_npusim
from torch_npusim.sim import faults
LIMIT = 10  # seconds for an answer
kept = {}

class Tasks:  # of a member
    def make(name, numel, value):
        kept[name] = torch.full((numel + 1,), value, device="npusim")[1:]
    def dump(name):
        return bytes(ForkingPickler.dumps(kept[name]))
    def load(name, message):
        kept[name] = pickle.loads(message)
    def add(name):
        kept[name].add_(1)
        torch.npusim.synchronize()
    def drop(name):
        del kept[name]
    def values():
        return {name: sorted(set(x.tolist())) for name, x in kept.items()}
    def arm(number):
        faults.arm("kill", nth=number)
    def fork():
        torch.npusim.init()
        if not (child := os.fork()):
            refused = False
            try:
                torch.ones(1, device="npusim")
            except RuntimeError as error:
                refused = "forked subprocess" in str(error) and torch.npusim.is_available()
            finally:
                kept.clear()
                gc.collect()
                os._exit(not refused)
        assert os.waitpid(child, 0)[1] == 0, "a forked child uses the device"
    def left():
        gc.collect()
        torch.npusim.empty_cache()
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        shared = [name for name in names if "npusim_device" in os.path.realpath(name)]
        shared = [os.stat(name).st_blocks >> 7 for name in shared]
        return {
            "allocated": torch.npusim.memory_allocated(),
            "reserved": torch.npusim.memory_reserved(),
            "mapped": open("/proc/self/maps").read().count("memfd:npusim_device"),
            "files of others": max(0, len(shared) - 1),
            "pages of 64 KiB in files": max([0, *shared]),
            "other descriptors": len(names) - len(shared),
        }

members, armed, messages, received = {}, {}, {}, set()  # received: of blocks, others' memory
blocks = {}  # (member, name) -> [exporter, value]

def serve(pipe):
    torch.set_num_threads(1)
    while True:
        task, args = pipe.recv()
        try:
            answer = True, getattr(Tasks, task)(*args)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}"
        gc.collect()
        pipe.send(answer)

def start(m):
    pipe, theirs = Pipe()
    if not (child := os.fork()):
        try:
            for other in (pipe, *(member[1] for member in members.values())):
                other.close()
            serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    members[m] = child, pipe
    members[m] += (ask(m, "left"),)

def gone(m):
    child, pipe, *_ = members.pop(m)
    pipe.close()
    os.waitpid(child, 0)
    for key in [key for key in blocks if key[0] == m]:
        del blocks[key]

def ask(m, task, *args, refused=""):
    if m not in members:
        start(m)
    pipe = members[m][1]
    try:
        pipe.send((task, args))
        assert pipe.poll(LIMIT), f"{task} does not end"
        good, answer = pipe.recv()
    except (EOFError, ConnectionError):
        assert armed.pop(m, None), f"member {m} dies in {task}"
        return gone(m)
    if refused:
        assert not good and refused in answer, f"{task} is not refused, or in other words: {answer}"
        return None
    assert good, answer
    return answer if answer is not None else True

def make(m, name, numel):
    if ask(m, "make", name, numel, 1.0):
        blocks[m, name] = [(m, members[m][0]), 1.0]

def send(m, name, message):
    if (m, name) in blocks:
        refused = "received from another process" if (m, name) in received else ""
        if text := ask(m, "dump", name, refused=refused):
            messages[message] = text, blocks[m, name]

def receive(m, name, message, again=False):
    if message not in messages or (m, name) in blocks:
        return
    text, block = messages[message]
    owner, child = block[0]
    alive = owner in members and members[owner][0] == child
    if not again:
        del messages[message]
    if ask(m, "load", name, text, refused="" if alive else "has ended before it was received"):
        if not any(blocks[k] is block for k in blocks if k[0] == m and k not in received):
            received.add((m, name))
        blocks[m, name] = block
        if again:
            ask(m, "load", "twice", text, refused="received before")
            messages.pop(message)

def add(m, name):
    if (m, name) in blocks:
        block = blocks[m, name]
        block[1] = ask(m, "add", name) and block[1] and block[1] + 1  # None: not known

def drop(m, name):
    if blocks.pop((m, name), None):
        ask(m, "drop", name)

def kill(m):
    if m in members:
        os.kill(members[m][0], signal.SIGKILL)
        armed.pop(m, None)
        gone(m)

def arm(m, number):
    armed[m] = True
    ask(m, "arm", number)

def check():
    for m in list(members):
        values = ask(m, "values")
        for (k, name), (_, value) in list(blocks.items()):
            if k == m and values and value:
                assert values[name] == [value], (m, name, values[name], value)

def end():
    check()
    for m in list(armed):
        kill(m)
    for n, message in enumerate(list(messages)):
        if members:
            receive(list(members)[0], f"last{n}", message)
    for m, name in list(blocks):
        drop(m, name)
    for m in list(members):
        ask(m, "left")
    for m in list(members):
        found, first = ask(m, "left"), members[m][2]
        assert found == first, f"member {m} has kept {found}, and had {first}"
        kill(m)
"""


def program(random) -> Program:
    """Eight to twenty steps of two to four members."""
    count, names, sent, lines = random.randint(2, 4), [], [], []
    for n in range(random.randint(8, 20)):
        m = random.randrange(count)
        owner, name = random.choice(names) if names else (m, "none")
        steps = {
            f'make({m}, "t{n}", {random.choice((2, 100, 5000, 400_000))})': 3,
            f'send({owner}, "{name}", "m{n}")': 6,
            f'add({owner}, "{name}")': 3,
            f'drop({owner}, "{name}")': 3,
            f'ask({m}, "fork")': 1,
            f"kill({m})": 1,
            f"arm({m}, {random.randint(1, 4)})": 0.5,
        }
        if sent:
            message, again = random.choice(sent), ", again=True" if random.random() < 0.2 else ""
            steps[f'receive({m}, "r{n}", "{message}"{again})'] = 8
        (line,) = random.choices(list(steps), list(steps.values()))
        names += [(m, line.split('"')[1])] if line.startswith(("make", "receive")) else []
        sent += [f"m{n}"] if line.startswith("send") else []
        lines.append(line)
    return Program(tuple(lines), START, "", "end()")
