# SPDX-License-Identifier: BSD-3-Clause
"""Streams, events, copies, frees and host reads in any order: which of them race.

Oracle: the slow reference of what comes before what (tests/races/reference.py), both ways: no race
is made up, and the first one is told as the reference has it (rules V4, V5, V6, V7).
"""

from engine import Program

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

def on(s):
    return torch.npusim.stream(streams[s])
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
    lines = [f'x["{name}"] = torch.zeros(16, device="npusim")' for name in owners]
    lines.append('host["h"] = torch.zeros(16, pin_memory=True)')
    careful, last = random.random() < 0.5, 0
    for n in range(random.randint(10, 30)):
        s = random.randrange(3)
        one, two = random.choices(list(owners)[-3:], k=2)
        waiter, waited = random.choices((0, 1, 2, 3), (3, 3, 3, 1), k=2)
        h = random.choice(hosts)
        first, column, event = random.choice((0, 4, 8)), random.choice((0, 2, 1)), f"e{n}"
        marked = random.choice([event, *events])
        new = f'with on({{}}): x["t{n}"] = torch.zeros(16, device="npusim")'
        steps = {
            new.format(s): 6,
            f'with on({s}): x["{one}"][{first}:{first + 8}].add_(1)': 5,
            f'with on({s}): x["{one}"].view(4, 4)[:, {column}:{column + 2}].add_(1)': 4,
            f'with on({s}): torch.neg(x["{one}"], out=x["{two}"])': 4,
            f'with on({s}): x["{one}"].copy_(host["{h}"], non_blocking=True)': 2,
            f'with on({s}): host["{h}"].copy_(x["{one}"], non_blocking=True)': 2,
            f"streams[{waiter}].wait_stream(streams[{waited}])": 4,
            f'events.setdefault("{marked}", torch.npusim.Event()).record(streams[{s}])': 3,
            f'x["{one}"].record_stream(streams[{s}])': 1,
            f'host["{h}"][3].item()': 1,
            f'host["{h}"].fill_(2)': 1,
            f"streams[{s}].synchronize()": 1,
            f'host["h{n}"] = torch.zeros(16, pin_memory=True)': 1,
        }
        if events:
            steps[f'streams[{s}].wait_event(events["{random.choice(events)}"])'] = 4
            steps[f'events["{random.choice(events)}"].synchronize()'] = 1
            steps[f'while not events["{random.choice(events)}"].query(): pass'] = 1
        if len(owners) > 2:  # the stream of a block gets it again
            steps[f'del x["{one}"]\n{new.format(owners[one])}'] = 6
            steps[f'del x["{one}"]'] = 2
        (line,) = random.choices(list(steps), list(steps.values()))
        # Memory that is asked for without a wait may be what another stream still uses.
        is_new = line.endswith(new.partition(": ")[2])
        if line.startswith("with") and not is_new:
            waits = careful and s != last
            lines += [f"streams[{s}].wait_stream(streams[{last}])"] if waits else []
            last = s
        owner = owners.pop(one) if line.startswith("del") else s
        owners |= {f"t{n}": owner} if is_new else {}
        hosts += [f"h{n}"] if "pin_memory" in line else []
        events += [event] if f'"{event}"' in line else []
        lines.append(line)
    return Program(tuple(lines), START, "", END)
