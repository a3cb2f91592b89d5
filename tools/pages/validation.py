# SPDX-License-Identifier: BSD-3-Clause
"""The model of time against published figures: docs/reference/validation.md.

    python tools/pages/validation.py           # prints the part of the page that is made
    python tools/pages/validation.py --check   # fails if the page or the classes are out of date
    python tools/pages/validation.py --fit     # fits specs/classes.toml and writes the page
    python tools/pages/validation.py --errors  # as --fit, with the values as they are
    python tools/pages/validation.py --blind   # errors on rows that no fit has seen
    python tools/pages/validation.py --hosts   # what a command costs the hosts of specs/hosts

published_rows.py chose the rows before the first fit. A row's time is computed from the record of
its program (published_programs.py), by the formula of rule C1. The split has three parts: each
chip is left out of a fit, each family of models is, and each source is. The page states the errors
of what was left out; left_out.csv keeps them, and the intervals are made from it.
"""

import csv
import itertools
import math
import re
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from pages.intervals import BUSY, COVERED, SPLITS, intervals, write_left_out
from pages.published_programs import PROGRAM
from pages.published_rows import BLIND, DLE, FOLDER

from torch_npusim.sim import specs, timeline

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "validation.md"
CLASSES = ROOT / "torch_npusim" / "specs" / "classes.toml"

WORK = timeline.WORK
BOARDS = ("server", "consumer", "limited", "amd")
#: Hosts of specs/hosts, and the chips of the machine that a source names: a DGX-1, a DGX A100.
HOSTS = {"epyc-7742": ("a100-80-sxm",), "xeon-e5-2698v4": ("v100-16-sxm", "v100-32-sxm")}
GOAL_MEDIAN, GOAL_WITHIN = 0.12, 0.90


class Data:
    """Rows with records, as flat arrays: a different command of a row each."""

    def __init__(self, folder):
        kept = np.load(folder / "records.npz")
        names = [str(name).removeprefix("aten::").split(".")[0] for name in kept["names"]]
        commands, programs = kept["commands"], kept["programs"]
        ends = np.cumsum([int(program[-2]) for program in programs])
        records = {
            tuple(program[:-4]): (
                int(program[-4]), int(program[-3]),
                kept["orders"][end - int(program[-2]):end].astype(int), int(program[-1]),
            )
            for program, end in zip(programs, ends, strict=True)
        }  # fmt: skip
        with (folder / "rows.csv").open() as file:
            published = list(csv.DictReader(file))
        key = lambda row: tuple(row[field] for field in PROGRAM)  # noqa: E731
        self.rows = [row for row in published if key(row) in records]
        self.without = len(published) - len(self.rows)
        self.seconds = np.array([float(row["value"]) / 1e3 for row in self.rows])
        self.orders, modules = [], []
        which, counts, index = [], [], []
        total = 0
        for number, row in enumerate(self.rows):
            begin, length, order, called = records[key(row)]
            modules.append(called)
            which.append(np.arange(begin, begin + length))
            counts.append(np.bincount(order, minlength=length))
            index.append(np.full(length, number))
            self.orders.append(order + total)
            total += length
        unique = np.concatenate(which)
        self.counts, self.index = np.concatenate(counts), np.concatenate(index)
        self.commands = np.bincount(self.index, self.counts).astype(float)
        self.modules = np.array(modules, float)
        self.host = np.array([host_of(row) for row in self.rows])
        self.models = np.array([row["model"] for row in self.rows])
        columns = commands[unique].T
        _, _, _, precision, self.flops, self.bytes = columns[:6]
        batch, m, n = columns[7:10]
        self.precision = precision.astype(int)
        self.tiles = batch * np.ceil(m / 128) * np.ceil(n / 128)
        table = np.array([work_of(names[int(c[0])], c) for c in commands])
        self.work = table[unique]
        self.plain = ~np.isin(self.precision, timeline.MATRIX_UNITS)
        chips = sorted({row["chip"] for row in self.rows})
        found = [specs.load(chip) for chip in chips]
        chip = np.array([chips.index(row["chip"]) for row in self.rows])[self.index]
        peaks = np.array([peaks_of(spec) for spec in found])
        self.peak = peaks[chip, self.precision]
        of = lambda value: np.array([value(spec) for spec in found])[chip]  # noqa: E731
        self.bandwidth = of(lambda spec: spec.value("memory.bandwidth_gb_s"))
        self.multiprocessors = of(lambda spec: spec.multiprocessors)
        self.clocks = of(lambda spec: spec.clocks)
        self.cache = of(lambda spec: spec.value("memory.cache_mib")) * CACHE_SHARE
        self.board = of(lambda spec: BOARDS.index(spec.board))


