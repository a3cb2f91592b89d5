# SPDX-License-Identifier: BSD-3-Clause
"""The fit of specs/classes.toml to published times, and its errors on what a fit leaves out.

validation.py is the command. A row's time is computed from the record of its program
(records.py), by the formula of rule C1.
"""

import csv
import io
import lzma
import math
import tomllib
from pathlib import Path

import numpy as np

from claims.evidence.step_times.intervals import BUSY
from claims.evidence.step_times.records import PROGRAM, RECORDS
from claims.evidence.step_times.rows import DLE
from torch_npusim.sim import specs, timeline

CLASSES = Path(__file__).parents[3] / "torch_npusim" / "specs" / "classes.toml"
WORK = timeline.WORK
BOARDS = ("server", "consumer", "limited", "amd")
#: Hosts of specs/hosts, and the chips of the machine that a source names: a DGX-1, a DGX A100.
HOSTS = {"epyc-7742": ("a100-80-sxm",), "xeon-e5-2698v4": ("v100-16-sxm", "v100-32-sxm")}


class Data:
    """Rows with records, as flat arrays: a different command of a row each."""

    def __init__(self, folder):
        kept = np.load(io.BytesIO(lzma.decompress((folder / RECORDS).read_bytes())))
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
        batch, m, self.n, self.k = columns[7:11].astype(int)
        self.precision = precision.astype(int)
        table = np.array([work_of(names[int(c[0])], c) for c in commands])
        self.work = table[unique]
        self.plain = ~np.isin(self.precision, timeline.MATRIX_UNITS)
        self.convolved = columns[2].astype(int) == WORK.index("convolution")
        # Products without matrix units have tiles of half the width and height.
        product = np.isin(self.work, [WORK.index("matmul"), WORK.index("batched_matmul")])
        product &= ~self.convolved
        tile = np.where(self.plain & product, 64, 128)
        self.tiles = batch * np.ceil(m / tile) * np.ceil(self.n / tile)
        chips = sorted({row["chip"] for row in self.rows})
        found = [specs.load(chip) for chip in chips]
        chip = np.array([chips.index(row["chip"]) for row in self.rows])[self.index]
        peaks = np.array([peaks_of(spec) for spec in found])
        self.peak = peaks[chip, self.precision]
        of = lambda value: np.array([value(spec) for spec in found])[chip]  # noqa: E731
        self.bandwidth = of(lambda spec: spec.value("memory.bandwidth_gb_s"))
        units = of(lambda spec: spec.multiprocessors)
        self.tiles = np.where(product, split(self.tiles, self.k, units), self.tiles)
        waves = np.maximum(self.tiles, 1) / units
        self.idle = np.where(self.tiles > 0, np.minimum(np.ceil(waves) / waves - 1, 8), 0)
        self.clocks = of(lambda spec: spec.clocks)
        cache = of(lambda spec: spec.value("memory.cache_mib")) * CACHE_SHARE
        self.fits = 1 / (1 + (self.bytes / np.maximum(cache, 1)) ** 2)
        self.board = of(lambda spec: BOARDS.index(spec.board))


#: Operations in a clock of a multiprocessor, for products whose loads move one element: the median
#: of the recordings' visible half (512 x 50257 x 768 in half precision and TF32, H100 and H200). It
#: changes no row of the fit by half a per cent, so records do not have it.
NARROW = 472
#: A command of this share of the cache's size gets half of what the cache gives.
CACHE_SHARE = 0.7


def split(tiles, k, units):
    """Tiles of products with sums of `k` elements on chips of `units` multiprocessors.

    Where they are fewer, parts of a sum count as tiles; a part has 256 elements at least.
    """
    parts = np.floor(np.minimum(k / 256, units / np.maximum(tiles, 1)))
    return tiles * np.maximum(parts, 1)


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
    _, _, work, precision, _, moved, operands, batch, _, _, k, taps, _ = command
    back = "_backward" if "backward" in name else ""
    found = WORK[int(work)]
    if work == 1 and batch > 1:
        found = "batched_matmul"
    elif work == 2 and batch > 1:
        found = ("depthwise" if k == taps else "grouped") + back
    elif work == 2 and taps == 1 and precision in timeline.MATRIX_UNITS:
        found = "matmul"  # filters of one element
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
#: A fit ends when a round takes less than this share of what is left; from any beginning it comes
#: to the same errors.
CONVERGED, ROUNDS = 1e-7, 100


