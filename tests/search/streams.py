# SPDX-License-Identifier: BSD-3-Clause
"""Streams, events, copies, frees and host reads in any order: which of them race.

Oracle: the slow reference of what comes before what (tests/races/reference.py), both ways: no race
is made up, and the first one is told as the reference has it (rules V4, V5, V6, V7).
"""

from engine import Program

ENVIRONMENT = {"NPUSIM_FAILED_FREE": "abort", "NPUSIM_DEVICE_MEMORY": "64MiB"}

START = """
import sys
sys.path.insert(0, "tests")
import torch
from races import reference
from torch_npusim.sim import races
torch.npusim.init()
log, recorded = reference.record(), races.record()
entries, found = log.__enter__(), recorded.__enter__()
streams = [torch.npusim.current_stream(), torch.npusim.Stream(), torch.npusim.Stream()]
streams.append(torch.npusim.Stream("npusim:1"))  # only waits, and is waited for
events, x, host = {}, {}, {}
there = torch.zeros(16, device="npusim:1")

def new(name, s):
    with torch.npusim.stream(streams[s]):
        x[name] = torch.zeros(16, device="npusim")

def write(name, first, s):
    with torch.npusim.stream(streams[s]):
        x[name][first:first + 8].add_(1)

def columns(name, first, s):
    with torch.npusim.stream(streams[s]):
        x[name].view(4, 4)[:, first:first + 2].add_(1)

def read(name, other, s):
    with torch.npusim.stream(streams[s]):
        torch.neg(x[name], out=x[other])

def upload(name, h, s):
    with torch.npusim.stream(streams[s]):
        x[name].copy_(host[h], non_blocking=True)

def download(name, h, s):
    with torch.npusim.stream(streams[s]):
        host[h].copy_(x[name], non_blocking=True)

def wait(s, other):
    streams[s].wait_stream(streams[other])

def mark(e, s):
    events.setdefault(e, torch.npusim.Event()).record(streams[s])

def block(e, s):
    streams[s].wait_event(events[e])

def over(name, other, s):
    with torch.npusim.stream(streams[s]):
        there.copy_(x[name])
        x[other].copy_(there)

def learn(name, s):
    leaf = x[name].detach().requires_grad_()
    with torch.npusim.stream(streams[s]):
        loss = (leaf * 2).sum()
    loss.backward()

def use(name, s):
    x[name].record_stream(streams[s])

def look(h):
    host[h][3].item()

def fill(h):
    host[h].fill_(2)
"""
END = """
torch.npusim.synchronize(0)
torch.npusim.synchronize(1)
recorded.__exit__(None, None, None)
log.__exit__(None, None, None)
reference.agree(found.races, reference.Reference().read(entries).races)
"""


def program(random) -> Program:
    """Ten to thirty steps; half of the programs wait where commands change the stream."""
    owners, hosts, events = {"a": 0, "b": 0}, ["h"], []
    lines = ['new("a", 0)', 'new("b", 0)', 'host["h"] = torch.zeros(16, pin_memory=True)']
    careful, last = random.random() < 0.5, 0
    for n in range(random.randint(10, 30)):
        s = random.randrange(3)
        one, two = random.choices(list(owners)[-3:], k=2)
        waiter, waited = random.choices((0, 1, 2, 3), (3, 3, 3, 1), k=2)
        h = random.choice(hosts)
        steps = {
            f'new("t{n}", {s})': 6,
            f'write("{one}", {random.choice((0, 4, 8))}, {s})': 5,
            f'read("{one}", "{two}", {s})': 4,
            f'upload("{one}", "{h}", {s})': 2,
            f'download("{one}", "{h}", {s})': 2,
            f'columns("{one}", {random.choice((0, 2, 1))}, {s})': 4,
            f"wait({waiter}, {waited})": 4,
            f'mark("{random.choice([f"e{n}", *events])}", {s})': 3,
            f'over("{one}", "{two}", {s})': 0.5,
            f'learn("{one}", {s})': 0.5,
            f'use("{one}", {s})': 1,
            f'look("{h}")': 1,
            f'fill("{h}")': 1,
            f"streams[{s}].synchronize()": 1,
            f'host["h{n}"] = torch.zeros(16, pin_memory=True)': 1,
        }
        if events:
            steps[f'block("{random.choice(events)}", {s})'] = 4
            steps[f'events["{random.choice(events)}"].synchronize()'] = 1
            steps[f'while not events["{random.choice(events)}"].query(): pass'] = 1
        if len(owners) > 2:  # the stream of a block gets it again
            steps[f'del x["{one}"]; new("t{n}", {owners[one]})'] = 6
            steps[f'del x["{one}"]'] = 2
        (line,) = random.choices(list(steps), list(steps.values()))
        # Memory that is asked for without a wait may be what another stream still uses.
        if line.startswith(("write", "columns", "read", "upload", "download", "over", "learn")):
            lines += [f"wait({s}, {last})"] if careful and s != last else []
            last = s
        owner = owners.pop(one) if line.startswith("del") else s
        if "new" in line:
            owners[f"t{n}"] = owner
        hosts += [f"h{n}"] if line.startswith("host") else []
        events += [f"e{n}"] if line.startswith(f'mark("e{n}"') else []
        lines.append(line)
    return Program(tuple(lines), START, "", END)


_LEFT_OUT = """
class Fewer:
    inner = found
    @property
    def races(self):
        return [race for race in self.inner.races if race.missing != {!r}]
found = Fewer()
"""
PLANTS = {
    f"a race without {missing} is not told": _LEFT_OUT.format(missing)
    for missing in ("wait_stream", "record_stream", "synchronize", "event")
} | {
    "a wait between streams counts for nothing": """
block_of = reference.Reference._kinds
def kinds(self):
    return block_of(self) | {"event_block": lambda entry: None}
reference.Reference._kinds = kinds
"""
}
