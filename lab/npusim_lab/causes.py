# SPDX-License-Identifier: BSD-3-Clause
"""The cause of a failure: one of a closed list, each with its own evidence and advice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim_lab.frames import rank_of
from npusim_lab.growth import words_for
from npusim_lab.kinds import kind_of
from npusim_lab.study import mib
from npusim_lab.trace import Stack, Trace

LIMIT = "a limit that the user set"
OUTSIDE = "memory held outside of torch"
TOO_LARGE = "too large, however it is placed"
GROWTH = "growth"
PEAK = "the peak of one step"
ROUNDING = "fragmentation in blocks"
OTHER_POOL = "a cache that another pool holds"
FRAGMENTATION = "fragmentation"
ADVICE: Mapping[str, Mapping[str, str]] = {
    LIMIT: {
        "": "Raise the fraction of torch.cuda.set_per_process_memory_fraction(), or "
        "per_process_memory_fraction in PYTORCH_ALLOC_CONF."
    },
    OUTSIDE: {
        "": "nvidia-smi names the other processes: end them, or give this one less to do. The "
        "driver's context and NCCL take some hundred MiB."
    },
    TOO_LARGE: {
        "request": "One request must become smaller: shorter sequences or a smaller batch. Of "
        "attention, flash attention keeps no matrix of scores.",
        "KV cache": "Make the KV cache smaller: a lower gpu_memory_utilization or max_model_len "
        "(vLLM), mem_fraction_static (SGLang).",
        "": "Load in a smaller dtype or quantized, shard over devices, or use CPU offload; read "
        'checkpoints with map_location="cpu".',
    },
    GROWTH: {
        "activations": "Keep numbers in place of tensors with a graph: .item() or .detach(); run "
        "without gradients under torch.no_grad().",
        "parameters": "Drop a model before the next is loaded: reference cycles keep it until "
        "gc.collect().",
        "": "Drop in time what {holder} keeps, or move it to the host with .cpu().",
    },
    PEAK: {
        "optimizer state": "The optimizer's step is the peak: foreach=False or fused=True keeps no "
        "lists of intermediates, 8-bit or sharded states take less.",
        "KV cache": "The KV cache is allocated in advance: a smaller one leaves more for the "
        "step, by a lower gpu_memory_utilization (vLLM) or mem_fraction_static (SGLang).",
        "attention": "Attention keeps scores or masks of all pairs: flash attention makes none; or "
        "take shorter sequences.",
        "logits": "The logits are the peak: compute the loss in chunks of tokens, or with a fused "
        "loss (Liger, cut cross-entropy).",
        "": "Take a smaller batch or shorter sequences; in training, checkpoint activations; in a "
        "VAE's decoder, use tiling.",
    },
    ROUNDING: {"": "Ask for sizes that fill their blocks: multiples of 512 bytes, or of 2 MiB."},
    OTHER_POOL: {
        "": "Let graphs share one pool, capture fewer sizes, or reset the graphs before this "
        "phase: a private pool serves no other requests."
    },
    FRAGMENTATION: {"": "Pad lengths to few sizes, and allocate first what lives long."},
}
CAUSES = tuple(ADVICE)
SETTINGS_MEND = (FRAGMENTATION, ROUNDING)  # settings of the allocator put the end of others off
_OF_A_PASS = ("activations", "logits", "gradients", "backward pass", "optimizer state")
_LITTLE = 0.02  # of the live bytes: freeing less is freeing nothing
_TENTH = 0.1  # of the device: with less to spare it is full, and more outside is not the context
_MUCH = 0.25  # of the live bytes: growth of so much is the cause, and logits are the peak
_ATTENTION = re.compile(r"attention|attn|sdpa", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """The state of a replay at the failure.

    Args:
        kinds: live bytes by kind, the largest first.
        beyond_requests: bytes by which blocks in use are larger than their requests.
        growing: the holders whose memory grows: "bytes", "kind", "holder", "growth".
    """

    kinds: Mapping[str, int]
    beyond_requests: int
    growing: Sequence[Mapping[str, Any]]


def cause_of(trace: Trace, oom: dict[str, Any], found: Found) -> tuple[str, str, str]:
    """Return a cause of CAUSES, the evidence for it, and its advice.

    Args:
        trace: the events.
        oom: the failure, of Replay.ooms.
        found: what is in use then.
    """
    cause, evidence, subject = _cause(trace, oom, found)
    advice = ADVICE[cause].get(subject, ADVICE[cause][""])
    if cause == GROWTH:
        advice = advice.format(holder=found.growing[0]["holder"])
    return cause, evidence, advice


def _cause(trace: Trace, oom: dict[str, Any], found: Found) -> tuple[str, str, str]:
    """Return a cause, its evidence, and which of its advice fits."""
    event, asked, live = (int(oom[key]) for key in ("event", "requested_bytes", "allocated_bytes"))
    total, free, allowed = int(oom["total_bytes"]), int(oom["free_bytes"]), oom["allowed_bytes"]
    used = live + int(oom["pending_bytes"])
    spare, outside = total - used - asked, trace.outside_bytes
    kinds, freed = found.kinds, _freed_before(trace, event)
    of_a_pass = sum(kinds.get(kind, 0) for kind in _OF_A_PASS) + asked * (
        kind_of(_stack(trace, oom)) in _OF_A_PASS
    )
    if allowed is not None and 0 <= spare and used + asked > allowed:
        return (
            LIMIT,
            f"Torch may have {mib(int(allowed))} of {mib(total)}, by a memory fraction",
            "",
        )
    if asked > total + outside:
        return TOO_LARGE, f"Even one request of {mib(asked)} is more than the device has", "request"
    private = int(oom["private_cached_bytes"])
    joined = int(oom["cached_bytes"]) - private + free
    growing = [row for row in found.growing if row["bytes"] >= _MUCH * live]
    is_full = spare < _TENTH * total
    if is_full and spare + outside >= 0 and outside >= _TENTH * (total + outside):
        return OUTSIDE, f"{mib(outside)} of {mib(total + outside)} are, and torch needs more", ""
    if 0 < -spare <= found.beyond_requests:
        more = mib(found.beyond_requests)
        return (
            ROUNDING,
            f"Blocks have {more} more than was asked for, and {mib(-spare)} are missing",
            "",
        )
    loads = freed <= _LITTLE * live and of_a_pass <= _TENTH * live and not trace.is_late
    if is_full and loads:
        text = f"{mib(live)} are in use, and {mib(freed)} were freed before"
        return TOO_LARGE, text, "KV cache" if kinds.get("KV cache", 0) > live / 2 else ""
    if growing and (spare <= growing[0]["growth"]["rise"] or growing[0]["bytes"] > live / 2):
        subject = "activations" if growing[0]["kind"] == "logits" else growing[0]["kind"]
        return GROWTH, words_for(growing[0]["holder"], growing[0]["growth"]), subject
    if spare >= 0 and trace.pool[event] == 0 and joined < asked:
        text = f"{mib(private)} are free in private pools, and {mib(joined)} elsewhere"
        return OTHER_POOL, text, ""
    climbs = freed <= _TENTH * live and not trace.is_late  # what is free was never used
    near = (_MUCH if climbs else _TENTH) * total
    if spare < 0 or (spare < near and not _held_before(trace, event, asked)):
        held = ", ".join(f"{mib(bytes)} of {kind}" for kind, bytes in list(kinds.items())[:3])
        subject = _of_peak(trace, oom, kinds, live)
        return PEAK, f"{mib(asked)} are asked for beside {mib(live)} in use: {held}", subject
    largest = max(int(oom["largest_free_bytes"]), free)
    together = joined + (private if trace.pool[event] else 0)
    text = f"{mib(together)} are free together, and the largest piece is {mib(largest)}"
    return FRAGMENTATION, text, ""


def _stack(trace: Trace, oom: dict[str, Any]) -> Stack:
    return trace.stacks[int(trace.compiled.malloc_stack[int(oom["malloc"])])]


def _of_peak(trace: Trace, oom: dict[str, Any], kinds: Mapping[str, int], live: int) -> str:
    """Return the kind of memory that the advice on a peak is about."""
    stack = _stack(trace, oom)
    asked = kind_of(stack)
    if asked in ("optimizer state", "logits"):
        return asked
    for kind, share in (("KV cache", 0.5), ("logits", _MUCH)):
        if kinds.get(kind, 0) >= share * live:
            return kind
    own = [frame for frame in stack if rank_of(frame[0]) < 2][:1]
    return "attention" if own and _ATTENTION.search(f"{own[0][0]} {own[0][2]}") else ""


def _held_before(trace: Trace, event: int, asked: int) -> bool:
    """Return whether as much was in use before: in an earlier step, a tenth was freed since."""
    compiled = trace.compiled
    bytes = compiled.malloc_bytes.astype(np.int64)
    began, ended = compiled.malloc_event < event, compiled.completed_event < event
    at = np.concatenate([compiled.malloc_event[began], compiled.completed_event[ended]])
    curve = np.cumsum(np.concatenate([bytes[began], -bytes[ended]])[np.argsort(at, kind="stable")])
    lower = np.flatnonzero(curve <= (1 - _TENTH) * curve[-1]) if len(curve) else curve
    if not len(lower):
        return False
    before = int(curve[: lower[-1]].max(initial=0))
    return before >= (1 - _LITTLE) * (int(curve[-1]) + asked)


def _freed_before(trace: Trace, event: int) -> int:
    """Return the bytes that were given back before an event."""
    compiled = trace.compiled
    return int(compiled.malloc_bytes[compiled.free_event < event].sum())
