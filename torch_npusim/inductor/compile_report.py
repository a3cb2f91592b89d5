# SPDX-License-Identifier: BSD-3-Clause
"""The compiler's work on a program, and its gain: torch_npusim.compile_report()."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch._dynamo.callback import callback_handler as handler
from torch._inductor import config as inductor_config

from torch_npusim import _C
from torch_npusim._blame import file_line
from torch_npusim.inductor import runtime
from torch_npusim.inductor.report import CompileReport, Frame, Kernel, Run
from torch_npusim.inductor.uncompiled import Watch


def compile_report(function: Callable[..., Any], *args: Any, **kwargs: Any) -> CompileReport:
    """Runs a function eagerly, compiles it, and says what the compiler did with it.

    The function is called three times: eagerly, compiled for the first time, and compiled again,
    which is the run whose commands are counted. It sees the same arguments each time.

    Args:
        function: A function or a module; one that torch.compile() made is used as it is.
        *args: Its arguments.
        **kwargs: Likewise.

    Returns:
        The report; `print()` shows it.
    """
    report = CompileReport()
    compiled = function if _is_compiled(function) else torch.compile(function)
    torch._dynamo.reset()
    with torch.compiler.set_stance("force_eager"), counted_commands() as rows:
        compiled(*args, **kwargs)
    report.eager = _run(rows)
    with watched_compiler(report):
        compiled(*args, **kwargs)
        with counted_commands() as rows:
            report.value = compiled(*args, **kwargs)
    report.compiled, report.kernels = _run(rows), _kernels(rows)
    return report


def _is_compiled(function: Any) -> bool:
    return isinstance(function, torch._dynamo.OptimizedModule) or hasattr(
        function, "_torchdynamo_orig_callable"
    )


@contextmanager
def counted_commands() -> Iterator[dict[str, dict[str, float]]]:
    """Yields a dictionary that holds, at the end, what each command of the device cost, by name.

    Commands of the compiler itself are left out.
    """
    rows: dict[str, dict[str, float]] = {}
    tallies: list[int] = []  # the open one, if any

    def end(_: Any = None) -> None:
        while tallies:
            for name, row in _C.end_command_tally(tallies.pop()).items():
                before = rows.setdefault(name, dict.fromkeys(row, 0))
                for figure, value in row.items():
                    before[figure] += value

    def begin(_: Any = None) -> None:
        tallies.append(_C.begin_command_tally())

    begin()
    # The compiler's own commands, such as those of Inductor's patterns, are not the program's.
    handler.register_start_callback(end)
    handler.register_end_callback(begin)
    try:
        yield rows
    finally:
        with suppress(ValueError):  # torch._dynamo.reset() forgets them
            handler.remove_start_callback(end)
            handler.remove_end_callback(begin)
        end()


def _run(rows: dict[str, dict[str, float]]) -> Run:
    return Run(
        int(sum(row["calls"] for row in rows.values())),
        sum(row["modelled_ns"] for row in rows.values()) / 1000,
    )


def _kernels(rows: dict[str, dict[str, float]]) -> list[Kernel]:
    made = []
    for name, row in rows.items():
        known = runtime.kernels.get(name)
        made.append(
            Kernel(
                name,
                known.operators if known else (),
                int(row["calls"]),
                row["bytes"],
                row["flops"],
                row["modelled_ns"] / 1000,
            )
        )
    return sorted(made, key=lambda kernel: (-kernel.modelled_us, kernel.name))


@contextmanager
def watched_compiler(report: CompileReport) -> Iterator[None]:
    """Adds what is compiled meanwhile to a report, and what is not."""
    watch = Watch()
    watch.start()
    try:
        yield
    finally:
        watch.stop()
        report.frames += [
            _frame(metrics)
            for metrics in watch.compilations
            if metrics.is_forward is not False and metrics.co_filename is not None
        ]
        report.uncompiled += watch.found


def _frame(metrics: Any) -> Frame:
    hits = metrics.inductor_fx_local_cache_hit_count or 0
    misses = metrics.inductor_fx_local_cache_miss_count or 0
    return Frame(
        file_line(metrics.co_filename, metrics.co_firstlineno),
        metrics.co_name or "",
        metrics.compile_id or "",
        (metrics.duration_us or 0) / 1e6,
        metrics.guard_count or 0,
        "hit" if hits and not misses else "miss" if misses or not _caches() else "",
        (metrics.recompile_reason or "").partition("\n")[0],
        (metrics.fail_reason or "").partition("\n")[0],
    )


def _caches() -> bool:
    return bool(inductor_config.fx_graph_cache)


def script_report(path: str, arguments: list[str], eager: bool = True) -> CompileReport:
    """Runs a script and reports on what it compiles.

    Args:
        path: Of the script, which runs as __main__.
        arguments: Its command line.
        eager: Whether it runs first without the compiler, for comparison; its output is dropped.
    """
    import contextlib
    import io
    import runpy

    report = CompileReport()

    def run() -> None:
        before = sys.argv
        sys.argv = [path, *arguments]
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as left:
            if left.code not in (None, 0):
                raise RuntimeError(f"{path} ended with status {left.code}") from left
        finally:
            sys.argv = before

    if eager:
        silent = contextlib.redirect_stdout(io.StringIO())
        with torch.compiler.set_stance("force_eager"), counted_commands() as rows, silent:
            run()
        report.eager = _run(rows)
        torch._dynamo.reset()
    with watched_compiler(report), counted_commands() as rows:
        run()
    report.compiled, report.kernels = _run(rows), _kernels(rows)
    return report
