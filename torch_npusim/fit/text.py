# SPDX-License-Identifier: BSD-3-Clause
"""The answer of `npusim fit` on the terminal."""

from collections.abc import Sequence
from typing import Any

from torch_npusim._text import format_bytes, format_table
from torch_npusim.fit.parts import ACTIVATIONS
from torch_npusim.fit.result import (
    Answer,
    DeviceFit,
    Fit,
    MaxPeak,
    Remedy,
    StepTime,
    Work,
)

MODULES = 8  # that are listed


def left_out_text(fit: Fit) -> str:
    """Returns the sentence on what is not counted."""
    others = "what other processes hold"
    if any(device.outside for device in fit.devices.values()):
        return f"Not included: {others}."
    return f"Not included: the context of the driver, NCCL's buffers, {others}."


def as_text(fit: Fit) -> str:
    """Returns the answer for people."""
    lines = [fit.verdict]
    if fit.error and fit.devices:
        lines.append("The rest is of the run until then.")
    for name, places in fit.changes.items():
        lines.append(f"--change {name}: {', '.join(places) or 'found nothing to change'}")
    if fit.batch is not None:
        lines.append(batch_text(fit.batch))
    for number, device in fit.devices.items():
        lines += ["", *_device(number, device)]
    if fit.devices:
        lines += ["", left_out_text(fit)]
    if fit.max_peak is not None:
        lines.append(max_peak_text(fit.max_peak))
    if told := time_text(fit):
        lines.append(told)
    if fit.remedies:
        lines += ["", "What would make it fit:" if not fit.fits else "What lowers the peak:"]
        for remedy in fit.remedies:
            lines += _remedy(remedy)
    return "\n".join([*lines, *answers_text(fit.answers)])


def answers_text(answers: Sequence[Answer]) -> list[str]:
    """Returns the lines on values that a script asked for in a dry run."""
    if not answers:
        return []
    return [
        "",
        "Values that the script asked for, which a dry run does not have:",
        *(
            f"  {answer.count:6} x {answer.operator} answered {answer.answer:g} {answer.what} "
            f"at {answer.place}"
            for answer in answers
        ),
    ]


def outcome_text(remedy: Remedy) -> str:
    """Returns outcome, peak and time of a step, as far as they are known."""
    words = [remedy.outcome if remedy.tried else "not tried"]
    if remedy.peak_reserved is not None:
        words.append(f"{format_bytes(remedy.peak_reserved)} reserved")
    if remedy.step_ns is not None:
        words.append(f"{remedy.step_ns / 1e6:.3f} ms a step")
    return ", ".join(words) + (f" (by {remedy.tried})" if remedy.tried else "")


def _remedy(remedy: Remedy) -> list[str]:
    lines = [f"  {remedy.what}: {outcome_text(remedy)}"]
    return lines + [f"      {line}" for line in (remedy.paste, remedy.note) if line]


def max_peak_text(found: MaxPeak) -> str:
    """Returns the sentence on --max-peak."""
    outcome = "more than" if found.exceeded else "within"
    return (
        f"{format_bytes(found.reserved)} are reserved, {outcome} the {format_bytes(found.limit)} "
        f"of --max-peak, which counts what is {found.decides}; {format_bytes(found.allocated)} "
        f"are allocated."
    )


def batch_text(batch: int) -> str:
    """Returns the sentence on the largest batch."""
    return f"The largest batch that fits is {batch}." if batch else "No batch fits, not even 1."


def time_text(fit: Fit) -> str:
    """Returns the sentences on the time of a step, or on why it is not stated."""
    if fit.step is not None:
        return step_text(fit.step)
    if fit.step_threads > 1:
        return (
            f"The time of a step is not stated: steps ran on {fit.step_threads} threads, "
            f"which share one clock of the host."
        )
    return ""


def step_text(step: StepTime) -> str:
    """Returns the sentences on the time of a step, and on the share of the peak in it."""
    words = [f"A {step.what} takes {step.ns / 1e6:.3f} ms of modelled time"]
    low, high = (step.ns / 1e6 * factor for factor in step.interval)
    if low < high:
        known = "the device idles, no promise" if step.device_idles else "nine of ten programs"
        words.append(f" ({known}: {low:.3f} to {high:.3f} ms)")
    for rate, unit, digits in (
        (step.per_second, "samples/s", 1),
        (step.tokens_per_second, "tokens/s", 0),
    ):
        if rate is not None:
            words.append(f", {rate:,.{digits}f} {unit}")
        if rate is not None and low < high:
            ends = [f"{rate / factor:,.{digits}f}" for factor in reversed(step.interval)]
            words.append(f" ({ends[0]} to {ends[1]})")
    if step.inputs:
        words.append(f", with inputs of {' x '.join(map(str, step.inputs))}")
    words.append(f".{_work_text(step.work)}" if step.work is not None else ".")
    if step.not_counted:
        words.append(f" Products, if any, are not counted of {', '.join(step.not_counted)}.")
    return "".join(words)


