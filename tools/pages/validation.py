# SPDX-License-Identifier: BSD-3-Clause
"""The model against published figures: the table of docs/reference/validation.md.

    python tools/pages/validation.py           # prints the table; fails beyond the goal
    python tools/pages/validation.py --write   # writes it into docs/reference/validation.md
    python tools/pages/validation.py --fit     # fits the parameters, on either half

Programs run dry, so that ResNet-50 with batches of 256 takes no memory; a figure's time is a replay
of the program's record by the rates of the chip (torch_npusim/specs). The shares that a class of
work achieves, and what eager Python costs the host per command, are fitted on one half of the chips
and tested on the other.
"""

import os

os.environ.setdefault("NPUSIM_SPEC", "a100-80-sxm")
import dataclasses
import functools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import published_programs as programs

from torch_npusim.sim import specs
from torch_npusim.sim.timeline import Rates, Timeline

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "validation.md"

DLE = "NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md"
MAMF = "stas00/ml-engineering, compute/accelerator/README.md, maximum achievable matmul FLOPS"


@dataclass(frozen=True)
class Figure:
    """One published number.

    Attributes:
        chip: Name of the specification.
        what: The measured figure.
        value: Published.
        unit: "img/s", "ms", "TFLOP/s" or "GB/s".
        work: Work of one run of the program, in the unit times seconds; 0 for "ms".
        program: Makes the record of one run.
        source: Where it is published.
        uncounted: Why it is shown only; empty if it counts.
    """

    chip: str
    what: str
    value: float
    unit: str
    work: float
    program: Callable[[], Timeline]
    source: str
    uncounted: str = ""


@functools.cache
def resnet_training(batch, amp, tf32):
    return programs.resnet_training(batch, amp=amp, tf32=tf32)


@functools.cache
def resnet_inference(batch, amp):
    return programs.resnet_inference(batch, amp=amp)


def training(chip, batch, value, *, amp=False, tf32=False):
    words = "mixed precision" if amp else "TF32" if tf32 else "FP32"
    return Figure(
        chip, f"ResNet-50 v1.5 training, {words}, batch {batch}", value, "img/s", batch,
        functools.partial(resnet_training, batch, amp, tf32), DLE,
    )  # fmt: skip


def inference(chip, batch, value, *, amp=False):
    words = "mixed precision" if amp else "FP32"
    return Figure(
        chip, f"ResNet-50 v1.5 inference, {words}, batch {batch}", value, "ms", 0,
        functools.partial(resnet_inference, batch, amp), DLE,
    )  # fmt: skip


def product(chip, shape, value, source, uncounted=""):
    rows, columns, inner = shape
    return Figure(
        chip, f"bf16 product {rows} x {inner} x {columns}", value, "TFLOP/s",
        2e-12 * rows * columns * inner,
        functools.partial(programs.product, rows, inner, columns), source, uncounted,
    )  # fmt: skip


OWN = "the chip's own share is this figure"
FIGURES = [
    training("a100-80-sxm", 256, 938, tf32=True),
    training("a100-80-sxm", 256, 2470, amp=True),
    training("v100-16-sxm", 112, 367),
    training("v100-16-sxm", 256, 1200, amp=True),
    training("v100-32-sxm", 112, 356),
    training("v100-32-sxm", 256, 1156, amp=True),
    *(
        inference("v100-16-sxm", batch, ms)
        for batch, ms in ((1, 10.37), (8, 11.5), (16, 16.07), (32, 29.37), (64, 55.4),
                          (128, 109.26), (256, 214.48))
    ),
    *(
        inference("v100-16-sxm", batch, ms, amp=True)
        for batch, ms in ((1, 12.78), (16, 14.0), (32, 15.84), (64, 23.18), (128, 43.55),
                          (256, 84.14))
    ),
    *(
        inference("t4", batch, ms)
        for batch, ms in ((1, 10.7), (8, 22.41), (16, 39.77), (32, 77.62), (64, 152.73),
                          (128, 309.26), (256, 635.98))
    ),
    *(
        inference("t4", batch, ms, amp=True)
        for batch, ms in ((1, 12.96), (16, 15.8), (32, 29.54), (64, 57.41), (128, 114.24),
                          (256, 225.95))
    ),
    Figure("a100-40-sxm", "nanoGPT 124M, a step of 12 x 1,024 tokens, eager", 250, "ms", 0,
           functools.cache(programs.gpt_training), "karpathy/nanoGPT, README.md"),
    product("a100-80-sxm", (1024, 10240, 5120), 271.2, MAMF, OWN),
    product("a100-80-pcie", (2048, 5120, 6144), 252.9, MAMF, OWN),
    product("h100-sxm", (2048, 2048, 13312), 794.5, MAMF, OWN),
    product("mi300x", (10240, 15360, 8192), 668.4, MAMF, OWN),
    product("h100-sxm", (4224, 2048, 8192), 780, "gist Chillee/2ec89696db8b7ed1c24461159e325405"),
    Figure("a100-80-sxm", "upload of 1 GiB of pinned memory", 24.8, "GB/s", (1 << 30) / 1e9,
           functools.partial(programs.upload, 1 << 30), "NVIDIA/nvbandwidth, README.md", OWN),
]  # fmt: skip

