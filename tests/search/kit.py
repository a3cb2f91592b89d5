# SPDX-License-Identifier: BSD-3-Clause
"""Any operator with one fault in one of its kernels, judged by the conformance kit.

Oracle: a fault that changed a result makes a case fail, and the case passes without the fault.
An operator without a fault fails no case, whatever the seed of its samples.
"""

import functools

from engine import Program

START = """
import sys, warnings
sys.path.insert(0, "conformance")
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from npusim_conformance.backend import device, expectations
from npusim_conformance.cases import catalog
from npusim_conformance.cases.known import properties
from npusim_conformance.inputs import torch_testing
from npusim_conformance.judge import agreement  # of plants, as the next
from npusim_conformance.properties import memory
from npusim_conformance.run.worker import Worker, WorkerConfig
from npusim_conformance.verdict import UNEXPECTED
torch.npusim.init()
kept, subjects = [], catalog._subjects_of(properties()["op", "forward"])
SMOKE = {name for (kind, name), p in properties().items() if kind == "op" and "smoke" in p.profiles}
DECLARED = expectations.load("tests/conformance/npusim.toml")
# These look at other things than values, or hold the device against itself.
BLIND = "canary meta fake fake_backward fallback serialization copy_on_write math_bits memory"
BLIND = {*BLIND.split(), "errors", "overload"}
OTHERS = {"leak": BLIND - {"memory"}, "operand": BLIND - {"canary"},
          "precision": BLIND | {"noncontiguous"},
          "strides": BLIND | {"edges"},  # a derivative divides on its way
          "order": BLIND | {"edges", "modes", "noncontiguous", "numpy"}}

def cases(name):
    named = [(p, catalog._subjects_of(p)) for (kind, _), p in properties().items() if kind == "op"]
    of = [(p, s[name]) for p, s in named if name in s and "standard" in p.profiles]
    of.sort(key=lambda pair: pair[0].name not in SMOKE)
    few = [p.profiles.get("smoke", p.profiles["standard"]) for p, _ in of]
    return [str(case) for (p, s), f in zip(of, few) for case in catalog._cases_of(p, s, f)]

def judge(case, seed):
    samples = (8, 4)[case.split("/")[1] in SMOKE]
    config = WorkerConfig("npusim", "torch_npusim", DECLARED, seed, samples)
    try:
        outcome = DECLARED.judge(Worker(config).execute(case))
    except device.DeviceUnusable as error:  # a kernel that the kit itself needs
        return str(error)
    return f"{case}: {outcome.message}" if outcome.status in UNEXPECTED else ""
def tensors(tree):
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)
            and x.layout == torch.strided and x.device.type == "npusim"]

values = lambda x: x.cpu().nan_to_num(7)
def differ(x, y):
    strides = zip(x.shape, x.stride(), y.stride())
    return (x.dtype, x.shape, x.device) != (y.dtype, y.shape, y.device) or x.numel() and (
        any(n > 1 and s != t for n, s, t in strides) or not torch.equal(values(x), values(y)))

def changed(x, at):
    y = x.clone(memory_format=torch.contiguous_format)
    one = y.view(-1)[at(x.numel()):][:1]
    one.copy_(~one if x.dtype == torch.bool else one * 2 + 1)
    return y if 0 in x.stride() else x.clone().copy_(y)

def other_strides(x):
    back = tuple(range(x.dim()))[::-1]
    return x.permute(back).clone(memory_format=torch.contiguous_format).permute(back)

OTHER = {torch.float32: torch.float64, torch.int64: torch.int32, torch.bool: torch.uint8}
FAULTS = {
    "sign": lambda x: ~x if x.dtype == torch.bool else -x,
    "first": lambda x: changed(x, lambda n: 0),
    "last": lambda x: changed(x, lambda n: max(0, n - 1)),
    "middle": lambda x: changed(x, lambda n: n // 2),
    "precision": lambda x: x.half().to(x.dtype) if x.is_floating_point() else x,
    "nan": lambda x: x.nan_to_num(0, 1, -1) if x.is_floating_point() else x,
    "stale": lambda x: next(k for k in [*kept, x] if (k.shape, k.dtype) == (x.shape, x.dtype)),
    "dtype": lambda x: x.to(OTHER.get(x.dtype, torch.float32)),
    "strides": other_strides,
    "device": lambda x: x.to(f"npusim:{1 - x.device.index}") if x.dim() else x,
    "host": lambda x: x.cpu(),
    "shape": lambda x: x[None],
    "short": lambda x: x[:-1] if x.dim() else x,
    "leak": lambda x: x,
    "operand": lambda x: x,
}
WHEN = {
    "always": lambda given, x: True,
    "gaps": lambda given, x: any(not y.is_contiguous() for y in given),
    "offset": lambda given, x: any(y.storage_offset() for y in given),
    "scalar": lambda given, x: any(not y.dim() for y in given),
    "long": lambda given, x: x.numel() > 16,
    "odd": lambda given, x: x.numel() % 4,
    "second": lambda given, x: x.device.index == 1,
}

class Kernel:
    def __init__(self, overload, what, when):
        self.right = torch.library.get_kernel(overload, "PrivateUse1")
        self.what, self.when, self.inside, self.shows = what, when, False, 0
        self.in_place = overload.split(".")[0].endswith("_")

    def __call__(self, keys, *args, **options):
        if self.inside:
            return self.right.call_boxed(keys, *args, **options)
        self.inside = True
        try:
            given = tensors((args, options))
            before = [values(x) for x in given]
            result = self.right.call_boxed(keys, *args, **options)
            return pytree.tree_map(lambda x: self.wrong(x, given, before, result), result)
        finally:
            self.inside = False

    def wrong(self, x, given, before, result):
        if not tensors([x]) or not self.when(given, x) or self.in_place and self.what == "dtype":
            return x
        if self.what == "operand":
            for g, b in zip(given, before):
                if not any(g is r for r in tensors(result)) and 0 not in g.stride():
                    self.shows += not torch.equal(values(g.logical_not_()), b)
            return x
        y, old = FAULTS[self.what](x), x.clone()
        if self.in_place or any(x is g for g in given):  # in place, or out=
            y = x.copy_(y) if y.shape == x.shape else x
            self.shows += not torch.equal(values(old), values(x))
        elif torch._C._current_graph_task_id() < 0 or self.what not in ("dtype", "shape", "host"):
            self.shows += differ(x, y)  # autograd fits the others
        if self.what in ("leak", "stale"):
            kept.append(old)
            self.shows += self.what == "leak" and x.nbytes > 0
        return y

class Seen(TorchDispatchMode):
    names = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names = tuple(dict.fromkeys([*self.names, function._name]))
        return function(*args, **(kwargs or {}))
def silent(name, seed):
    assert not (said := [*filter(None, (judge(c, seed) for c in cases(name)))]), f"accused: {said}"

def found(name, seed, kernel, what, when="always"):
    with Seen() as seen:
        for case in cases(name)[:7]:
            judge(case, seed)
    info = subjects[name].info
    own = {f"{info.aten_name}{end}" for end in ("", "_", "_backward")} | {info.aten_backward_name}
    names = [n for n in seen.names if n[6:].split(".")[0] in own
             and torch._C._dispatch_has_kernel_for_dispatch_key(n, "PrivateUse1")]
    overload = (names or [""])[kernel % max(1, len(names))]
    if overload in ("", "aten::empty.memory_format"):  # the kit allocates with it
        return
    elementwise = torch_testing.shape_rule(info) in ("unary", "binary") and "back" not in overload
    kind = "order" if what == "strides" and not elementwise else what
    fault, table = Kernel(overload, what, WHEN[when]), torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):
        table.impl(overload.removeprefix("aten::"), fault, "PrivateUse1", with_keyset=True)
    shows = []
    try:
        for case in [c for c in cases(name) if what != "leak" or "/memory/" in c]:
            fault.shows = 0
            if said := judge(case, seed):
                break
            if fault.shows and case.split("/")[1] not in OTHERS.get(kind, BLIND):
                shows.append(case.split("/")[1])
    finally:
        table._destroy()
        kept.clear()
    assert said or not shows, f"{overload} is not found: {what} {when}, which shows in {shows}"
    assert not said or not (said := judge(case, seed)), f"accused: {said}"
"""
METADATA = "dtype shape device host leak".split()
FAULTS = [*METADATA, *"sign first last middle precision nan stale strides short operand".split()]
WHEN = "gaps offset scalar long odd second".split()


@functools.cache
def operators():
    """Names of the kit's operators; True where no value is known."""
    from npusim_conformance.cases import catalog
    from npusim_conformance.cases.known import properties
    from npusim_conformance.properties.base import values_are_defined

    drawn = properties()["op", "random"].subjects()
    named = catalog._subjects_of(properties()["op", "forward"])
    return [(n, n in drawn or not values_are_defined(one.info)) for n, one in named.items()]


def program(random) -> Program:
    """Six operators: some whole, most with a fault."""
    lines = []
    while len(lines) < 6:
        (name, drawn), seed = random.choice(operators()), random.randrange(100)
        what = random.choice(METADATA if drawn else FAULTS)
        when = f", {random.choice(WHEN)!r}" if what != "leak" and random.random() < 0.5 else ""
        fault = f"found({name!r}, {seed}, {random.randrange(6)}, {what!r}{when})"
        lines.append(fault if random.random() < 0.85 else f"silent({name!r}, {seed})")
    return Program(tuple(lines), START)