_PRECISIONS = {
    "f32": "float32", "f64": "float64", "f16": "float16 and bfloat16", "i8": "integers of 8 bits",
    "other": "other dtypes", "tf32": "TF32",
}  # fmt: skip


def _work_text(work: Work) -> str:
    low, high = work.mfu_interval
    mfu = f"{work.mfu:.1%}" + (f" ({low:.1%} to {high:.1%})" if low < high else "")
    again = f"; checkpoints compute {work.again / 1e12:.4g} TFLOP again" if work.again else ""
    return (
        f" Its products are {work.flops / 1e12:.4g} TFLOP{again}: the MFU is {mfu} "
        f"of {work.peak / 1e12:.4g} TFLOP/s, the specification's peak for "
        f"{_PRECISIONS[work.precision]}."
    )


def where_text(device: DeviceFit) -> str:
    """Returns the sentence on the moment of the peak."""
    module = f" of {device.peak_module}" if device.peak_module else ""
    phase = {
        "forward": f"in the forward pass{module}",
        "backward": f"in the backward pass{module}",
        "optimizer": "in the step of the optimizer",
    }.get(device.peak_phase, "outside of modules and optimizers")
    what = "Memory ran out" if device.asked else "The peak is"
    times = "once" if device.caught == 1 else f"{device.caught} times"
    caught = f" The script went on after memory ran out {times}." if device.caught else ""
    return f"{what} {phase}, at {device.peak_line}.{caught}"


def _device(number: int, device: DeviceFit) -> list[str]:
    lines = [
        f"npusim:{number}: {format_bytes(device.peak_allocated)} allocated, "
        f"{format_bytes(device.peak_reserved)} reserved of {format_bytes(device.capacity)}",
        f"  {where_text(device)} Then there are",
    ]
    for kind, held in device.at_peak.items():
        lines.append(f"  {format_bytes(held):>12}  {kind}")
        if kind == ACTIVATIONS:
            lines += [
                f"  {'':14}{format_bytes(module.bytes):>12}  {module_name(module.name)}"
                f"{f' ({module.kind})' if module.kind else ''}"
                for module in device.modules[:MODULES]
            ]
    lines.append(f"  {format_bytes(device.unused_at_peak):>12}  reserved and not in use")
    lines += [
        f"  {format_bytes(part.high):>12}  {part.what}, {part.where}"
        + (f", at least {format_bytes(part.low)}" if part.low < part.high else "")
        for part in device.outside
    ]
    lines.append("  made at")
    lines += [f"  {format_bytes(held):>12}  {line}" for line, held in device.lines.items()]
    return lines


def module_name(name: str) -> str:
    """Returns the name of a module, or the words for none."""
    return name or "outside of modules"


SWEEP_HEADER = ["fits", "allocated", "reserved", "a step", "samples/s", "tokens/s", "MFU"]


def sweep_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the cells of the table of a sweep: the values, then SWEEP_HEADER's."""
    cells = []
    for row in rows:
        devices, step = row["devices"].values(), row["step"] or {}
        rates = [step.get(name) for name in ("per_second", "tokens_per_second")]
        outcome = "yes" if row["fits"] else "close" if row["close"] else "no"
        cells.append(
            [
                *row["values"].values(),
                f"ended early: {row['error']}" if row["error"] else outcome,
                *(
                    format_bytes(max((device[key] for device in devices), default=0))
                    for key in ("peak_allocated", "peak_reserved")
                ),
                f"{step['ns'] / 1e6:.3f} ms" if step else "-",
                *(f"{rate:,.1f}" if rate is not None else "-" for rate in rates),
                f"{step['work']['mfu']:.1%}" if step.get("work") else "-",
            ]
        )
    return cells


def sweep_text(rows: list[dict[str, Any]]) -> str:
    """Returns the table of a sweep."""
    names = list(rows[0]["values"])
    return "\n".join(format_table([*names, *SWEEP_HEADER], sweep_rows(rows)))
