# SPDX-License-Identifier: BSD-3-Clause
"""The rule books (docs/reference/rules.md): their rows, and the operators that ran wider.

>>> before = torch.npusim.set_rules("cuda")
>>> half = torch.ones(8, dtype=torch.half, device="npusim")
>>> torch.fft.rfft(half).dtype  # the CPU has no Fourier transform of it
torch.complex32
>>> widened_calls()["aten::fft_rfft"] > 0
True
>>> _ = torch.npusim.set_rules(before)

The rows are those of cuda_rules.csv; csrc/cuda_rules/cuda_rules.cpp enforces them. Of an operator's
rows of one verdict the first that holds acts, so rows with a condition come first.
"""

import csv
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from torch_npusim import _C
from torch_npusim._changes import is_version
from torch_npusim.sim.specs import capability

__all__ = [
    "Rule", "allow_cpu_kernels", "get_cpu_kernels", "get_device_assert", "get_rules", "rows",
    "set_cpu_kernels", "set_device_assert", "set_rules", "widened_calls",
]  # fmt: skip

CPU_ONLY = "cpu only"
_CAPABILITY = "capability<"
_FILE = Path(__file__).parents[1] / "cuda_rules.csv"
_BOOKS = ("off", "cuda")

#: Operators that have a kernel for CUDA which is not registered in a build of torch or of the
#: library for the CPU. The first ones: torch's aten/src/ATen/native/quantized/{cuda,cudnn}.
CPU_KERNELS = (
    "quantized::add", "quantized::add_relu", "quantized::conv[12]d*", "quantized::linear",
    "quantized::linear_relu", "quantized::linear_prepack", "quantized::max_pool2d",
    "quantized::embedding_bag_byte*", "quantized::embedding_bag_4bit*", "quantization::*",
    "c10d::check_for_nan",
    "torchvision::*", "torchaudio::*", "torch_scatter::*", "torch_sparse::*", "torch_cluster::*",
    "pyg::*", "fbgemm::*",
)  # fmt: skip

#: Rows of some versions of torch: operators, verdict, dtype ("" any) and the versions.
#: pytorch/pytorch 191301 (angle of half numbers) and 180890 (transforms of bfloat16).
VERSIONS = (
    ("aten::angle*", "refuse", "", "<2.14"),
    ("aten::fft_*", "keep", "bfloat16", ">=2.14"),
)


class Rule(NamedTuple):
    """A row of the rule book.

    Attributes:
        operator: The overload: "aten::mm", "aten::mm.out".
        verdict: "refuse" (the dtypes), "nondeterministic" (alerts under
            torch.use_deterministic_algorithms()), "cpu only" (no kernel for CUDA; `when` is the
            kind of tensors), "widen", "keep", "statistics", "fft" and "sum_of_numbers" (CUDA
            has what the CPU lacks: computed in a wider dtype), "assume" (takes `text` for an
            argument), "asserts" (an index out of range is a device-side assert), "by zero" (a
            quotient of integers by zero is no error, and undefined).
        when: Condition of an argument: "weights" (given), "mode=2", "reduce=prod|amin",
            "reduction!=0", "driver=None", "output_size resizes", "self.size(0)<=16",
            "self.size(1)%8", "self.dim()>24"; or "capability<8.9"; or "Sparse", for tensors of
            that kind; "" always.
        dtypes: Names of dtypes of the first tensor, with blanks between; "" all.
        text: CUDA's name of the kernel or its whole text; the wider dtype; the assumed argument.
        source: Where this is known from.
    """

    operator: str
    verdict: str
    when: str
    dtypes: str
    text: str
    source: str


@cache
def rows() -> tuple[Rule, ...]:
    """Returns the rule book for CUDA, as of the installed version of torch."""
    return tuple(rule for rule in rows_of_all_versions() if is_of_this_torch(rule))


def rows_of_all_versions() -> list[Rule]:
    """Returns all rows of the file."""
    with _FILE.open(newline="") as file:
        return [Rule(*row) for row in list(csv.reader(file))[1:]]