#: A command of this share of the cache's size gets half of what the cache gives.
CACHE_SHARE = 0.7


def host_of(row):
    """0: the host of no name; else the place in HOSTS, from 1 on."""
    for number, chips in enumerate(HOSTS.values()):
        if row["source"] == DLE and row["chip"] in chips:
            return number + 1
    return 0


def peaks_of(spec):
    peak = lambda key: spec.numbers[f"peak_tflops.{key}"] * 1e12  # noqa: E731
    f32, f16 = peak("f32"), peak("f16")
    return [f32, peak("f64"), f16, peak("i8") or f16, f32, peak("tf32") or f32]


def work_of(name, command):
    """Index into WORK, as csrc/cost gives it to the command."""
    _, _, work, _, _, moved, operands, batch, _, _, k, taps, _ = command
    back = "_backward" if "backward" in name else ""
    found = WORK[int(work)]
    if work == 1 and batch > 1:
        found = "batched_matmul"
    elif work == 2 and batch > 1:
        found = ("depthwise" if k == taps else "grouped") + back
    elif work == 3:
        found = "attention" + back
    elif work == 0 and ("softmax" in name or ("_norm" in name and "linalg" not in name)):
        found = "normalization"
    elif work == 0 and operands > 0 and moved > 1.2 * operands and "index" not in name \
            and "embedding" not in name:  # fmt: skip
        found = "strided"
    return WORK.index(found)


# Parameters: logarithms of shares on matrix units, on others and of bandwidth, by work; of factors
# of boards other than servers; of the floor, the host's time for a command and for the call of a
# module, named hosts' factors of both, and of what a multiprocessor moves in a clock; then three
# that are as they are.
COUNT, FACTORS = len(WORK), len(BOARDS) - 1
MATRIX, PLAIN, TRAFFIC = (slice(i * COUNT, (i + 1) * COUNT) for i in range(3))
ARITHMETIC_BOARD = slice(3 * COUNT, 3 * COUNT + FACTORS)
TRAFFIC_BOARD = slice(ARITHMETIC_BOARD.stop, ARITHMETIC_BOARD.stop + FACTORS)
FLOOR = TRAFFIC_BOARD.stop
DISPATCH, MODULE = FLOOR + 1, FLOOR + 2
HOST = slice(MODULE + 1, MODULE + 1 + len(HOSTS))
PORT = HOST.stop
WAVE, GAIN, OVERLAP = range(PORT + 1, PORT + 4)
SIZE = OVERLAP + 1

PRIOR = np.zeros(SIZE)
PRIOR[: 2 * COUNT], PRIOR[TRAFFIC] = math.log(0.6), math.log(0.8)
PRIOR[FLOOR : HOST.start] = math.log(4e-6), math.log(2e-5), math.log(1e-5)
PRIOR[PORT] = math.log(40)
PRIOR[WAVE:] = 0.3, 1.5, 0.5
#: How strongly a parameter is held to its prior.
HOLD = np.full(SIZE, 0.18)
HOLD[ARITHMETIC_BOARD] = HOLD[FLOOR:WAVE] = 0.6
HOLD[WAVE:] = 0.3
LEAST, MOST = np.full(SIZE, -20.0), np.full(SIZE, 20.0)
LEAST[WAVE:], MOST[WAVE:] = (0, 1, 0), (1, 5, 1)
# No product beats what the best known shapes reach of a peak.
for _name in ("matmul", "batched_matmul", "attention"):
    MOST[WORK.index(_name)] = math.log(0.92)
    MOST[COUNT + WORK.index(_name)] = math.log(0.98)
