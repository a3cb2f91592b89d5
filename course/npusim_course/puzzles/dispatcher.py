# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on the dispatcher."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from npusim_course.judge import Puzzle, Wrong, expect
from torch_npusim.inside import _tables, dispatch

_Context = Callable[[], AbstractContextManager[object]]


def _first(answer: Callable[[torch.Tensor, bool], str]) -> None:
    contexts: dict[str, _Context] = {
        "no context": nullcontext,
        "torch.no_grad()": torch.no_grad,
        "torch.inference_mode()": torch.inference_mode,
    }
    for device in ("cpu", "npusim"):
        for name, context in contexts.items():
            for grad in (False, True):
                with context():
                    x = torch.ones(3, device=device, requires_grad=grad)
                    right = dispatch(torch.sin, x).calls[0].hops[0].key
                    given = answer(x, name == "torch.inference_mode()")
                plain = "CPU" if device == "cpu" else "PrivateUse1"
                mistakes = {}
                if right != plain and "no_grad" in name:
                    mistakes["no_grad() takes no key away; autograd's kernel runs and records "
                             "nothing."] = plain  # fmt: skip
                elif right != plain and not grad:
                    mistakes["The key of autograd is in every tensor's set; requires_grad decides "
                             "within its kernel."] = plain  # fmt: skip
                if right == plain:
                    mistakes["inference_mode() takes autograd's keys away, which no_grad() does "
                             "not."] = f"Autograd{plain}"  # fmt: skip
                mistakes["Autocast's key is in every tensor's set too; the thread excludes it "
                         "while autocast is off."] = f"Autocast{plain}"  # fmt: skip
                mistakes["ADInplaceOrView stands below autograd, and has no kernel for sin."] = (
                    "ADInplaceOrView"
                )
                case = f"torch.sin(x), x on {device} with requires_grad={grad}, under {name}"
                expect(given, right, case, mistakes)


def _scale(answer: Callable[[torch.library.Library], None]) -> None:
    library = torch.library.Library("npusim_course", "DEF")  # type: ignore[no-untyped-call]
    try:
        library.define("scale(Tensor x, float by) -> Tensor")  # type: ignore[no-untyped-call]
        answer(library)
        operator = torch.ops.npusim_course.scale
        for device in ("cpu", "npusim"):
            x = torch.ones(3, device=device, requires_grad=True)
            try:
                made = operator(x, 3.0)
            except NotImplementedError:
                raise Wrong(
                    f"{device} has no kernel: a key of one device serves that device alone."
                ) from None
            if not torch.equal(made.detach().cpu(), torch.full((3,), 3.0)):
                raise Wrong(f"on {device} the result is {made.tolist()}, not 3.0 in each place.")
            if not made.requires_grad:
                raise Wrong(
                    f"on {device} the result has no gradient: the kernel stands below autograd; "
                    "nobody has given a formula."
                )
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                made.sum().backward()
            if any("autograd kernel was not registered" in str(one.message) for one in told):
                raise Wrong(
                    f"on {device} backward() warns: the kernel stands below autograd, and nobody "
                    "has given a formula; only a kernel in Python can be followed from there."
                )
            if x.grad is None:
                raise Wrong(
                    f"on {device} the operator has no gradient: its kernel stands below autograd; "
                    "nobody has given a formula."
                )
            if not torch.equal(x.grad.cpu(), torch.full((3,), 3.0)):
                raise Wrong(
                    f"on {device} the gradient is {x.grad.tolist()}, not `by` in each place."
                )
            try:
                with torch.inference_mode():
                    operator(torch.ones(3, device=device), 3.0)
            except NotImplementedError:
                raise Wrong(
                    f"on {device} there is no kernel under inference_mode(), which takes "
                    "autograd's keys away: a kernel under Autograd serves nobody there."
                ) from None
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _highest(answer: Callable[[tuple[str, ...]], str]) -> None:
    cases = (
        ("ADInplaceOrView", "AutogradCPU", "AutocastCPU", "CPU"),
        ("BackendSelect", "Python", "AutogradCPU", "CPU"),
        ("PrivateUse1", "BackendSelect"),
        ("FuncTorchBatched", "AutocastCPU", "AutogradCPU"),
    )
    given = [answer(keys) for keys in cases]
    by_place = any(given == [keys[place] for keys in cases] for place in (0, -1))
    for keys, made in zip(cases, given, strict=True):
        every = _tables.key_set(keys[0])
        for key in keys[1:]:
            every |= _tables.key_set(key)
        expect(
            made,
            _tables.highest(every),
            f"the keys {', '.join(keys)}",
            {
                "The order in which keys are named says nothing.": made if by_place else None,
                "The backend is what remains: its key comes last.": next(
                    (key for key in keys if key in ("CPU", "PrivateUse1")), ""
                ),
                "Autograd stands below autocast and functorch, and above Python and views.": next(
                    (key for key in keys if key.startswith("Autograd")), ""
                ),
                "Python's key stands low: a mode sees what is left when autograd has run.": next(
                    (key for key in keys if key == "Python"), ""
                ),
            },
        )


