# SPDX-License-Identifier: BSD-3-Clause
"""Traces of the laboratory: replayed, written in each format, read again, and damaged.

Oracle: the slow reference of the allocator places every block and counts every byte alike (rules
L1 and L2); a file gives its requests back, and a replay of a snapshot places them where it says. A
file with a wrong byte or value is refused in one line by TraceError, or read as a trace without a
row less that can be replayed and explained; a byte of a .npt file, whose members have checksums,
changes nothing.
"""

from allocator.test_placement import CASES
from engine import Program

START = """
import pickle, re, sys, tempfile, zipfile
from dataclasses import replace
from pathlib import Path
import numpy as np, numpy.ma
sys.path.insert(0, "tests")
from allocator.test_placement import CASES
from allocator.model import Model
from allocator import reference
from npusim_lab import Choice, TraceBuilder, TraceError, explain, files, load, save, text_formats
from npusim_lab import explanation, planning, snapshot_export, snapshot_import, trace_file
from npusim_lab._lab import Op, replay as replayed
from npusim_lab.matching import recorded_replay
case = CASES[CASE]
choice = Choice(case.preset, case.settings)
rows, live, waiting, pools = [], set(), set(), {0: 1}
folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "file")

def add(op, *rest):
    rows.append((op, *rest, 0, 0, 0, 0)[:5])

def malloc(id, bytes, stream, pool):
    live.add(id)
    add(Op.MALLOC, id, bytes, stream, pool if pools.get(pool) else 0)

def free(id, op=Op.FREE):
    if id in live:
        add(op, id)
        live.remove(id)
        op == Op.FREE or waiting.add(id)

def complete(id):
    if id in waiting:
        waiting.remove(id)
        add(Op.FREE_COMPLETED, id)

def create(pool, flags):
    if pool not in pools:
        pools[pool] = 1
        add(Op.CREATE_POOL, 0, flags, 0, pool)

def release(pool):
    if pools.get(pool):
        pools[pool] = 0
        add(Op.RELEASE_POOL, 0, 0, 0, pool)

def trace():
    out = TraceBuilder()
    for time, row in enumerate(rows):
        out.add(*row, out.stack([("model.py", row[1] % 5, "forward")]), 1000 * time)
    return out.build({"capacity_bytes": case.capacity})

def columns(trace):
    names = ("op", "id", "bytes", "stream", "pool", "stack", "time_ns")  # the last may be None
    return [(n, None if (x := getattr(trace, n)) is None else x.tolist()) for n in names]

def judge():
    model = Model(case.rules, case.capacity)
    for row in rows:
        model.apply(*row)
    options = {"validate": True, "validate_every": 1, "curve_points": len(rows)}
    done = replayed(trace().compiled, case.preset, case.settings, case.capacity, **options)
    assert done.violations == [], done.violations
    places = (done.segment.tolist(), done.offset.tolist(), done.block_bytes.tolist())
    placed = [None if failed else place for failed, *place in zip(done.failed, *places)]
    wrong = [pair for pair in zip(placed, model.placements) if pair[0] != (pair[1] and [*pair[1]])]
    assert not wrong, f"placed {wrong[0][0]}, by the reference {wrong[0][1]}"
    before = np.maximum(model.reserved, [0, *model.reserved[:-1]])  # it only falls in between
    assert ((model.reserved <= done.reserved) & (done.reserved <= before)).all(), "the curve"
    expected = model.slow.stats()
    got = {key: done.stats[key] for key in expected}
    assert got == expected, {k: (got[k], expected[k]) for k in got if got[k] != expected[k]}

def write(kind):
    run = {"policy": choice, "capacity_bytes": case.capacity} if kind == "snapshot" else {}
    if kind != "stalloc":
        return save(trace(), path, kind, **run)
    lines = [f"1 {id} {bytes} {stream}" for op, id, bytes, stream, _ in rows if op == Op.MALLOC]
    path.write_text("\\n".join(lines + [line.replace("1", "0", 1) for line in lines]))

def again(kind):
    write(kind)
    back, sent = load(path, kind, capacity_bytes=case.capacity), trace()
    if kind == "npt":
        assert columns(back) == columns(sent)
        return
    asked = sent.bytes[sent.op == Op.MALLOC].tolist()
    assert back.bytes[(back.op == Op.MALLOC) | (back.op == Op.OOM)].tolist() == asked
    options = any(op == Op.CREATE_POOL and flags for op, _, flags, *_ in rows)  # no file has them
    if kind == "snapshot" and not (options or back.ambiguous or back.info["inferred"]):
        result, same = recorded_replay(back)
        assert same.is_exact, (same, same.first_difference)

def damage(kind, place, value):
    write(kind)
    data = bytearray(path.read_bytes()) or bytearray(1)  # a list of no requests is empty
    data[int(place * len(data))] = value
    path.write_bytes(data)
    if (read := judged(kind)) and kind == "npt":
        assert columns(read) == columns(trace()), "a damaged trace is another one"

def places_in(tree):
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from places_in(tree[key])

def spoil(kind, place, value):
    write(kind)
    if kind == "snapshot":
        places = [*places_in(tree := pickle.loads(path.read_bytes()))]
        inside, key = places[int(place * len(places))]
        inside[key] = value
        path.write_bytes(pickle.dumps(tree, protocol=4))
    else:
        words = re.split("([, \\n])", path.read_text())
        words[2 * int(place * (len(words) // 2))] = str(value)
        path.write_text("".join(words))
    judged(kind)

def judged(kind):
    try:
        read = load(path, kind)
    except TraceError as error:
        text = str(error)
        assert text.startswith(str(path)) and len(text) < 600 and "\\n" not in text, text
        return None
    if kind in ("rmm", "buffers", "stalloc"):
        left_out = sum(int(t.split()[0]) for t in read.ambiguous if "left out" in t)
        lines = sum(bool(line.strip()) for line in path.read_bytes().split(b"\\n"))
        events = {"rmm": lines - 1, "buffers": 2 * (lines - 1), "stalloc": lines}[kind]
        assert events == len(read) + left_out, f"{events} events of a file became {len(read)}"
    assert replayed(read.compiled, "npusim", validate=True).violations == []
    assert explain(read, capacity_bytes=case.capacity)["verdict"]
    return read
"""
KINDS = ("npt", "snapshot", "rmm", "buffers", "stalloc")
WRONG = [*'-5 1_000 \u0663 \uff11\uff12 1e9 4096.0 nan 0 +3 0x 0xg dance =1+1 \x00 "'.split(" ")]
WRONG += ["", "1 2", "x" * 300, "0x" + "f" * 16, None, True, -1, 0.5, [], {}, [[]]]
WRONG += [1 << 63, 1 << 64, -(1 << 63) - 1, 10**20]
NAMES = [name for name, case in CASES.items() if not (case.scatter and case.rules.by_address)]