MOST[TRAFFIC.start] = 0.0
#: Errors count in proportion up to here, less than that beyond.
SCALE = 0.12


def parts(data, x):
    """Seconds of arithmetic, of the memory and of multiprocessors' ports, without the floor."""
    arithmetic = np.concatenate([[0], x[ARITHMETIC_BOARD]])[data.board]
    traffic = np.concatenate([[0], x[TRAFFIC_BOARD]])[data.board]
    waves = np.maximum(data.tiles, 1) / data.multiprocessors
    idle = np.where(data.tiles > 0, np.minimum(np.ceil(waves) / waves - 1, 8), 0)
    share = np.exp(x[: 2 * COUNT][data.work + COUNT * data.plain] + arithmetic)
    compute = data.flops / (data.peak * share) * (1 + x[WAVE] * idle)
    share = np.exp(x[TRAFFIC][data.work] + traffic)
    filled = data.bytes / np.maximum(data.cache, 1)
    cached = data.bytes / (1 + (x[GAIN] - 1) / (1 + filled**2))
    return compute, cached / (data.bandwidth * share), cached / (data.clocks * np.exp(x[PORT]))


def durations(data, x):
    compute, memory, port = parts(data, x)
    moved = memory + port
    shorter = (1 - x[OVERLAP]) * np.minimum(compute, moved)
    return np.exp(x[FLOOR]) + np.maximum(compute, moved) + shorter


def host_seconds(data, x):
    """Seconds for which the host of no name is busy with the rows."""
    return np.exp(x[DISPATCH]) * data.commands + np.exp(x[MODULE]) * data.modules


def predicted(data, x, factors=None):
    """Seconds of the rows: the host launches, the device follows, the end is awaited.

    `factors` are those of the rows' hosts; default: those in x.
    """
    if factors is None:
        factors = np.concatenate([[1], np.exp(x[HOST])])[data.host]
    each, dispatch = durations(data, x), factors * host_seconds(data, x) / data.commands
    made = np.zeros(len(data.rows))
    for number, order in enumerate(data.orders):
        rest = np.cumsum(each[order][::-1])[::-1]
        made[number] = np.max(dispatch[number] * np.arange(1, len(order) + 1) + rest)
    return made


def host_bound(data, x):
    """Whether the device needs half of a row's time at most, so that the host decides."""
    each = durations(data, x)
    return np.bincount(data.index, each * data.counts, len(data.rows)) < 0.5 * data.seconds


def calibrated(data, x):
    """Factors of the rows' hosts: a named one's is of the rows of other models on the machine.

    So does `npusim calibrate-host`: small programs say what a machine's host costs.
    """
    factors = np.ones(len(data.rows))
    quotient, bound = data.seconds / host_seconds(data, x), host_bound(data, x)
    for host in range(1, len(HOSTS) + 1):
        for model in set(data.models[data.host == host]):
            others = (data.host == host) & bound & (data.models != model)
            factors[(data.host == host) & (data.models == model)] = np.median(quotient[others])
    return factors


