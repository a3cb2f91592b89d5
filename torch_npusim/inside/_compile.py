# SPDX-License-Identifier: BSD-3-Clause
"""inside.compile(): a function at each stage of torch.compile, one beside the other."""

import dis
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
from torch._dynamo.backends.common import aot_autograd

from torch_npusim.inductor.compile_report import compile_report
from torch_npusim.inductor.report import CompileReport
from torch_npusim.inside._report import NO_WRAP, Drawing, Picture, Report, wrapped

_COLOURS = ("#ddf4ff", "#fff8c5", "#ffeff7", "#dafbe1", "#fbefff", "#fff1e5")
# A line of a graph that computes something; a value that it only names has no operator.
_CALL = re.compile(r'\s+(?P<name>\w+)(: "[^"]*")? = (?!\w+$)((?P<aten>torch\.ops\.[\w.]+)\()?')


@dataclass(repr=False)  # Report has one
class CompileStages(Report):
    """A function as each stage of the compiler has it.

    Attributes:
        bytecode: Of the function, as `dis` writes it.
        graphs: Dynamo's graphs, one per part of the function between graph breaks: Python code with
            the source line above each operator.
        forward: AOTAutograd's forward graphs.
        backward: AOTAutograd's backward graphs.
        report: The compile report: kernels, runs, graph breaks.
    """

    bytecode: str = ""
    graphs: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    report: CompileReport = field(default_factory=CompileReport, repr=False)
    title = "compile"

    def stages(self) -> list[tuple[str, str]]:
        """Returns (title, text) of each stage."""
        kernels = [
            f"{one.name}: {one.calls} calls, {one.bytes:.0f} bytes, {one.modelled_us:.1f} us; "
            + (", ".join(one.operators) or "an eager kernel")
            for one in self.report.kernels
        ]
        found = [("1. bytecode, which Dynamo interprets", self.bytecode)]
        for title, texts in (
            ("2. graph of Dynamo", self.graphs),
            ("3. forward graph of AOTAutograd", self.forward),
            ("3. backward graph of AOTAutograd", self.backward),
        ):
            found += [(title, text) for text in texts]
        return [
            *found,
            ("4. kernels that Inductor made", "\n".join(kernels) or "none ran on npusim"),
        ]

    def text(self) -> str:
        """Returns the stages, one under the other."""
        lines = []
        for title, text in self.stages():
            lines.append(f"== {title}")
            for line in text.splitlines():
                indent = re.match(r" *", line)
                lines += wrapped(line.strip(), indent[0] if indent else "")
        return "\n".join(lines)

    def picture(self) -> Picture:
        """Returns a drawing: operators in the colour of their source line, and kernels."""
        dynamo = [row for text in self.graphs for row in _operators(text)]
        aten = [row for text in (*self.forward, *self.backward) for row in _operators(text)]
        lines = list(dict.fromkeys(code for code, _ in (*dynamo, *aten)))
        colours = {code: _COLOURS[at % len(_COLOURS)] for at, code in enumerate(lines)}
        columns = {
            "source": [(code, code) for code in lines],
            "graph of Dynamo": dynamo,
            "graphs of AOTAutograd": aten,
            "kernels": [("", one.name) for one in self.report.kernels],
        }
        drawing = Drawing()
        x, right = 10.0, 0.0
        for title, boxes in columns.items():
            drawing.words(x, 20, title, size=13)
            wide = max([8.0 * len(text) for _, text in boxes] + [9.0 * len(title)]) + 14
            for number, (code, text) in enumerate(boxes):
                y = 32 + 36.0 * number
                drawing.box(x, y, wide, 26, fill=colours.get(code, "#f6f8fa"))
                drawing.words(x + 7, y + 17, text)
            if title == "kernels":
                for number, one in enumerate(self.report.kernels):
                    own = {_base(name) for name in (*one.operators, one.name)}
                    for at in [at for at, (_, name) in enumerate(aten) if _base(name) in own]:
                        drawing.arrow(right, 45 + 36.0 * at, x, 45 + 36.0 * number)
            right, x = x + wide, x + wide + 50
        return drawing.svg("from source lines to kernels")

    def to_html(self) -> str:
        """Returns a page with the stages beside each other."""
        from torch_npusim import _page_shell

        style = NO_WRAP + ".stages { display: flex; gap: 12px; overflow-x: auto }\n"
        style += ".stages > div { flex: 1 0 340px; min-width: 0 }\n"
        parts = [
            f"<div><h2>{escape(title)}</h2><pre>{escape(text)}</pre></div>"
            for title, text in self.stages()
        ]
        body = f"<h1>inside: compile</h1><div class='stages'>{''.join(parts)}</div>"
        return _page_shell.page("inside: compile", body, style)


def _base(operator: str) -> str:
    """Returns "mul" of aten.mul.Tensor, torch.ops.aten.mul.Tensor and aten::mul.out."""
    return (
        operator.replace("::", ".").removeprefix("torch.ops.").partition(".")[2].partition(".")[0]
    )


def _operators(graph: str) -> list[tuple[str, str]]:
    """Returns (source line, operator) of each call in the text of a graph."""
    found, code = [], ""
    for line in graph.splitlines():
        _, is_source, told = line.partition(", code: ")
        if line.lstrip().startswith("# File:") and is_source:
            code = told.strip()
        elif call := _CALL.match(line):
            found.append((code, call["aten"] or call["name"]))
    return found


def compile(function: Callable[..., Any], *args: Any, **kwargs: Any) -> CompileStages:
    """Compiles a function and shows it at each stage: bytecode, graphs, kernels.

    The function runs five times.

    Args:
        function: A function or the `forward` of a module.
        *args: Its arguments.
        **kwargs: Likewise.

    Returns:
        The report; `print()` shows it, a page has the stages beside each other.
    """
    stages = CompileStages()
    written = io.StringIO()
    plain = function.forward if isinstance(function, torch.nn.Module) else function
    dis.dis(plain, file=written)
    stages.bytecode = written.getvalue().strip("\n")

    def keeping(into: list[str]) -> Callable[..., Any]:
        def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
            into.append(_readable(graph))
            return make_boxed_func(graph.forward)

        return compiler

    aot = aot_autograd(fw_compiler=keeping(stages.forward), bw_compiler=keeping(stages.backward))

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        stages.graphs.append(_readable(graph))
        return aot(graph, inputs)

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args, **kwargs)
    stages.report = compile_report(function, *args, **kwargs)
    return stages


def _readable(graph: torch.fx.GraphModule) -> str:
    text = graph.print_readable(print_output=False)
    return "\n".join(line for line in text.splitlines() if line.strip())