def parts(data, x):
    """Seconds of arithmetic, of the memory and of multiprocessors' ports, without the floor."""
    arithmetic = np.concatenate([[0], x[ARITHMETIC_BOARD]])[data.board]
    traffic = np.concatenate([[0], x[TRAFFIC_BOARD]])[data.board]
    share = np.exp(x[: 2 * COUNT][data.work + COUNT * data.plain] + arithmetic)
    compute = data.flops / (data.peak * share) * (1 + x[WAVE] * data.idle)
    share = np.exp(x[TRAFFIC][data.work] + traffic)
    cached = data.bytes / (1 + (x[GAIN] - 1) * data.fits)
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
    slope[:, WAVE] = -spread(by_compute * data.idle / (1 + x[WAVE] * data.idle), 0, 1)[:, 0]
    by_bytes = (by_memory + by_port) * data.fits / (1 + (x[GAIN] - 1) * data.fits)
    slope[:, GAIN] = spread(by_bytes, 0, 1)[:, 0]
    slope[:, FLOOR] = np.exp(x[FLOOR]) * data.commands * weight
    by_host = host**6 / both
    module = np.exp(x[MODULE]) * data.modules / host_seconds(data, x)
    slope[:, DISPATCH], slope[:, MODULE] = by_host * (1 - module), by_host * module
    for number in range(len(HOSTS)):
        slope[:, HOST.start + number] = by_host * (data.host == number + 1)
    slope[:, OVERLAP] = -spread(np.minimum(compute, moved) * data.counts, 0, 1)[:, 0]
    return np.log(both ** (1 / 6) / data.seconds), slope


def fit(data, mask, begin=PRIOR):
    """Returns the parameters that make the errors of the rows in `mask` least."""

    def at(x):
        error, slope = smooth(data, x)
        return error[mask], slope[mask]

    def loss(error, x):
        bent = 2 * SCALE**2 * (np.sqrt(1 + (error / SCALE) ** 2) - 1)
        return bent.sum() + ((HOLD * (x - PRIOR)) ** 2).sum()

    x, damping = np.clip(begin, LEAST, MOST), 1e-2
    error, slope = at(x)
    least = loss(error, x)
    for _ in range(ROUNDS):
        weight = 1 / np.sqrt(1 + (error / SCALE) ** 2)
        curve = (slope * weight[:, None]).T @ slope + np.diag(HOLD**2)
        down = (slope * weight[:, None]).T @ error + HOLD**2 * (x - PRIOR)
        # What would leave its bounds stays there, and what is coupled to it moves without it.
        free = ~((x <= LEAST) & (down > 0) | (x >= MOST) & (down < 0))
        damped = curve + damping * np.diag(np.diag(curve))
        step = np.zeros(SIZE)
        step[free] = np.linalg.solve(damped[np.ix_(free, free)], down[free])
        tried = np.clip(x - step.clip(-0.7, 0.7), LEAST, MOST)
        next_error, next_slope = at(tried)
        if (found := loss(next_error, tried)) < least:
            done = least - found < CONVERGED * least
            x, error, slope, least = tried, next_error, next_slope, found
            damping = max(damping / 4, 1e-6)
            if done:
                return x
        elif (damping := damping * 6) > 1e6:
            return x
    raise RuntimeError(f"the fit does not converge in {ROUNDS} rounds")


def left_out(data, key, whole):
    """Each row, as predicted by a fit without its group.

    Returns the error, the error by the host of no name, and the share in which the device works.
    """
    groups = np.array([row[key] for row in data.rows])
    found = np.zeros((3, len(groups)))
    for group in sorted(set(groups)):
        there = groups == group
        x = fit(data, ~there, whole)
        times = predicted(data, x, np.ones(len(groups)))
        busy = np.bincount(data.index, durations(data, x) * data.counts, len(groups)) / times
        errors = (
            made / data.seconds - 1 for made in (predicted(data, x, calibrated(data, x)), times)
        )
        found[:, there] = np.array([*errors, busy])[:, there]
    return found


def write_classes(x, widths, left):
    lines = [
        "# SPDX-License-Identifier: BSD-3-Clause",
        "# What stands for classes of work on kinds of boards (rule C1), for all chips. Made by",
        "# claims/evidence/step_times: validation.py --fit, from rows.csv.",
        "[model]",
        f"kernel_floor_us = {np.exp(x[FLOOR]) * 1e6:.3g}",
        f"overlap = {x[OVERLAP]:.3g}",
        f"wave_loss = {x[WAVE]:.3g}",
        f"cache_share = {CACHE_SHARE}",
        f"cache_gain = {x[GAIN]:.3g}",
        f"port_bytes = {np.exp(x[PORT]):.3g} # of a multiprocessor, in a clock",
        f"narrow_flops = {NARROW} # so too: products whose loads move one element; of recordings",
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
