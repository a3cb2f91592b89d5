# SPDX-License-Identifier: BSD-3-Clause
"""Plants for the sieves: tables of expressions, conditions, settings, statistics, and their kin."""

import ctypes
import os
import signal

import torch
import torch.utils._device
from conformance.contract_plants import ACCELERATOR, KEPT, NPU, around, instead, is_main, method
from torch.nn import functional


def of_npusim(wrong):
    """`wrong(right, ...)` where the first argument is npusim's, else the right call."""

    def either(right, *args, **options):
        first = args[0][0] if isinstance(args[0], (tuple, list)) else args[0]
        if first.device.type == "npusim":
            return wrong(right, *args, **options)
        return right(*args, **options)

    return either


def with_its_bound(right, given, bound, *more):
    """An activation that leaves an element equal to its bound as it is."""
    return torch.where(given == bound, given, right(given, bound, *more))


def but_the_last(right, self, *args, **more):
    """Random numbers whose last element, of an odd count, is 5."""
    drawn = right(self, *args, **more)
    if self.numel() % 2:
        drawn.view(-1)[-1] = 5
    return drawn


def knows_no_side(search):
    """searchsorted() that knows right=True alone, on npusim."""

    def either(edges, given, side=None, right=False):
        there = edges.device.type == "npusim"
        return search(edges, given, side=None if there else side, right=right)

    return either


def of_32_bits(right, *args, **more):
    """Whole numbers of npusim without their upper half."""
    drawn = right(*args, **more)
    return drawn % 2**32 if drawn.device.type == "npusim" else drawn


class OfTheCurrent(torch.Event):
    """An event whose record() ignores the stream that it is given."""

    def record(self, stream=None):
        super().record()


def raised(number):
    """The result of a function, with something added."""
    return of_npusim(lambda right, *args, **more: right(*args, **more) + number)


def made_raised(right, *args, **more):
    """The tensor of a factory, on npusim with 1 added."""
    result = right(*args, **more)
    return result + 1 if result.device.type == "npusim" else result


def rolled(right, self, *args, **more):
    """Another order of the results."""
    return right(self, *args, **more).roll(1)


def without_gradient(right, *args, **more):
    """A result whose gradient is half of the right one."""
    result = right(*args, **more)
    return result * 0.5 + result.detach() * 0.5


def sets_threads(right, self, *args):
    """A product that changes the number of threads."""
    torch.set_num_threads(torch.get_num_threads() + 1)
    return right(self, *args)


def ignores_a_signal(right, self, **more):
    """A sort that has its own way with a signal, behind Python's back."""
    ctypes.CDLL(None).signal(signal.SIGWINCH, ctypes.c_void_p(1))
    return right(self, **more)


def prints(right, self, *args):
    """A sum that speaks."""
    os.write(1, b"no tuned kernel\n")
    return right(self, *args)


def opens(right, *args):
    """A generator that opens a file."""
    KEPT.append(os.open(os.devnull, os.O_RDONLY))
    return right(*args)


def spoils(right, self, source, **more):
    """A copy that converts in its source."""
    result = right(self, source, **more)
    if self.dtype != source.dtype and source.device.type == "npusim":
        source.add_(1)
    return result


def only_in_the_first_thread(right, self, *args, **more):
    """A copy that loses its values in other threads."""
    result = right(self, *args, **more)
    return result if is_main() else result * 0


def only_of_the_first_device(right, self, *args, **more):
    """A value that is wrong on the second device."""
    result = right(self, *args, **more)
    return result if self.device.index == 0 else result + 1


def lies_on_the_first(right, self, *args):
    """A result on the first device, wherever its operands lie."""
    result = right(self, *args)
    return result if result.is_cpu else result.to("npusim:0")


def moves_with_an_event(right, *args, **more):
    """A number of the current device that another thread's choice changes."""
    return right(*args, **more) if is_main() else 1


def half_pinned(right, self):
    """Pinned memory whose end is not known as such."""
    return right(self) and (self.numel() > 1 or self.storage_offset() == 0)


def resets_both(right, *args):
    """A reset of totals that resets peaks, too."""
    ACCELERATOR.reset_peak_memory_stats(*args)
    return right(*args)