def is_of_this_torch(rule: Rule) -> bool:
    """Returns whether CUDA of the installed version of torch has this rule."""
    return all(
        is_version(versions)
        for operators, verdict, dtype, versions in VERSIONS
        if fnmatchcase(rule.operator, operators)
        and rule.verdict == verdict
        and dtype in ("", rule.dtypes)
    )


_asked = "auto"
_in_force = "off"


def set_rules(book: str) -> str:
    """Sets the rules for operators: "off", "cuda", or "auto", which is "cuda" under the CUDA alias.

    At first NPUSIM_RULES says. Not while other threads call operators.

    Returns:
        The book that was asked for before, to be set again: get_rules() never says "auto".

    Raises:
        ValueError: For any other book.
    """
    global _asked
    if book not in ("auto", *_BOOKS):
        raise ValueError(f"set_rules() takes 'auto', 'off' or 'cuda'; got {book!r}")
    before, _asked = _asked, book
    follow_alias()
    return before


def get_rules() -> str:
    """Returns the rules in force: "off" or "cuda"."""
    return _in_force


def follow_alias() -> None:
    """Puts the rules in force that were asked for, now that the CUDA alias is on or off."""
    global _in_force
    aliased = torch._C._get_privateuse1_backend_name() == "cuda"
    book = ("cuda" if aliased else "off") if _asked == "auto" else _asked
    if book == _in_force:
        return
    in_force = [row for row in rows() if _is_of_this_chip(row)] if book == "cuda" else []
    _C.set_rules(
        [
            (
                rule.operator,
                rule.verdict,
                "" if rule.when.startswith(_CAPABILITY) else rule.when,
                [getattr(torch, name) for name in rule.dtypes.split()],
                rule.text,
            )
            for rule in in_force
            if rule.verdict != CPU_ONLY
        ]
    )
    of_torch = [(rule.operator, rule.when) for rule in in_force if rule.verdict == CPU_ONLY]
    _C.set_cpu_only(book == "cuda", of_torch)
    _C.set_judged_capability(*(capability() if book == "cuda" else (0, 0)))
    _in_force = book


def _is_of_this_chip(rule: Rule) -> bool:
    if not rule.when.startswith(_CAPABILITY):
        return True
    major, _, minor = rule.when.removeprefix(_CAPABILITY).partition(".")
    return capability() < (int(major), int(minor))


_cpu_kernels: tuple[str, ...] = CPU_KERNELS


def get_cpu_kernels() -> tuple[str, ...]:
    """Returns the patterns of operators whose kernels for the CPU may run under the rules."""
    return _cpu_kernels


def set_cpu_kernels(patterns: Iterable[str]) -> None:
    """Sets these patterns (`zz::f`, `zz::*`). Not while other threads call operators."""
    global _cpu_kernels
    _cpu_kernels = tuple(patterns)
    _C.set_cpu_kernels(_cpu_kernels)


def allow_cpu_kernels(*patterns: str) -> None:
    """Lets operators run the CPU's kernel although CUDA has none that is known here.

    Under the rules an operator registered for "CPU" alone raises NotImplementedError. Exceptions
    are operators with a kernel for CUDA in another build, and those a test may take from the CPU.
    """
    set_cpu_kernels((*_cpu_kernels, *patterns))


set_cpu_kernels(CPU_KERNELS)


def widened_calls() -> dict[str, int]:
    """Returns how often each operator ran in a wider dtype, because the CPU lacks CUDA's kernel.

    Its results are rounded once; CUDA's may differ in the last place.
    """
    return _C.widened_calls()


def get_device_assert() -> str:
    """Returns when an index out of range is reported: "now", "lasting" or "late"."""
    return _C.get_device_assert()


def set_device_assert(when: str) -> None:
    """Sets when an index out of range is reported under the rules; NPUSIM_DEVICE_ASSERT at first.

    Args:
        when: "now", an error of the call; "lasting": torch.AcceleratorError of the call and of
            each call after it, until torch_npusim.sim.faults.clear(); or "late": what is computed
            is undefined, and the next synchronising call is the first to raise.
    """
    _C.set_device_assert(when)
