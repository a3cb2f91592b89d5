# SPDX-License-Identifier: BSD-3-Clause
"""The command `npusim-lab`. Subcommands import what they need: --help is quick."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from npusim_lab.study import Choice
    from npusim_lab.trace import Trace

Answer = tuple[Any, str] | tuple[Any, str, int]  # for --json, for people, exit status if not 0


def main(arguments: Sequence[str] | None = None, name: str = "npusim-lab") -> int:
    """Run the command and return its exit status.

    1 if a policy answered what cannot be; 2 if the arguments or the file are wrong, and 130 if it
    was interrupted, with a sentence on stderr.

    Args:
        arguments: the words behind the command; those of this process by default.
        name: of the command, for help and messages.
    """
    options = parser(name).parse_args(arguments)
    run: Callable[[argparse.Namespace], Answer] = options.run
    try:
        data, text, *status = run(options)
        print(json.dumps(data) if options.json else text, flush=True)
    except BrokenPipeError:  # who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the exit complain
        return 0
    except KeyboardInterrupt as problem:
        notes = getattr(problem, "__notes__", [])
        sys.stderr.write(f"{name}: {', '.join(['interrupted', *notes])}\n")
        return 130
    except (ValueError, OSError) as problem:
        sys.stderr.write(f"{name}: {problem}\n")
        return 2
    return int(status[0]) if status else 0


def parser(name: str = "npusim-lab") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog=name, description="What does an allocator do with a program's requests?"
    )
    subcommands = made.add_subparsers(required=True, metavar="command")

    def add(name: str, run: Callable[[argparse.Namespace], Answer], help: str) -> Any:
        command = subcommands.add_parser(name, help=help, description=help)
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print JSON")
        return command

    def takes_trace(command: Any, nargs: str | None = None) -> None:
        command.add_argument("trace", nargs=nargs, help="a file in any format that import reads")
        command.add_argument("--capacity", type=_bytes, help="of the device: 16GiB, 900MiB, bytes")
        command.add_argument("--device", type=int, help="of a snapshot that is about several")
        limit_help = "memory that a .npt file may take; 96MiB or 64 times the file"
        command.add_argument("--limit", type=_bytes, help=limit_help)

    policy_help = "name, .so or file.py:Class, settings behind it: cuda-2.13,max_split_size_mb:128"
    command = add("record", _record, "run a script on npusim and keep what it allocates")
    command.add_argument("--out", default="trace.npt", help="file to write; trace.npt")
    command.add_argument("--device", type=int, help="which npusim device")
    command.add_argument("script")
    command.add_argument("arguments", nargs=argparse.REMAINDER)

    command = add("import", _import, "turn a snapshot or a log into a trace")
    takes_trace(command)
    command.add_argument("out")
    command.add_argument("--format", help="npt, snapshot, rmm, buffers or stalloc; recognised")

    command = add("export", _export, "write a trace for other tools")
    takes_trace(command)
    command.add_argument("out")
    command.add_argument("--format", required=True, help="npt, snapshot, rmm or buffers")
    command.add_argument("--policy", default="cuda-2.13", help="of a snapshot's replay")

    def takes_arena(command: Any) -> None:
        arena_help = (
            "where policies get segments: cuda (as the caching allocator), one, or MiB; cuda"
        )
        command.add_argument("--arena", default="cuda", help=arena_help)

    def takes_executor(command: Any) -> None:
        command.add_argument("--executor", help="run on a cluster: dask://host:port")
        command.add_argument("--keep", metavar="DIR", help="keep what is done; go on from there")

    def takes_frames(command: Any) -> None:
        frames_help = "of stacks: own (of the program itself), all, or a regular expression; own"
        command.add_argument("--frames", default="own", help=frames_help)

    command = add("replay", _replay, "run a trace under a policy")
    takes_trace(command)
    takes_arena(command)
    command.add_argument("--policy", help=policy_help + "; as recorded")

    command = add("compare", _compare, "run traces under several policies, on all cores")
    takes_trace(command, "+")
    command.add_argument("--policy", required=True, help="P1,P2,...; a setting follows its policy")
    command.add_argument("--jobs", type=int, help="threads; one per core")
    command.add_argument("--metric", help="print this metric only: traces down, policies across")
    command.add_argument("--banks", type=int, help="count bank conflicts with so many banks")
    command.add_argument("--latency", action="store_true", help="measure calls on this machine")
    takes_arena(command)
    takes_executor(command)

    command = add("search", _search, "find the settings that need least memory")
    takes_trace(command)
    command.add_argument("--policy", help=policy_help + "; as recorded")
    command.add_argument(
        "--grid",
        action="append",
        metavar="KEY=V1,V2",
        help="values to try, '' among them for the default; may be repeated",
    )
    command.add_argument("--budget", type=int, help="at most so many combinations")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--best", type=int, default=10, help="how many to print; 10")
    takes_executor(command)

    command = add("match", _match, "does a replay place every block as the recorded run did?")
    takes_trace(command)
    command.add_argument("--policy", help=policy_help + "; as recorded")
    command.add_argument("--out", help="CSV file to write, a row per malloc")

    command = add("explain", _explain, "why it ran out of memory, and which setting avoids it")
    takes_trace(command)
    command.add_argument("--policy", help=policy_help + "; as recorded")
    takes_frames(command)

    command = add("report", _report, "write one HTML file with curves, address maps and metrics")
    takes_trace(command, "+")
    takes_frames(command)
    command.add_argument("--policy", help="P1,P2,...; settings behind each; as recorded")
    command.add_argument("--out", default="report.html", help="file to write; report.html")

    command = add("plot", _plot, "draw curves, an address map or a comparison as PNG or SVG")
    takes_trace(command)
    command.add_argument("--policy", default="cuda-2.13", help="P1,P2,...; settings behind each")
    command.add_argument("--kind", default="curves", help="curves, map or comparison; curves")
    command.add_argument("--out", default="plot.png", help="file to write, .png or .svg; plot.png")

    command = add("plan", _plan, "place buffers of known lifetimes; 1 if not within --capacity")
    takes_trace(command)
    command.add_argument("--alignment", type=_bytes, default=1, help="of every offset; 1")
    command.add_argument(
        "--time-budget",
        type=float,
        metavar="S",
        help="search so many seconds; otherwise a fixed effort, whose plan is always the same",
    )
    command.add_argument("--out", help="CSV file to write, with the offset of every buffer")

    command = add(
        "generate", _generate, "make up a trace of a kind of program, or take a recorded one"
    )
    command.add_argument("name", nargs="?", help="which one; without it, list them")
    command.add_argument("--out", help="file to write; NAME.npt")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--steps", type=int, help="how long")
    return made


def _record(options: argparse.Namespace) -> Answer:
    from npusim_lab.files import save
    from npusim_lab.matching import agreement
    from npusim_lab.recording import record_script, replay_recorded

    trace = record_script(options.script, options.arguments, options.device)
    save(trace, options.out)
    asked = trace.with_attempts()
    same = agreement(asked, replay_recorded(asked))
    data = {**_about(trace), "equal": same.equal, "compared": same.compared}
    return data, f"{options.out}: {_about_text(trace)}; replayed: {same}"


def _import(options: argparse.Namespace) -> Answer:
    from npusim_lab.files import load, save

    trace = load(options.trace, options.format, options.device, options.capacity, options.limit)
    save(trace, options.out, "npt")
    return _about(trace), f"{options.out}: {_about_text(trace)}"


def _export(options: argparse.Namespace) -> Answer:
    from npusim_lab.files import save

    trace = _load(options)
    run: dict[str, Any] = {}
    if options.format == "snapshot":
        run = {"policy": _one(options.policy), "capacity_bytes": trace.capacity_bytes}
    save(trace, options.out, options.format, **run)
    return _about(trace), f"{options.out}: {_about_text(trace)}"


def _replay(options: argparse.Namespace) -> Answer:
    from npusim_lab.study import METRICS, measures, replay, streams_note, violations_note
    from npusim_lab.tables import cell

    trace = _load(options).with_attempts()
    choice = _chosen(options, trace).with_arena(options.arena)
    result = replay(trace, choice, trace.capacity_bytes, curve_points=100, fragmentation=True)
    values = measures(trace, result)
    row = {"policy": str(choice), **values}
    warning = violations_note([row])
    lines = [*filter(None, [warning]), f"{choice}: {_about_text(trace)}"]
    for name, value in values.items():
        if name in ("first_violation", "over_time") or value is None:
            continue
        lines.append(f"  {name:14} {cell(name, value):>12}  {METRICS.get(name, 'of the policy')}")
    lines += [f"event {oom['event']}: {oom['text']}" for oom in result.ooms[:3]]
    note = streams_note(trace, [choice])
    data = {
        **row,
        "all_violations": result.violations,
        "first_ooms": result.ooms[:3],
        "streams_note": note,
    }
    return data, "\n".join([*lines, *filter(None, [note])]), int(bool(warning))


def _compare(options: argparse.Namespace) -> Answer:
    from npusim_lab.execution import compare
    from npusim_lab.study import parse_choices, streams_note, violations_note
    from npusim_lab.tables import matrix, table

    data: list[dict[str, Any]] = []
    lines: list[str] = []
    warnings: list[str] = []
    for path in options.trace:
        trace = _load(options, path).with_attempts()
        choices = [choice.with_arena(options.arena) for choice in parse_choices(options.policy)]
        with _Progress(path) as progress, _executor(options) as executor:
            rows = compare(
                trace,
                choices,
                trace.capacity_bytes,
                jobs=options.jobs,
                progress=progress,
                banks=options.banks,
                latency=options.latency,
                executor=executor,
                keep=options.keep,
            )
        note = streams_note(trace, choices)
        if warning := violations_note(rows):
            warnings.append(f"{path}:\n{warning}")
        data.append({"trace": str(path), **_about(trace), "policies": rows, "streams_note": note})
        lines += [f"{path}: {_about_text(trace)}", table(rows), *filter(None, [note]), ""]
    text = "\n".join(lines).rstrip() if options.metric is None else matrix(data, options.metric)
    return data, "\n".join([*warnings, text]), int(bool(warnings))


def _search(options: argparse.Namespace) -> Answer:
    from npusim_lab.execution import search
    from npusim_lab.study import violations_note
    from npusim_lab.tables import table

    trace = _load(options).with_attempts()
    texts = options.grid or [
        "expandable_segments=,True",
        "max_split_size_mb=,20,64,256",
        "roundup_power2_divisions=,4,8",
    ]
    grid = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"--grid {text!r}; expected KEY=V1,V2")
        grid[key] = values.split(",")
    with _Progress("search") as progress, _executor(options) as executor:
        rows = search(
            trace,
            grid,
            _chosen(options, trace),
            trace.capacity_bytes,
            budget=options.budget,
            seed=options.seed,
            progress=progress,
            executor=executor,
            keep=options.keep,
        )
    warning = violations_note(rows)
    note = (
        "The recording began late: settings begin with the state as it lay, where they can. "
        "explain tries settings from the beginning of the program."
    )
    lines = [warning, f"{options.trace}: {_about_text(trace)}", table(rows[: options.best])]
    lines += [note] if trace.is_late else []
    return rows, "\n".join(filter(None, lines)), int(bool(warning))


def _match(options: argparse.Namespace) -> Answer:
    from npusim_lab.trace import SeveralDevicesError

    try:
        return _match_device(options)
    except SeveralDevicesError as several:
        if options.out is not None:
            raise
        numbers = several.devices
    found, texts = [], []
    for options.device in numbers:
        data, text = _match_device(options)
        found.append({"device": options.device, **data})
        texts.append(f"device {options.device}: {text}")
    return found, "\n".join(texts)


def _match_device(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from npusim_lab.matching import (
        agreement,
        agreement_by_owner,
        matches,
        tried_presets,
        write_matches,
    )
    from npusim_lab.study import recorded_choice, replay

    trace = _load(options).with_attempts()
    wanted = recorded_choice(trace) if options.policy is None else _one(options.policy)
    tried = [] if options.policy else tried_presets(trace, wanted.settings)
    choice, addresses = tried[0][0] if tried else wanted, trace.segment_addresses()
    result = replay(trace, choice, trace.capacity_bytes, segment_addresses=addresses)
    same = agreement(trace, result)
    if options.out is not None:
        write_matches(matches(trace, result), options.out)
    mallocs = trace.compiled.mallocs - len(trace.info.get("attempts", ()))
    owners = agreement_by_owner(trace, result)
    streams, pools = (trace.info.get(key, ()) for key in ("streams", "pools"))
    of_owner = [
        {
            "stream": streams[stream] if stream < len(streams) else stream,
            "pool": pools[pool] if pool < len(pools) else pool,
            "equal": one.equal,
            "compared": one.compared,
        }
        for (stream, pool), one in owners.items()
    ]
    data = {
        "policy": str(choice),
        "mallocs": mallocs,
        "compared": same.compared,
        "equal": same.equal,
        "rate": same.rate,
        "first_difference": same.first_difference,
        "others": {str(other): agreed.equal for other, agreed in tried[1:]},
        "owners": of_owner,
        "remarks": trace.remarks(),
    }
    text = f"{choice}: {same}"
    if same.rate is not None:
        text += f" ({100 * same.rate:.4f} %), of {mallocs} mallocs"
    elif not trace.has_requests:
        text += f": the file has no history of allocations, only the {mallocs} blocks of its end"
    if same.first_difference is not None:
        text += f"; the first difference is at event {same.first_difference}"
        text += ", and may come from what is not known" if trace.ambiguous else ""
    lines = [text]
    if len(of_owner) > 1:
        for row in of_owner:
            lines.append(
                f"  stream {row['stream']}, pool {row['pool']}: {row['equal']} of {row['compared']}"
            )
    lines += [f"{other}: {agreed}" for other, agreed in tried[1:]]
    return data, "\n".join([*lines, *(f"  {remark}" for remark in trace.remarks())])


def _explain(options: argparse.Namespace) -> Answer:
    from npusim_lab.explanation import explain, text_of
    from npusim_lab.files import load_failed

    choice = None if options.policy is None else _one(options.policy)
    trace = load_failed(options.trace, **_of_files(options))
    answer = explain(trace, choice, show=options.frames)
    return answer, text_of(answer), int(answer["violations"] > 0)


def _report(options: argparse.Namespace) -> Answer:
    from npusim_lab.html_report import report, report_beside
    from npusim_lab.study import parse_choices, recorded_choice, violations_note

    if len(options.trace) > 1:
        if options.policy is not None:
            raise ValueError("several files are reported under the policy of each; no --policy")
        traces = [_load(options, path) for path in options.trace]
        found = report_beside(options.trace, traces, options.out, options.frames)
        lines = [
            f"{path}: {one['verdict']}" for path, one in zip(options.trace, found, strict=True)
        ]
        return found, "\n".join([*lines, options.out])
    trace = _load(options, options.trace[0])
    choices = [recorded_choice(trace)]
    if options.policy is not None:
        choices = parse_choices(options.policy)
    title = os.path.basename(options.trace[0])
    rows = report(trace, choices, options.out, show=options.frames, title=title)
    warning = violations_note(rows)
    text = f"{options.out}: {len(rows)} policies"
    return rows, "\n".join([*filter(None, [warning]), text]), int(bool(warning))


def _plot(options: argparse.Namespace) -> Answer:
    from npusim_lab.plots import plot
    from npusim_lab.study import parse_choices, violations_note

    trace = _load(options).with_attempts()
    choices = parse_choices(options.policy)
    rows = plot(trace, choices, options.out, options.kind, trace.capacity_bytes)
    names = [str(choice) for choice in choices]
    warning = violations_note(rows)
    data = {"out": options.out, "kind": options.kind, "policies": names, "violations": warning}
    return data, "\n".join([*filter(None, [warning]), options.out]), int(bool(warning))


def _plan(options: argparse.Namespace) -> Answer:
    from npusim_lab import planning
    from npusim_lab.files import load_buffers

    buffers = load_buffers(options.trace, **_of_files(options))
    found = planning.plan(
        buffers,
        options.capacity,
        alignment=options.alignment,
        seconds=options.time_budget,
    )
    if wrong := planning.conflict(buffers, found.offsets, found.height):
        raise RuntimeError(f"the plan is wrong: {wrong}; please report it")
    if options.out is not None:
        planning.write_placement(buffers, found, options.out)
    data = {
        "buffers": len(buffers),
        "planned": found.height,
        "at_least": found.at_least,
        "is_optimal": found.is_optimal,
        "capacity": found.capacity,
        "verdict": found.verdict,
        "steps": found.steps,
    }
    lines = [
        f"{len(buffers)} buffers, checked: no two share addresses while both live",
        f"planned   {found.height:>16,} bytes",
        f"at least  {found.at_least:>16,} bytes"
        + ("; the plan is optimal" if found.is_optimal else ""),
    ]
    if found.capacity is not None:
        verdicts = {
            "fits": "the plan fits",
            "impossible": "proven: no plan fits",
            "unknown": "no plan found that fits, nor a proof that there is none; --time-budget "
            "searches longer",
        }
        lines.append(f"capacity  {found.capacity:>16,} bytes; {verdicts[found.verdict]}")
    return data, "\n".join(lines), int(found.verdict != "fits")


def _generate(options: argparse.Namespace) -> Answer:
    from npusim_lab.corpus import GENERATORS, generate, recordings
    from npusim_lab.files import load, save

    recorded = recordings()
    if options.name is None:
        about = {
            name: (make.__doc__ or "").split("\n")[0] for name, (make, _) in GENERATORS.items()
        }
        for name, path in recorded.items():
            about[name] = f"Recorded: {load(path).info['about']}"
        return about, "\n".join(f"{name:16} {text}" for name, text in about.items())
    if options.name in recorded:
        if options.seed or options.steps is not None:
            raise ValueError(f"{options.name} is a recording; it has no --seed and no --steps")
        trace = load(recorded[options.name])
    else:
        trace = generate(options.name, options.seed, options.steps)
    out = options.out or f"{options.name}.npt"
    save(trace, out)
    return _about(trace), f"{out}: {_about_text(trace)}"


def _load(options: argparse.Namespace, path: str | None = None) -> Trace:
    from npusim_lab.files import load

    return load(options.trace if path is None else path, **_of_files(options))


def _of_files(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": options.device,
        "capacity_bytes": options.capacity,
        "limit_bytes": options.limit,
    }


def _executor(options: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    from contextlib import nullcontext

    if options.executor is None:
        return nullcontext()
    from npusim_lab.execution import executor_at

    return executor_at(options.executor)


def _chosen(options: argparse.Namespace, trace: Trace) -> Choice:
    from npusim_lab.study import recorded_choice

    return recorded_choice(trace) if options.policy is None else _one(options.policy)


def _one(text: str) -> Choice:
    from npusim_lab.study import parse_choices

    choices = parse_choices(text)
    if len(choices) != 1:
        raise ValueError(f"--policy {text!r} names {len(choices)} policies; expected one")
    return choices[0]


def _about(trace: Trace) -> dict[str, Any]:
    return {
        "events": len(trace),
        "mallocs": trace.compiled.mallocs,
        "max_live_bytes": trace.compiled.max_live_bytes,
        "info": dict(trace.info),
    }


def _about_text(trace: Trace) -> str:
    from npusim_lab.study import mib

    text = f"{len(trace)} events, max live {mib(trace.compiled.max_live_bytes)}"
    return "\n".join([text, *(f"  {remark}" for remark in trace.remarks())])


def _bytes(text: str) -> int:
    # The grammar of NPUSIM_DEVICE_MEMORY and of pytest --npusim-memory.
    match = re.fullmatch(
        r"\s*([0-9]{1,16}(?:\.[0-9]{0,9})?)\s*(?:([KMGT])(I?))?(B?)\s*", text.upper()
    )
    value = 0
    if match and (match[4] or not match[2]):
        base = 1024 if match[3] else 1000
        value = int(min(float(match[1]) * base ** (" KMGT".index(match[2] or " ")), 2.0**60))
    if not 0 < value <= 1 << 50:
        raise argparse.ArgumentTypeError(f"{text!r}; expected e.g. 16GiB, 900MiB or bytes")
    return value


class _Progress:
    """A bar on stderr where that is a terminal; tqdm is imported only then."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if not sys.stderr.isatty():
                return
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=self._what, leave=False)
        self._bar.update(done - self._bar.n)

    def __exit__(self, *problem: object) -> None:
        if self._bar is not None:
            self._bar.close()


if __name__ == "__main__":
    sys.exit(main())