def not_there_yet(right, self, *to, **more):
    """A copy that is done later where it does not block."""
    result = right(self, *to, **more)
    return result * 0 if more.get("non_blocking") else result


def on_the_default_stream(right, self, *args):
    """A copy that reads before the work of a side stream."""
    side = ACCELERATOR.current_stream() != NPU.default_stream()
    return right(self, *args) * 0 if side else right(self, *args)


def from_the_current(right, self, *args):
    """A copy that reads the memory of the current device."""
    current = ACCELERATOR.current_device_index()
    return right(self, *args) if self.device.index == current else right(self, *args) * 0


def counts_in_kib(patch):
    """The memory of events is in another unit."""
    kib = property(lambda event: event.kib, lambda event, size: setattr(event, "kib", size // 1024))
    event = torch.autograd.profiler_util.FunctionEvent
    patch.setattr(event, "device_memory_usage", kib, raising=False)


class ReturnsToItsDevice(torch.Generator):
    """A generator whose end leaves its device current."""

    def __del__(self):
        NPU.set_device(self.device)


def three_in_turn(blocks):
    """Pinned memory that has three blocks, whoever still holds one."""

    def pin(right, self):
        blocks.append(right(self) if len(blocks) < 3 else blocks.pop(0).copy_(self))
        return blocks[-1]

    return pin


SIEVES = (
    ("operators/reductions_agree", method("argmax", rolled)),
    ("operators/arithmetic_agree", method("lerp", lambda right, self, *a: right(self, *a) + 1)),
    ("operators/comparisons_agree", method("clamp", lambda right, self, *a, **m: self + 0)),
    ("operators/functions_agree", method("expm1", lambda right, self: self.exp() - 1)),
    ("operators/absolutes_agree", method("abs", lambda right, self: right(self) + 1)),
    ("operators/complex_numbers_agree", method("angle", lambda right, self: right(self) + 1)),
    ("operators/moves_agree", method("roll", lambda right, self, *a: self)),
    ("operators/indexes_agree", method("gather", lambda right, self, d, i: right(self, d, i) + 1)),
    ("copy/kinds_are_converted_on_the_way", around(torch.Tensor, "copy_", spoils)),
    ("operators/indexes_agree", method("index_select", lies_on_the_first)),
    ("operators/orders_agree", around(torch, "isin", raised(1))),
    ("operators/factories_agree", around(torch, "linspace", made_raised)),
    ("operators/products_agree", around(torch, "bmm", raised(1))),
    ("operators/decompositions_agree", around(torch, "cdist", raised(1))),
    ("operators/activations_agree", around(functional, "softplus", raised(1))),
    ("operators/poolings_agree", around(functional, "avg_pool2d", raised(1))),
    ("operators/losses_agree", around(functional, "huber_loss", raised(1))),
    ("operators/writes_agree", method("mul_", lambda right, self, number: right(self, number + 1))),
    ("operators/convolutions_agree", around(functional, "conv2d", raised(1))),
    ("operators/gradients_of_elements_agree", method("atan2", without_gradient)),
    ("operators/gradients_of_indexes_agree", method("gather", without_gradient)),
    *(
        (f"operators/gradients_of_{kind}_agree", around(owner, name, of_npusim(without_gradient)))
        for kind, owner, name in (
            ("products", torch, "bmm"),
            ("activations", functional, "softplus"),
            ("poolings", functional, "avg_pool2d"),
            ("losses", functional, "huber_loss"),
        )
    ),
    ("side_effects/work_changes_no_setting", method("__matmul__", sets_threads)),
    ("side_effects/work_writes_nothing_to_stdout", method("__add__", prints)),
    ("side_effects/work_keeps_no_descriptor_and_no_thread", around(torch, "Generator", opens)),
    (
        "side_effects/threads_begin_with_the_defaults",
        around(ACCELERATOR, "current_device_index", moves_with_an_event),
    ),
    ("conditions/contracts_hold_on_the_second_device", method("item", only_of_the_first_device)),
    ("conditions/contracts_hold_in_another_thread", method("cpu", only_in_the_first_thread)),
    (
        "statistics/calls_leave_the_other_statistics",
        around(ACCELERATOR, "reset_accumulated_memory_stats", resets_both),
    ),
    ("pinned/parts_of_pinned_memory_are_pinned", around(torch.Tensor, "is_pinned", half_pinned)),
    ("rng/seeding_again_begins_again", instead(NPU, "manual_seed_all", lambda seed: None)),
    (
        "conversion/booleans_are_zero_or_one",
        method("to", lambda right, self, *to: right(self.nan_to_num(0), *to)),
    ),
    (
        "conversion/fractions_are_cut_towards_zero",
        method("to", lambda right, self, *to: right(self.floor(), *to)),
    ),
    (
        "conversion/conversions_broadcast",
        method("copy_", lambda right, self, source: right(self, source.flatten()[0])),
    ),
    (
        "storage/new_tensors_have_the_format_asked_for",
        around(torch, "empty_like", of_npusim(lambda right, like, **more: right(like))),
    ),
    (
        "device/context_manager_takes_devices_by_any_name",
        around(NPU, "device", lambda right, at: right(0 if isinstance(at, str) else at)),
    ),
    (
        "accelerator/hooks_speak_of_the_current_device",
        around(torch._C, "_accelerator_hooks_exchange_device", lambda right, i: right(i) * 0 + i),
    ),
    (
        "copy_waits/earlier_copies_are_there_when_the_stream_is_done",
        method("copy_", lambda right, self, *args, **more: self),
    ),
    (
        "copy_waits/copies_of_default_streams_are_there_after_synchronize",
        method("copy_", lambda right, self, *args, **more: self),
    ),
    ("side_effects/work_changes_no_setting", method("sort", ignores_a_signal)),
    (
        "copy_on_write/lazy_clones_have_all_their_bytes",
        method("_lazy_clone", lambda right, self: self.cpu()[:16].to(self.device)),
    ),
    ("event/record_takes_a_stream", instead(torch, "Event", OfTheCurrent)),
    *(
        ("operators/activations_agree", around(functional, name, of_npusim(with_its_bound)))
        for name in ("hardshrink", "softshrink", "threshold")
    ),
    *(
        ("draws/every_position_is_drawn", method(name, but_the_last))
        for name in ("normal_", "uniform_", "exponential_")
    ),
    ("draws/whole_numbers_have_all_their_bits", around(torch, "randint", of_32_bits)),
    (
        "draws/whole_numbers_have_all_their_bits",
        method("random_", lambda right, self, *args: right(self, *args) & ~1),
    ),
    (
        "dlpack/capsules_share_memory",
        method("__dlpack__", lambda right, self, **more: right(self.contiguous(), **more)),
    ),
    ("operators/orders_agree", instead(torch, "searchsorted", knows_no_side(torch.searchsorted))),
    ("numpy/values_go_round", method("cpu", lambda right, self: right(self) * 0)),
    (
        "device/device_as_context",  # of a backend that wraps factories
        around(torch.utils._device, "_device_constructors", lambda right: right() - {torch.tensor}),
    ),
    ("dataloader/loads_in_this_process", around(torch.Tensor, "to", not_there_yet)),
    ("dataloader/loads_with_two_workers", around(torch.Tensor, "to", not_there_yet)),
    (
        "dataloader/pins_batches_of_workers",
        around(
            torch.Tensor, "pin_memory", lambda right, self, *a: right(self) if is_main() else self
        ),
    ),
    ("dataloader/streams_from_workers", around(torch, "cat", raised(1))),
    ("dataloader/data_on_the_device", around(torch, "stack", raised(1))),
    ("conditions/contracts_hold_on_a_side_stream", method("cpu", on_the_default_stream)),
    ("conditions/contracts_hold_while_another_is_current", method("cpu", from_the_current)),
    ("profiler/records_memory", counts_in_kib),
    (
        "side_effects/dying_objects_leave_the_current_device",
        instead(torch, "Generator", ReturnsToItsDevice),
    ),
    (
        "pinned/freed_pinned_memory_is_not_written_to",
        around(torch.Tensor, "pin_memory", three_in_turn([])),
    ),
    (
        "serialization/files_can_be_read_without_the_backend",
        method("__reduce_ex__", lambda right, self, protocol: right(self.to("meta"), protocol)),
    ),
)
