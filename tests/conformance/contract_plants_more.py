# SPDX-License-Identifier: BSD-3-Clause
"""Plants for contracts on npusim: threads, errors, current devices, and numbers of another kind."""

import torch
from conformance.contract_plants import ACCELERATOR, KEPT, NPU, around, instead, is_main, method


def keeps_what_fails(right, *args):
    """An operator that keeps its arguments where it raises."""
    try:
        return right(*args)
    except RuntimeError:
        KEPT.append(args)
        raise


def moves(right, *args):
    """A call that leaves the second device current."""
    result = right(*args)
    NPU.set_device(1)
    return result


class Moving(torch.Event):
    """An event whose record() leaves its stream's device current."""

    def record(self, stream=None):
        super().record(stream)
        if stream is not None:
            NPU.set_device(stream.device_index)


class Elsewhere(torch.Generator):
    """A generator that names the host as its device."""

    device = torch.device("cpu")


def one_block(blocks):
    """torch.full() that gives every tensor of the device the same memory."""

    def full(right, size, value, device=None, **options):
        if device is None:
            return right(size, value, **options)
        return blocks.setdefault(size, right(size, value, device=device, **options)).fill_(value)

    return full


def asks_itself(right, *at):
    """The state of the thread that asks."""
    return right(*at) if is_main() else torch.zeros_like(right(*at))


# (contract, plant); several plants may break one contract.
MORE = (
    ("accelerator/questions_leave_the_current_device", around(ACCELERATOR, "empty_cache", moves)),
    ("accelerator/questions_leave_the_current_device", around(ACCELERATOR, "memory_stats", moves)),
    ("accelerator/questions_leave_the_current_device", instead(torch, "Event", Moving)),
    ("memory/errors_keep_nothing", around(torch, "mm", keeps_what_fails)),
    ("memory/errors_keep_nothing", around(torch.Tensor, "gather", keeps_what_fails)),
    (
        "copy_order/memory_of_a_side_stream_is_not_taken_too_early",
        around(torch, "full", one_block({})),
    ),
    (
        "pinned/threads_know_each_others_pinned_memory",
        around(torch.Tensor, "is_pinned", lambda right, self: right(self) and is_main()),
    ),
    (
        "promotion/zeros_keep_their_sign",
        method("fill_", lambda right, self, number: right(self, number + 0)),  # -0.0 + 0 is 0.0
    ),
    ("promotion/zeros_keep_their_sign", method("item", lambda right, self: right(self) + 0)),
    (
        "promotion/integers_meet_fractions",
        method("__lt__", lambda right, self, number: right(self, float(number) // 1)),
    ),
    (
        "promotion/integers_meet_fractions",
        method("__floordiv__", lambda right, self, number: right(self, number) + 1),
    ),
    ("rng/threads_share_the_default_generator", around(NPU, "get_rng_state", asks_itself)),
    (
        "rng/threads_share_the_default_generator",
        around(NPU, "initial_seed", lambda right: right() if is_main() else 0),
    ),
    ("rng/generators_are_independent", instead(torch, "Generator", Elsewhere)),
    (
        "serialization/bytes_of_every_number_survive",
        around(torch, "load", lambda right, *args, **more: right(*args, **more)[:16].clone()),
    ),
)
