# SPDX-License-Identifier: BSD-3-Clause
"""The cause of a failure: one of a closed list, each with its own evidence and advice.

Explanations of recordings and live errors name the same causes: the distributions have a link to
this file, as to frames.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Stack = Sequence[tuple[str, int, str]]
LIMIT = "a limit that the user set"
OUTSIDE = "memory held outside of torch"
TOO_LARGE = "too large, however it is placed"
GROWTH = "growth"
PEAK = "the peak of one step"
OTHER_POOL = "a cache that another pool holds"
FRAGMENTATION = "fragmentation"
_LOGITS = (
    "Logits: compute the loss in chunks of tokens, or with a fused loss (Liger, cut "
    "cross-entropy), and make no float32 copy of all; in inference, gather them on the host."
)
_ATTEND = (
    "Attention: flash attention makes no scores or masks of all pairs; or attend in chunks, or to "
    "shorter sequences."
)
_LOAD = (
    "load in a smaller dtype or quantized, shard over devices, or use CPU offload: read "
    'checkpoints with map_location="cpu", move each part when its turn comes, and free what was '
    "converted."
)
_KEPT = (
    "Drop in time what {holder} keeps (of reference cycles by gc.collect()), or move it to the "
    "host with .cpu(); where all of it is needed, take shorter parts, or set it a limit."
)
# A cause has a sentence per kind of memory: those of the largest kinds are the advice, in order.
ADVICE: Mapping[str, Mapping[str, str]] = {
    LIMIT: {
        "": "Raise the fraction of torch.cuda.set_per_process_memory_fraction(), or "
        "per_process_memory_fraction in PYTORCH_ALLOC_CONF."
    },
    OUTSIDE: {
        "": "nvidia-smi names the other processes: end them, let them hold less (empty_cache(), an "
        "engine that sleeps, ranks that each have their own device), or give this one less to do. "
        "The driver's context and NCCL take some hundred MiB."
    },
    TOO_LARGE: {
        "request": "One request must become smaller: go through it in chunks or tiles, or take "
        "shorter sequences or a smaller batch. Of attention, flash attention keeps no matrix of "
        "scores.",
        "attention": _ATTEND,
        "logits": _LOGITS,
        "KV cache": "Make the KV cache smaller: a lower gpu_memory_utilization or max_model_len "
        "(vLLM), mem_fraction_static (SGLang).",
        "first": f"L{_LOAD[1:]}",
        "": f"Unload first what has run; {_LOAD}",
    },
    GROWTH: {
        "activations": "Keep numbers in place of tensors with a graph: .item(), .detach(), or "
        f"torch.no_grad() around the loop. {_KEPT}",
        "": _KEPT,
    },
    PEAK: {
        "kept": "Free what {keeper} keeps of an earlier pass before the next one.",
        "intermediates": "The optimizer's step: foreach=False or fused=True keeps no lists of "
        "intermediates.",
        "optimizer state": "Optimizer states: 8-bit or sharded ones take less; or offload them.",
        "gradients": "Gradients: optimizer.zero_grad() before what needs none; or shard them, or "
        "step in the backward pass.",
        "KV cache": "KV cache: a smaller one leaves more for the step, by a lower "
        "gpu_memory_utilization or max_num_seqs (vLLM), mem_fraction_static (SGLang).",
        "attention": _ATTEND,
        "request": "Go through what is asked for in chunks: alone it is a quarter of the device or "
        "more.",
        "logits": _LOGITS,
        "parameters": "Weights: free or offload those that this step has no use for; quantized "
        "ones take less.",
        "activations": "Activations: take a smaller batch, shorter sequences, chunks or tiles (of "
        "a VAE: tiling); in training, checkpoint them; without a backward pass, run in "
        "torch.inference_mode().",
        "recomputed": "Checkpoint shorter parts, such as single layers: a part is computed again "
        "whole.",
        "training": "Activations: checkpoint them, or take a smaller batch, shorter sequences, "
        "chunks or tiles (of a VAE: tiling); without a backward pass, run in "
        "torch.inference_mode().",
        "other": "Free or offload what is held beside and not needed; go through the rest in "
        "chunks or smaller batches; gather results on the host.",
        "": "Take a smaller batch or shorter sequences, or go through large steps in chunks.",
    },
    OTHER_POOL: {
        "streams": "Use one stream, also to capture graphs: a block serves only the stream that it "
        "was taken on.",
        "": "Let graphs share one pool, capture fewer sizes, or reset the graphs before this "
        "phase: a private pool serves no other requests.",
    },
    FRAGMENTATION: {
        "graphs": "Capture the largest sizes first: the smaller ones use their memory again.",
        "": "Pad lengths to few sizes, and allocate first what lives long.",
    },
}
CAUSES = tuple(ADVICE)
_OF_A_PASS = ("activations", "logits", "gradients", "backward pass", "optimizer state")
_LITTLE = 0.02  # of the live bytes: freeing less is freeing nothing; of the device, to spare
_ALIKE = 0.94  # of what is in use: as much
_TENTH = 0.1  # of the device: with less to spare it is full
_TWENTIETH = 0.05  # of the device: more outside is not the driver's context
_MORE = 0.18  # of the device: so much a step may ask for yet
_SHARE = 0.15  # of what is in use and asked for: a kind of so much has advice
_MOST_NAMED = 3  # kinds, in an advice
_MUCH = 0.25  # of the live bytes or the device: growth of so much counts, and so much to spare
_CHECKPOINT = "/utils/checkpoint.py"
_AGAIN = ("unpack_hook", "recompute_fn", "backward")
_ATTENTION = re.compile(r"attention|attn|sdpa", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """The state of an allocator that refuses a request. A live one knows less than a replay.

    Args:
        kinds: live bytes by kind, the largest first.
        asked_kind: kind of the request.
        asked_by: file and function of the frame to blame for it.
        mends: whether a setting of the allocator gets past the request; None where not known.
        makes_states: whether it is for an optimizer's states, and not for its intermediates.
        freed: bytes that were given back before.
        freed_since: of these, since the request's line took what it holds; None where that is less
            than half of all in use, or not known.
        freed_alike: of these, bytes of the request's kind; None where that is not known.
        outside: bytes of the device that others hold, beside the total of the failure.
        growing: the holders whose memory grows: "bytes", "kind", "holder", "words".
        goes_on: whether the request is of a line that holds a tenth: what loads goes on.
        recomputes: whether activations that a checkpoint computes again are asked for; None where
            no pass is known to train, or some other part has checkpoints.
        is_late: whether the recording began behind the program's first request.
        is_private: whether the request is for a private pool.
        own_cached: free bytes of that pool; None where that is not known.
        other_streams: free bytes of the request's pool that only other streams may have.
        kept: bytes that an earlier pass left in use, and who holds most of them.
        most_before: the most in use before it was last below that by a tenth of what is in use
            now; 0 if it never was, None where that is not known.
    """

    kinds: Mapping[str, int] = field(default_factory=dict)
    asked_kind: str = ""
    asked_by: str = ""
    mends: bool | None = None
    makes_states: bool = False
    freed: int = 0
    freed_since: int | None = None
    freed_alike: int | None = None
    outside: int = 0
    growing: Sequence[Mapping[str, Any]] = ()
    goes_on: bool = True
    recomputes: bool | None = None
    is_late: bool = False
    is_private: bool = False
    own_cached: int | None = None
    other_streams: int = 0
    kept: tuple[int, str] = (0, "")
    most_before: int | None = None


def recomputes(asking: Stack, stacks: Iterable[Stack]) -> bool | None:
    """Return whether a checkpoint asks for what it computes again; None where that tells nothing.

    Args:
        asking: file, line and function of each frame of the request.
        stacks: those of all requests that are known.
    """
    if any(_CHECKPOINT in file and name in _AGAIN for file, _, name in asking):
        return True
    files = {file for stack in stacks for file, _, _ in stack}
    trains = any("/optim" in file for file in files)
    return False if trains and not any(_CHECKPOINT in file for file in files) else None


def with_gradients(
    kinds: Mapping[str, int], unknown: str, sizes: Mapping[str, Counter[int]]
) -> dict[str, int]:
    """Return live bytes by kind: blocks without a stack, each of a parameter's size, are gradients.

    The threads of autograd have no frames of Python.

    Args:
        kinds: live bytes by kind.
        unknown: the kind without a stack.
        sizes: how many blocks of each size are "parameters", and of `unknown`.
    """
    both = sizes["parameters"] & sizes[unknown]
    bytes = sum(size * count for size, count in both.items())
    out = Counter(kinds)
    if bytes and 2 * bytes >= out["parameters"]:
        out["gradients"] += bytes
        out[unknown] -= bytes
    return dict(out.most_common())


def cause_of(
    oom: Mapping[str, Any], found: Found, size: Callable[[int], str]
) -> tuple[str, str, str]:
    """Return a cause of CAUSES, the evidence for it, and its advice.

    Args:
        oom: the failure, in bytes: "requested_bytes", "allocated_bytes", "pending_bytes",
            "cached_bytes", "private_cached_bytes", "largest_free_bytes", "free_bytes",
            "total_bytes" and "allowed_bytes" (None without a limit).
        found: what else is known of it.
        size: writes bytes for people.
    """
    cause, evidence, subjects = _cause(oom, found, size)
    texts = [ADVICE[cause][subject] for subject in subjects if subject in ADVICE[cause]]
    advice = " ".join(texts[:_MOST_NAMED]) or ADVICE[cause][""]
    if cause == GROWTH:
        advice = advice.format(holder=found.growing[0]["holder"])
    advice = advice.replace("{keeper}", found.kept[1])
    return cause, evidence, advice


def _cause(
    oom: Mapping[str, Any], found: Found, size: Callable[[int], str]
) -> tuple[str, str, Sequence[str]]:
    """Return a cause, its evidence, and the subjects of its advice."""
    asked, live = int(oom["requested_bytes"]), int(oom["allocated_bytes"])
    total, free, allowed = int(oom["total_bytes"]), int(oom["free_bytes"]), oom["allowed_bytes"]
    used = live + int(oom["pending_bytes"])
    spare, outside, kinds, freed = total - used - asked, found.outside, found.kinds, found.freed
    of_a_pass = sum(kinds.get(kind, 0) for kind in _OF_A_PASS)
    of_a_pass += asked * (found.asked_kind in _OF_A_PASS)
    if allowed is not None and spare >= 0 and free >= asked:
        text = f"Torch may have {size(int(allowed))} of {size(total)}, by a memory fraction"
        return LIMIT, text, ()
    if asked > total + outside:
        return (
            TOO_LARGE,
            f"Even one request of {size(asked)} is more than the device has",
            [*_attention(found), "request", found.asked_kind],
        )
    private = int(oom["private_cached_bytes"]) - (found.own_cached or 0)
    streams = found.other_streams
    joined = int(oom["cached_bytes"]) - private - streams + free
    growing = [row for row in found.growing if row["bytes"] >= _TENTH * live]
    grown = sum(row["bytes"] for row in growing)  # a graph is of many lines
    leaks = grown > live / 2 and grown > _MUCH * total
    is_beside = outside >= _TWENTIETH * (total + outside) and not leaks
    if is_beside and free + outside >= asked and spare < _MORE * total:
        return OUTSIDE, f"{size(outside)} of {size(total + outside)} are, and torch needs more", ()
    has_cache = kinds.get("KV cache", 0) > live / 2
    since = freed if found.freed_since is None or leaks else found.freed_since
    loads = since <= _LITTLE * live and of_a_pass <= _TENTH * live and not found.is_late
    has_holes = freed > since + joined and spare >= _TENTH * live and found.mends  # of before
    if spare < _MUCH * total and loads and found.goes_on and not has_holes:
        when = "before" if since == freed else "while they came"
        text = f"{size(live)} are in use, and {size(since)} were freed {when}"
        return TOO_LARGE, text, ["KV cache"] * has_cache + ["first" if freed <= since else ""]
    if leaks:
        of_a_graph = growing[0]["kind"] in ("activations", "logits")
        return GROWTH, growing[0]["words"], ("activations",) if of_a_graph else ()
    weights = kinds.get("parameters", 0)
    of_weights = found.asked_kind == "parameters" and weights > live / 2
    if of_weights and (freed if found.freed_alike is None else found.freed_alike) <= weights:
        text = f"{size(weights)} of parameters are loaded, and {size(asked)} more are asked for"
        return TOO_LARGE, text, ()
    is_known = not found.is_private or found.own_cached is not None
    if spare >= 0 and is_known and joined < max(asked, private + streams):
        if streams > private:
            text = f"{size(streams)} are free on other streams, and {size(joined)} for this one"
            return OTHER_POOL, text, ("streams",)
        text = f"{size(private)} are free in private pools, and {size(joined)} elsewhere"
        return OTHER_POOL, text, ()
    before = found.most_before
    came_down = found.is_late or (freed > live if before is None else before > 0)
    is_new = not of_weights and (before or 0) < _ALIKE * (live + asked)
    most = _MORE if came_down and found.mends is not False else _MUCH  # to spare, of a peak
    is_new &= not (loads and has_holes)
    if spare < _LITTLE * total or ((is_new or found.mends is False) and spare < most * total):
        held = ", ".join(f"{size(bytes)} of {kind}" for kind, bytes in list(kinds.items())[:3])
        text = f"{size(asked)} are asked for beside {size(live)} in use"
        return PEAK, f"{text}: {held}" if held else text, _of_peak(found, asked, total)
    largest = max(int(oom["largest_free_bytes"]), free)
    together = joined + (0 if is_known else private)
    text = f"{size(together)} are free together, and the largest piece is {size(largest)}"
    return FRAGMENTATION, text, ("graphs",) if found.is_private else ()


def _attention(found: Found) -> list[str]:
    """Return the subject of attention, if a function of that name asks."""
    return ["attention"] if _ATTENTION.search(found.asked_by) else []


def _of_peak(found: Found, asked: int, total: int) -> list[str]:
    """Return the subjects of the advice on a peak: those that hold most, the request included."""
    shares = Counter(found.kinds)
    shares[found.asked_kind] += asked
    shares["other"] += shares.pop("input data", 0)
    first = _attention(found)
    if found.asked_kind == "optimizer state" and not found.makes_states:
        first = ["intermediates"]
    elif not first and found.asked_kind == "other" and asked >= _MUCH * total:
        first = ["request"]
    if found.kept[0] >= _TENTH * shares.total():
        first = ["kept", *first]
    if found.asked_kind == "logits":
        first += ["logits"] * (shares["logits"] >= _TWENTIETH * total)
    large = [kind for kind, bytes in shares.most_common() if bytes >= _SHARE * shares.total()]
    if found.asked_kind not in _OF_A_PASS and "gradients" in large:  # of a step that is over
        first = ["gradients", *first]
    if found.recomputes and found.asked_kind == "activations":
        first.append("recomputed")
    named = list(dict.fromkeys(first + large))
    return ["training" if k == "activations" and found.recomputes is False else k for k in named]