def smooth(data, x):
    """(log of model / published, its derivatives), with a soft maximum of host and device."""
    compute, memory, port = parts(data, x)
    moved = memory + port
    more = compute > moved
    rest = 1 - x[OVERLAP]
    each = np.exp(x[FLOOR]) + np.where(more, compute + rest * moved, moved + rest * compute)
    rows = len(data.rows)
    device = np.bincount(data.index, each * data.counts, rows)
    host = np.concatenate([[1], np.exp(x[HOST])])[data.host] * host_seconds(data, x)
    both = device**6 + host**6
    weight = device**6 / both / device
    slope = np.zeros((rows, SIZE))

    def spread(values, group, groups):
        found = np.bincount(data.index * groups + group, values, rows * groups)
        return found.reshape(rows, groups) * weight[:, None]

    by_compute = -compute * np.where(more, 1, rest) * data.counts
    by_memory, by_port = (-part * np.where(more, rest, 1) * data.counts for part in (memory, port))
    slope[:, : 2 * COUNT] = spread(by_compute, data.work + COUNT * data.plain, 2 * COUNT)
    slope[:, TRAFFIC] = spread(by_memory, data.work, COUNT)
    slope[:, PORT] = spread(by_port, 0, 1)[:, 0]
    slope[:, ARITHMETIC_BOARD] = spread(by_compute, data.board, len(BOARDS))[:, 1:]
    slope[:, TRAFFIC_BOARD] = spread(by_memory, data.board, len(BOARDS))[:, 1:]
    slope[:, FLOOR] = np.exp(x[FLOOR]) * data.commands * weight
    by_host = host**6 / both
    module = np.exp(x[MODULE]) * data.modules / host_seconds(data, x)
    slope[:, DISPATCH], slope[:, MODULE] = by_host * (1 - module), by_host * module
    for number in range(len(HOSTS)):
        slope[:, HOST.start + number] = by_host * (data.host == number + 1)
    slope[:, OVERLAP] = -spread(np.minimum(compute, moved) * data.counts, 0, 1)[:, 0]
    return np.log(both ** (1 / 6) / data.seconds), slope


def fit(data, mask, begin=PRIOR, rounds=40):
    """Returns the parameters that make the errors of the rows in `mask` least."""

    def at(x):
        error, slope = smooth(data, x)
        for number in (WAVE, GAIN):
            step = x.copy()
            step[number] += 1e-4
            slope[:, number] = (smooth(data, step)[0] - error) / 1e-4
        return error[mask], slope[mask]

    def loss(error, x):
        bent = 2 * SCALE**2 * (np.sqrt(1 + (error / SCALE) ** 2) - 1)
        return bent.sum() + ((HOLD * (x - PRIOR)) ** 2).sum()

    x, damping = np.clip(begin, LEAST, MOST), 1e-2
    error, slope = at(x)
    least = loss(error, x)
    for _ in range(rounds):
        weight = 1 / np.sqrt(1 + (error / SCALE) ** 2)
        curve = (slope * weight[:, None]).T @ slope + np.diag(HOLD**2)
        down = (slope * weight[:, None]).T @ error + HOLD**2 * (x - PRIOR)
        step = np.linalg.solve(curve + damping * np.diag(np.diag(curve) + 1e-6), down)
        tried = np.clip(x - step.clip(-0.7, 0.7), LEAST, MOST)
        next_error, next_slope = at(tried)
        if (found := loss(next_error, tried)) < least:
            done = least - found < 1e-5 * least
            x, error, slope, least = tried, next_error, next_slope, found
            damping = max(damping / 4, 1e-4)
            if done:
                break
        elif (damping := damping * 6) > 1e6:
            break
    return x


def left_out(data, key, whole):
    """Each row, as predicted by a fit without its group.

    Returns the error, the error by the host of no name, and the share in which the device works.
    """
    groups = np.array([row[key] for row in data.rows])
    found = np.zeros((3, len(groups)))
    for group in sorted(set(groups)):
        there = groups == group
        x = fit(data, ~there, whole, rounds=10)
        times = predicted(data, x, np.ones(len(groups)))
        busy = np.bincount(data.index, durations(data, x) * data.counts, len(groups)) / times
        errors = (
            made / data.seconds - 1 for made in (predicted(data, x, calibrated(data, x)), times)
        )
        found[:, there] = np.array([*errors, busy])[:, there]
    return found