#: Operator -> the word for its fault, and the sentence for each other word that comes near.
_FAULTS: dict[str, tuple[str, dict[str, str]]] = {
    "twice": ("replaced", {
        "fine": "Two kernels stand under CPU: the later one is in force, and the first never runs.",
    }),
    "lost": ("undefined", {
        "elsewhere": "No schema has that name: it is misspelt, or its library is not loaded.",
        "fine": "A kernel without a schema is accepted in silence, and no call can reach it.",
    }),
    "of_cuda": ("elsewhere", {
        "undefined": "The schema is there; the kernel stands under CUDA alone.",
        "fine": "A tensor of npusim has the key PrivateUse1, and no kernel stands there.",
    }),
    "both": ("no gradient", {
        "fine": "A kernel of a device beside CompositeImplicitAutograd takes its formula away.",
        "replaced": "Nothing is replaced: the keys differ. The kernel of the device goes first.",
    }),
    "sound": ("fine", {
        "no gradient": "A kernel under CompositeImplicitAutograd gets its gradient from its parts.",
    }),
}  # fmt: skip


def _faults(answer: Callable[[str], str]) -> None:
    library = torch.library.Library("npusim_faulty", "DEF")  # type: ignore[no-untyped-call]
    other = torch.library.Library("npusim_faulty", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for name in set(_FAULTS) - {"lost"}:
            library.define(f"{name}(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
        implicit = "CompositeImplicitAutograd"
        for made, name, key in (
            (other, "lost", "CPU"), (library, "twice", "CPU"), (other, "twice", "CPU"),
            (library, "of_cuda", "CUDA"), (library, "both", implicit),
            (library, "both", "PrivateUse1"), (library, "sound", implicit),
        ):  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it says that a kernel is replaced
                made.impl(  # type: ignore[no-untyped-call]
                    name, torch.clone, key, allow_override=True
                )
        for name, (right, told) in _FAULTS.items():
            mistakes = {sentence: word for word, sentence in told.items()}
            expect(answer(f"npusim_faulty::{name}"), right, name, mistakes)
    finally:
        other._destroy()  # type: ignore[no-untyped-call]
        library._destroy()  # type: ignore[no-untyped-call]


PUZZLES = [
    Puzzle(
        "Name the key whose kernel torch.sin(x) runs first. The second argument says whether "
        "inference_mode() is on.",
        'def answer(x, inference):\n    return "CPU"\n',
        "inside.dispatch(torch.sin, x) shows it; try no_grad() and inference_mode() too.",
        _first,
    ),
    Puzzle(
        "Register one kernel of scale(Tensor x, float by) -> Tensor that multiplies on every "
        "device, with a gradient.",
        "def answer(library):\n    pass\n",
        "library.impl(name, function, key): which key stands above autograd, for all devices?",
        _scale,
    ),
    Puzzle(
        "Return the name of the key that the dispatcher looks at first. The keys are given in any "
        "order.",
        "def answer(keys):\n    return keys[-1]\n",
        "torch._C.DispatchKeySet and its highestPriorityTypeId() show the order; a list is enough.",
        _highest,
    ),
    Puzzle(
        "Name what is wrong with an operator: 'replaced', 'undefined', 'elsewhere', 'no gradient' "
        "or 'fine', for tensors of npusim.",
        'def answer(name):\n    return "fine"\n',
        "inside.registration(name): its problems, and the keys of its operators' registrations.",
        _faults,
    ),
]
