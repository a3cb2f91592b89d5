# SPDX-License-Identifier: BSD-3-Clause
"""Code that did not run compiled: graph breaks and functions that Dynamo gave up, each once.

Importing this module loads nothing of the compiler, so that a test runner can watch every test.
"""

import linecache
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch_npusim._after_import import after_import
from torch_npusim._blame import file_line

_MODULE = "torch._dynamo.utils"
_MOST_FRAMES = 100_000  # the compiler remembers its last 64 compilations only

#: First words of Dynamo's reason -> what to write instead.
ADVICE: dict[str, str] = {
    "Data-dependent branching": "compute both sides and choose with torch.where(); if that is too "
    "expensive, write the branch with torch.cond()",
    "generic_jump": "compute both sides and choose with torch.where(); if that is too expensive, "
    "write the branch with torch.cond()",
    "Unsupported Tensor.item()": "keep the value a tensor, or set "
    "torch._dynamo.config.capture_scalar_outputs = True",
    "Dynamic shape operator": "replace nonzero(), unique() and x[mask] by torch.where(), or set "
    "torch._dynamo.config.capture_dynamic_output_shape_ops = True",
    "Failed to trace builtin operator": "call print() outside of the compiled function, or add it "
    "to torch._dynamo.config.reorderable_logging_functions",
    "Skip calling `torch.compiler.disable()`d": "call the disabled function outside of the "
    "compiled one",
    "Skip inlining `torch.compiler.disable()`d": "call the disabled function outside of the "
    "compiled one",
    "Attempted to call function marked as skipped": "make the function an operator with "
    "torch.library.custom_op(), or call it outside of the compiled function",
    "Call to `torch._dynamo.graph_break()`": "remove the call",
    "Unsupported Tensor.backward() call": "call backward() outside of the compiled function",
    "Unsupported context manager": "enter the context manager outside of the compiled function",
    "Graph break under GenericContextWrappingVariable": "enter the context manager outside of the "
    "compiled function",
    "Dynamo recompile limit exceeded": "pass numbers that change as tensors, or sizes that change "
    "with torch.compile(dynamic=True)",
    "Attempt to trace generator": "return a list instead of yielding",
    "Fake tensor propagation exception": "run the function once without the compiler: its operator "
    "refuses these arguments",
    "BackendCompilerFailed": "run it with torch.compile(backend='eager'): if that works, the "
    "defect is the backend's",
}


@dataclass(frozen=True)
class Uncompiled:
    """Code that torch.compile() was asked to compile, and that runs as it is.

    Attributes:
        kind: "graph break": the line; "skipped function": all of it, because of the line;
            "recompile limit": all later calls of the function with new guards; "error": all of it.
        place: "file:line" in the user's code.
        function: The name of the function.
        code: The line.
        reason: Dynamo's reason.
        instead: The alternative to write.
    """

    kind: str
    place: str
    function: str
    code: str
    reason: str
    instead: str


class Watch:
    """Remembers what the compiler had done; start() and stop() enclose what is watched."""

    def start(self) -> None:
        """Begins."""
        self._limit: int | None = None
        self._breaks = self._compilations = 0
        if (dynamo := _dynamo()) is not None:
            self._limit = dynamo._compilation_metrics.maxlen
            self._breaks = len(dynamo.graph_break_reasons)
            self._compilations = len(dynamo._compilation_metrics)
        after_import(_MODULE, _remember_all)

    def stop(self) -> None:
        """Ends. Findings stay."""
        dynamo = _dynamo()
        self.compilations: list[Any] = []
        self.found: list[Uncompiled] = []
        if dynamo is None:
            return
        self.compilations = list(dynamo._compilation_metrics)[self._compilations :]
        reasons = dynamo.graph_break_reasons
        # torch._dynamo.reset() forgets the breaks before it.
        known = self._breaks if len(reasons) >= self._breaks else 0
        self.found = _uncompiled(reasons[known:], list(dynamo._compilation_metrics), self)
        dynamo.set_compilation_metrics_limit(
            self._limit or dynamo.DEFAULT_COMPILATION_METRICS_LIMIT
        )


def _dynamo() -> ModuleType | None:
    return sys.modules.get(_MODULE)


def _remember_all() -> None:
    sys.modules[_MODULE].set_compilation_metrics_limit(_MOST_FRAMES)


def _uncompiled(reasons: list[Any], known: list[Any], watch: Watch) -> list[Uncompiled]:
    functions = {_number(m): m for m in known if m.co_filename is not None}
    failed = [
        _failure(m, functions.get(_number(m), m))
        for m in watch.compilations
        if m.fail_type and not str(m.fail_reason).startswith("No ops traced")
    ]
    given_up = {one.function for one in failed if one.kind != "recompile limit"}
    breaks = [
        _graph_break(one)
        for one in reasons
        if not (one.user_stack and one.user_stack[0].name in given_up)
    ]
    # A break in an inlined function is told of its caller too.
    return list({one.place or one.reason: one for one in failed + breaks}.values())


def _number(compilation: Any) -> str:
    return str(compilation.compile_id).partition("/")[0]


def _failure(compilation: Any, function: Any) -> Uncompiled:
    reason = str(compilation.fail_reason)
    kind = "error" if compilation.fail_type != "Unsupported" else "skipped function"
    if reason.startswith("Dynamo recompile limit"):
        kind = "recompile limit"
    file, line = compilation.fail_user_frame_filename, compilation.fail_user_frame_lineno
    if file is None or kind == "recompile limit":
        file, line = function.co_filename, function.co_firstlineno
    head = compilation.fail_type if kind == "error" else ""
    return _made(kind, file, line, function.co_name or "", reason, head)


def _graph_break(found: Any) -> Uncompiled:
    stack = found.user_stack
    file, line, name = (
        (stack[-1].filename, stack[-1].lineno, stack[0].name) if stack else (None, None, "")
    )
    return _made("graph break", file, line, name, str(found.reason), "")


def _made(
    kind: str, file: str | None, line: int | None, name: str, text: str, head: str
) -> Uncompiled:
    explanation = re.search(r"Explanation: (.*)", text)
    first = text.splitlines()[0] if text else ""
    reason = ": ".join(part for part in (head, first) if part)
    if explanation:
        reason += f": {explanation[1]}"
    own = [advice for begin, advice in ADVICE.items() if reason.startswith(begin)]
    return Uncompiled(
        kind,
        file_line(file, line or 0) if file else "",
        name,
        linecache.getline(file, line).strip() if file and line else "",
        reason,
        own[0] if own else " ".join(re.findall(r"Hint: (.*)", text)),
    )