def pairs(rows):
    """Yields (change, before, after, factor of the time after) of rows that differ in one thing.

    A change of batch is judged by the time of a sample.
    """
    alike = {}
    for number, row in enumerate(rows):
        fixed = ("source", "chip", "model", "size", "mode", "torch")
        alike.setdefault(tuple(row[key] for key in fixed), []).append(number)
    for group in alike.values():
        for a, b in itertools.permutations(group, 2):
            before, after = ((rows[number]["dtype"], rows[number]["layout"]) for number in (a, b))
            batches = [int(rows[number]["batch"]) for number in (a, b)]
            if (
                batches[0] == batches[1]
                and before[0] == after[0]
                and before[1] == "nchw" != after[1]
            ):
                yield "layout", a, b, 1.0
            elif batches[0] == batches[1] and before[0] in ("fp32", "tf32") and after[0] == "amp":
                yield "precision", a, b, 1.0
            elif (
                before == after
                and batches[0] < batches[1]
                and not any(
                    batches[0] < int(rows[c]["batch"]) < batches[1]
                    for c in group
                    if (rows[c]["dtype"], rows[c]["layout"]) == before
                )
            ):
                yield "batch", a, b, batches[0] / batches[1]


def gains(data, errors):
    """Change -> (gain by the model, gain as published) of each pair; "" has all."""
    times = data.seconds * (1 + errors)
    found = {"": []}
    for change, a, b, factor in pairs(data.rows):
        pair = tuple(1 - factor * t[b] / t[a] for t in (times, data.seconds))
        for key in ("", change):
            found.setdefault(key, []).append(pair)
    return {key: np.array(values) for key, values in found.items()}


def rests(found):
    """Change -> factors of the modelled rest of the time between which nine of ten are."""
    ends = [(1 - COVERED) / 2, (1 + COVERED) / 2]
    return {
        key: tuple(float(end) for end in np.quantile((1 - v[:, 1]) / (1 - v[:, 0]), ends))
        for key, v in found.items()
    }


def write_classes(x, widths, left):
    lines = [
        "# SPDX-License-Identifier: BSD-3-Clause",
        "# What stands for classes of work on kinds of boards (rule C1), for all chips. Made by",
        "# tools/pages/validation.py --fit from tools/pages/published/rows.csv.",
        "[model]",
        f"kernel_floor_us = {np.exp(x[FLOOR]) * 1e6:.3g}",
        f"overlap = {x[OVERLAP]:.3g}",
        f"wave_loss = {x[WAVE]:.3g}",
        f"cache_share = {CACHE_SHARE}",
        f"cache_gain = {x[GAIN]:.3g}",
        f"port_bytes = {np.exp(x[PORT]):.3g} # of a multiprocessor, in a clock",
        "",
        "[host] # of eager Python: for a command, and for the call of a module",
        f"dispatch_us = {np.exp(x[DISPATCH]) * 1e6:.3g}",
        f"module_us = {np.exp(x[MODULE]) * 1e6:.3g}",
    ]
    for title, part, note in (
        ("matrix", MATRIX, "of the peaks of f16, i8 and tf32"),
        ("plain", PLAIN, "of the other peaks; Winograd's convolutions exceed 1"),
        ("bandwidth", TRAFFIC, "of the memory's; what a cache serves exceeds 1"),
    ):
        lines += ["", f"[{title}] # {note}"]
        lines += [
            f"{work} = {value:.3g}" for work, value in zip(WORK, np.exp(x[part]), strict=True)
        ]
    for number, board in enumerate(BOARDS):
        pair = [0.0, 0.0] if number == 0 else [
            x[ARITHMETIC_BOARD][number - 1], x[TRAFFIC_BOARD][number - 1]
        ]  # fmt: skip
        lines += ["", f"[board.{board}]"]
        lines += [
            f"{name} = {np.exp(value):.3g}"
            for name, value in zip(("arithmetic", "bandwidth"), pair, strict=True)
        ]
    lines += [
        "",
        "[interval] # factors: nine of ten times, and the largest error of an idle device",
    ]
    for name, factor in zip(("device", "idle"), widths, strict=True):
        lines.append(f"{name} = [{1 / factor:.3g}, {factor:.3g}]")
    lines.append(f"busy = {BUSY} # share in which the device works, for the first")
    lines += ["", "[gain] # factors of the time that a change leaves, for nine of ten changes"]
    for change, (low, high) in left.items():
        lines.append(f"{change or 'others'} = [{low:.3g}, {high:.3g}]")
    CLASSES.write_text("\n".join(lines) + "\n")


