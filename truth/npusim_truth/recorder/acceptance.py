# SPDX-License-Identifier: BSD-3-Clause
"""Section acceptance: what is accepted, refused, waited for, warned of and captured."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import Any, Callable

from .batches import Question, batch
from .device import backward, short, tensors
from .operators import DTYPES, called, described, one_per_operator, operators, samples
from .privacy import is_poisonous, said
from .rules import rule_call, rule_rows


@batch("acceptance", "rules", env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
def _rule_questions() -> Iterator[Question]:
    """Yields a question per row: the call as it is, and where determinism is requested."""
    import torch

    def ask(*words: str) -> Any:
        text = rule_call(*words)
        found: dict[str, Any] = {"call": text, "said": []}
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
                found["said"].append("{}: {}".format(kind, heard.partition("\n")[0][:200]))
            finally:
                torch.use_deterministic_algorithms(False)
        return found

    for name, what, *words in rule_rows():
        if what != "asserts":
            key = f"rules|aten::{name}|{what}"
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
        found: dict[str, Any] = {"call": text, "said": []}
        last = "torch.ones(1, device='cuda').add(1)"
        for step in ("torch.cuda.synchronize()", text, "torch.cuda.synchronize()", last):
            try:
                eval(step, {"torch": torch})
                found["said"].append("ok")
            except Exception as error:
                kind, words = said(error)
                found["said"].append("{}: {}".format(kind, words.partition("\n")[0]))
        return found

    for name, what, *words in rule_rows():
        if what == "asserts":
            make = functools.partial(rule_call, name, what, *words)
            yield f"asserts|aten::{name}", functools.partial(ask, make)
    for name, text in ASSERTS.items():
        yield f"asserts|{name}", functools.partial(ask, functools.partial(str, text))


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
            outcomes.append("{}: {}".format(kind, text.partition("\n")[0][:160]))
    return {"call": described(name, found[0]), "said": outcomes}


def _overloads(name: str, dtype: str) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

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
    return sorted({"{}: {}".format(*each) for each in texts})


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
        yield f"accepts|{name}|{dtype}", functools.partial(_accepts, name, dtype)
    for name in operators():
        # A rule is about an overload: so it finds its answers.
        yield f"calls|{name}", functools.partial(_overloads, name, "float32")
    kinds = {"alerts": _alerts, "warns": _warns, "waits": _waits, "captures": _captures}
    for kind, ask in kinds.items():
        yield from one_per_operator(kind, ask)