def program(random) -> Program:
    """Events of a trace; then the judge, a file in each format, and some damaged ones."""
    name = random.choice(NAMES)
    scales, lines, ids = CASES[name].scales, [], [0]
    for number in range(1, random.randint(10, 120)):
        id, pool = random.choice(ids), random.choice((1, 2))
        bytes = random.randint(1, random.choice(scales))
        bytes = max(1, bytes - bytes % random.choice((1, 1, 512, 1 << 20)))
        steps = {
            f"malloc({number}, {bytes}, {random.randrange(2)}, {random.choice((0, 0, 1, 2))})": 50,
            f"free({id})": 32,
            f"free({id}, Op.FREE_REQUESTED)": 8,
            f"complete({id})": 6,
            f"create({pool}, {random.choice((0, 0, 1, 2, 3))})": 1,
            f"release({pool})": 0.5,
            "add(Op.EMPTY_CACHE)": 1,
            "add(Op.SYNCHRONIZE)": 0.5,
        }
        (line,) = random.choices(list(steps), list(steps.values()))
        ids += [number] if line.startswith("malloc") else []
        lines.append(line)
    lines.append("judge()")
    lines += [f'again("{kind}")' for kind in KINDS]
    for _ in range(16):
        kind, place = random.choice(KINDS), round(random.random(), 6)
        lines.append(f'damage("{kind}", {place}, {random.randrange(256)})')
        kind = random.choice(KINDS[1:])
        lines.append(f'spoil("{kind}", {place}, {random.choice(WRONG)!r})')
    return Program(tuple(lines), START.replace("CASE]", f"{name!r}]"))