def of_classes():
    """The parameters of specs/classes.toml."""
    with CLASSES.open("rb") as file:
        table = tomllib.load(file)
    x = PRIOR.copy()
    for title, part in (("matrix", MATRIX), ("plain", PLAIN), ("bandwidth", TRAFFIC)):
        x[part] = np.log([table[title][work] for work in WORK])
    boards = [table["board"][board] for board in BOARDS[1:]]
    x[ARITHMETIC_BOARD] = np.log([board["arithmetic"] for board in boards])
    x[TRAFFIC_BOARD] = np.log([board["bandwidth"] for board in boards])
    model = table["model"]
    x[FLOOR] = math.log(model["kernel_floor_us"] / 1e6)
    x[DISPATCH], x[MODULE] = (
        math.log(table["host"][key] / 1e6) for key in ("dispatch_us", "module_us")
    )
    x[HOST] = [
        math.log(specs.load_host(name).dispatch_us / table["host"]["dispatch_us"]) for name in HOSTS
    ]
    x[PORT] = math.log(model["port_bytes"])
    x[WAVE], x[GAIN], x[OVERLAP] = model["wave_loss"], model["cache_gain"], model["overlap"]
    return x


def quality(errors):
    size = np.abs(errors)
    return (
        f"{len(size)} | {np.median(size):.1%} | {np.quantile(size, 0.9):.0%} | "
        f"{(size < 0.25).mean():.1%} | {np.median(errors):+.0%}"
    )


_HEAD = "| rows | median error | 90 % of rows within | share within 25 % | median, signed |"


def current(data):
    """The line that needs no fit: all rows by what the product has."""
    errors = predicted(data, of_classes()) / data.seconds - 1
    return f"| all rows, by the values of classes.toml | {quality(errors)} |"


def hosts(data):
    """Host -> (factor of the host of no name, rows) by the rows that its machine's host decides."""
    x = of_classes()
    quotient, bound = data.seconds / host_seconds(data, x), host_bound(data, x)
    found = {}
    for number, host in enumerate(HOSTS):
        there = (data.host == number + 1) & bound
        found[host] = float(np.median(quotient[there])), int(there.sum())
    return found


def write_hosts(data):
    """Puts the costs of named hosts into their files."""
    x = of_classes()
    for host, (factor, rows) in hosts(data).items():
        file = specs.HOSTS / f"{host}.toml"
        text = file.read_text()
        for name, key in (("dispatch_us", DISPATCH), ("module_us", MODULE)):
            cost = factor * math.exp(x[key]) * 1e6
            text = re.sub(rf"{name} = \[[\d.]+", f"{name} = [{cost:.1f}", text)
        file.write_text(re.sub(r"of \d+ rows", f"of {rows} rows", text))


def gains_table(found):
    """Lines of the page: gains of pairs of rows."""
    lines = [
        "| change, its chip left out | pairs | median error of the gain | nine of ten within "
        "| the rest of the time is, of the modelled rest |",
        "|---|---|---|---|---|",
    ]
    for change, (low, high) in rests(found).items():
        size = 100 * np.abs(found[change][:, 0] - found[change][:, 1])
        lines.append(
            f"| {change or 'all'} | {len(size)} | {np.median(size):.1f} points "
            f"| {np.quantile(size, 0.9):.0f} points | {low:.2f} to {high:.2f} |"
        )
    return lines