#: Halves of the table, by chip; the parameters come from the first.
FITTED = ("v100-16-sxm", "v100-32-sxm", "h100-sxm")

#: What stands for a class of work on every chip: shares of peaks and of bandwidth, as in
#: torch_npusim/specs, and in us what a program of eager Python costs the host per command. Those
#: in FREE are fitted; no figure of the fitted half depends on the others.
PARAMETERS = {
    "matmul": 0.8, "convolution": 0.97, "attention": 0.6, "bandwidth": 0.7, "host": 60.0,
}  # fmt: skip
FREE = ("convolution", "bandwidth", "host")
WORK = ("streaming", "matmul", "convolution", "attention")
MEDIAN, MOST = 0.15, 0.35


@functools.cache
def specification(chip):
    return specs.load(chip), Rates.of_spec(chip)


def rates_with(chip, parameters):
    """The chip's rates, with the parameters where its own sources give no share."""
    spec, rates = specification(chip)
    achievable = list(rates.achievable)
    for i, work in enumerate(WORK[1:], 1):
        if spec.sources[f"achievable.{work}"].startswith("one value"):
            achievable[i] = parameters[work]
    memory = spec.value("memory.bandwidth_gb_s") * parameters["bandwidth"]
    return dataclasses.replace(
        rates,
        achievable=tuple(achievable),
        bandwidth={**rates.bandwidth, "memory": memory},
        launch_latency_ns=round(parameters["host"] * 1e3),
    )


def predicted(figure, parameters):
    replay = figure.program().replay(rates=rates_with(figure.chip, parameters))
    # A rate of operations or bytes is measured by events around a kernel, without its launch.
    ns = replay.span_ns if figure.unit in ("ms", "img/s") else sum(replay.busy_ns.values())
    return ns / 1e6 if figure.unit == "ms" else figure.work / (ns / 1e9)


def error(figure, parameters):
    """Of the time: 0.1 means that the model says a tenth more than was measured."""
    ratio = predicted(figure, parameters) / figure.value
    return ratio - 1 if figure.unit == "ms" else 1 / ratio - 1


def fit(figures):
    """Returns the parameters that make the mean of |log of the ratio of times| least.

    A series over batch sizes counts as one figure. Coordinate descent.
    """
    series = Counter(map(series_of, figures))

    def loss(parameters):
        return sum(
            abs(math.log(1 + error(figure, parameters))) / series[series_of(figure)]
            for figure in figures
        )

    best, least = dict(PARAMETERS), math.inf
    for step in (1.3, 1.1, 1.03, 1.01):
        improved = True
        while improved:
            improved = False
            for name in FREE:
                for factor in (step, 1 / step):
                    tried = {**best, name: best[name] * factor}
                    if name != "host":
                        tried[name] = min(tried[name], 1.0)
                    if (found := loss(tried)) < least - 1e-6:
                        best, least, improved = tried, found, True
    return best


def series_of(figure):
    return figure.chip, figure.what.split(", batch")[0]


def halves():
    counted = [figure for figure in FIGURES if not figure.uncounted]
    fitted = [figure for figure in counted if figure.chip in FITTED]
    return {"fitted": fitted, "tested": [figure for figure in counted if figure not in fitted]}


def quality(figures, parameters):
    errors = [abs(error(figure, parameters)) for figure in figures]
    return statistics.median(errors), max(errors)


def table(parameters):
    """The part of the page that is made."""
    lines = ["| half | figures | median error | largest |", "|---|---|---|---|"]
    for name, figures in halves().items():
        median, most = quality(figures, parameters)
        lines.append(f"| {name} | {len(figures)} | {median:.1%} | {most:.1%} |")
    lines += [
        "",
        "| chip | figure | published | model | error of the time | |",
        "|---|---|---|---|---|---|",
    ]
    for figure in FIGURES:
        half = figure.uncounted or ("fitted" if figure.chip in FITTED else "tested")
        lines.append(
            f"| {figure.chip} | {figure.what} | {figure.value:g} {figure.unit} "
            f"| {predicted(figure, parameters):.4g} | {error(figure, parameters):+.0%} | {half} |"
        )
    return "\n".join(lines)


def rewritten(page, made):
    begin, end = "<!-- made by tools/pages/validation.py -->", "<!-- end -->"
    head, rest = page.split(begin)
    return f"{head}{begin}\n\n{made}\n\n{end}{rest.split(end)[1]}"


def main(words):
    if "--fit" in words:
        for name, figures in halves().items():
            found = fit(figures)
            print(f"on what is called {name}:", {key: round(found[key], 3) for key in FREE})
            for other, others in halves().items():
                print(
                    f"  {other}: median {{:.1%}}, largest {{:.1%}}".format(*quality(others, found))
                )
        return 0
    made = table(PARAMETERS)
    page = rewritten(PAGE.read_text(), made)
    print(made)
    if "--write" in words:
        PAGE.write_text(page)
    if "--check" in words and page != PAGE.read_text():
        print(f"{PAGE.name} is out of date: python tools/pages/validation.py --write")
        return 1
    reached = [quality(figures, PARAMETERS) for figures in halves().values()]
    return int(any(median > MEDIAN or most > MOST for median, most in reached))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