def made_page(data, by_chip, by_family, by_source, kinds):
    rows = data.rows
    lines = [f"| split {_HEAD}", "|---|---|---|---|---|---|", current(data)]
    lines.append(f"| each chip left out | {quality(by_chip)} |")
    lines.append(f"| each family left out | {quality(by_family)} |")
    lines.append(f"| each source left out | {quality(by_source)} |")
    for title, key, errors in (
        ("chip, left out", "chip", by_chip),
        ("family, left out", "family", by_family),
        ("mode, its chip left out", "mode", by_chip),
    ):
        lines += ["", f"| {title} {_HEAD}", "|---|---|---|---|---|---|"]
        groups = np.array([row[key] for row in rows])
        lines += [
            f"| {group} | {quality(errors[groups == group])} |" for group in sorted(set(groups))
        ]
    lines += ["", "| the worst ten, their chip left out | published | model |", "|---|---|---|"]
    for number in np.argsort(-np.abs(np.log1p(by_chip)))[:10]:
        row = rows[number]
        what = " ".join(row[k] for k in ("chip", "model", "mode", "dtype", "layout") if row[k])
        value = float(row["value"])
        lines.append(
            f"| {what}, batch {row['batch']} | {value:.4g} ms "
            f"| {value * (1 + by_chip[number]):.4g} |"
        )
    lines += [
        "", "| left out | the device | rows | groups | median factor | for nine of ten | largest |",
        "|---|---|---|---|---|---|---|", *kinds,
    ]  # fmt: skip
    lines += ["", *gains_table(gains(data, by_chip))]
    lines += ["", "| rows that were dropped | reason |", "|---|---|"]
    with (FOLDER / "dropped.csv").open() as file:
        lines += [f"| {r['rows']} of {r['source']} | {r['reason']} |" for r in csv.DictReader(file)]
    if data.without:
        lines.append(f"| {data.without} | the program fails: its fused form mixes precisions |")
    return "\n".join(lines)


BEGIN, END = "<!-- made by tools/pages/validation.py -->", "<!-- end -->"


def blind_page():
    """Errors and coverage of the intervals on rows that no fit has seen."""
    data = Data(BLIND)
    errors = predicted(data, of_classes()) / data.seconds - 1
    x = of_classes()
    busy = np.bincount(data.index, durations(data, x) * data.counts, len(errors))
    busy /= predicted(data, x)
    within = np.array([
        low <= 1 / (1 + error) <= high
        for row, error, works in zip(data.rows, errors, busy, strict=True)
        for low, high in [specs.interval(row["chip"], works)]
    ])  # fmt: skip
    lines = [f"| blind {_HEAD} in the interval |", "|---|---|---|---|---|---|---|"]
    groups = {"all": np.ones(len(errors), bool)}
    for key in ("mode", "chip", "family"):
        of = np.array([row[key] for row in data.rows])
        groups |= {name: of == name for name in sorted(set(of))}
    for name, there in groups.items():
        lines.append(f"| {name} | {quality(errors[there])} | {within[there].mean():.0%} |")
    return "\n".join(lines)


def main(words):
    if "--blind" in words:
        print(blind_page())
        return 0
    data = Data(FOLDER)
    if "--fit" in words or "--errors" in words:
        fitted = "--fit" in words
        whole = fit(data, np.ones(len(data.rows), bool)) if fitted else of_classes()
        found = {split: left_out(data, split, whole) for split in SPLITS}
        write_left_out(data, found)
        by_chip, by_family, by_source = (found[split][0] for split in SPLITS)
        *widths, kinds = intervals()
        write_classes(whole, widths, rests(gains(data, by_chip)))
        specs.classes.cache_clear()
        write_hosts(data)
        head, rest = PAGE.read_text().split(BEGIN)
        made = made_page(data, by_chip, by_family, by_source, kinds)
        PAGE.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}")
        print(made)
        for errors in (by_chip, by_family):
            reached = np.median(np.abs(errors)) <= GOAL_MEDIAN, (np.abs(errors) < 0.25).mean()
            print("goal:", reached[0], reached[1] >= GOAL_WITHIN)
        return 0
    if "--hosts" in words:
        x = of_classes()
        for host, (factor, rows) in hosts(data).items():
            command, module = (factor * np.exp(x[key]) * 1e6 for key in (DISPATCH, MODULE))
            print(f"{host}: {command:.1f} us a command, {module:.1f} us a module, {rows} rows")
        return 0
    line = current(data)
    print(line)
    if "--check" in words and line not in PAGE.read_text():
        print(f"{PAGE.name} is out of date: python tools/pages/validation.py --fit")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
