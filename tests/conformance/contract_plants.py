# SPDX-License-Identifier: BSD-3-Clause
"""Plants for contracts on npusim: functions that patch, beside the names that they break."""

import contextlib
import itertools
import pickle
import threading
from types import SimpleNamespace

import torch

from npusim_conformance.contracts import event as event_contracts


def instead(owner, name, wrong):
    """`owner.<name>` is `wrong`."""
    return lambda patch: patch.setattr(owner, name, wrong)


def around(owner, name, wrong):
    """`owner.<name>(...)` is `wrong(right, ...)`."""
    right = getattr(owner, name)
    return instead(owner, name, lambda *args, **options: wrong(right, *args, **options))


def method(name, wrong):
    """Tensor.<name> is `wrong(right, tensor, ...)` on npusim, and as it was on the CPU."""

    def either(right, self, *args, **options):
        if self.device.type == "npusim":
            return wrong(right, self, *args, **options)
        return right(self, *args, **options)

    return around(torch.Tensor, name, either)


def refuse(error):
    raise error


def remembers(products):
    """A product that is computed once."""
    return lambda right, self, other: products.setdefault("first", right(self, other))


def in_rows(right, tensor, *args):
    """A result of npusim without the memory format of its operand."""
    result = right(tensor, *args)
    return result.contiguous() if result.device.type == "npusim" else result


class StaysCurrent(torch.npusim.device):
    def __exit__(self, *raised):
        return False


class SwallowsErrors(torch.npusim.device):
    def __exit__(self, *raised):
        super().__exit__(*raised)
        return True


def one_stream_for_all(patch):
    stream = torch.accelerator.current_stream()
    patch.setattr(torch.accelerator, "current_stream", lambda device=None: stream)


def events_never_complete(patch):
    class Event:
        def __init__(self, *args, **kwargs):
            self.event = torch_event(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(self.event, name)

        def query(self):
            return False

    class Side:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            self.stream.__enter__()

        def __exit__(self, *failure):
            self.stream.__exit__(*failure)

        def record_event(self):
            event = Event(self.stream.device)
            event.record(self.stream)
            return event

    def side_stream(run):
        stream, values = right(run)
        return Side(stream), values

    torch_event, right = torch.Event, event_contracts.side_stream
    patch.setattr(torch, "Event", Event)
    patch.setattr(event_contracts, "side_stream", side_stream)


def out_of_memory_has_another_name(right, *args, **kwargs):
    try:
        return right(*args, **kwargs)
    except torch.OutOfMemoryError as error:
        raise RuntimeError(str(error)) from None


KEPT = []  # by a device that loses memory with each refusal


def refusals_keep_memory(right, *args, **kwargs):
    try:
        return right(*args, **kwargs)
    except torch.OutOfMemoryError:
        KEPT.append(right(1 << 10, dtype=torch.uint8, device=kwargs["device"]))
        raise


def adds_elsewhere(right, self, other):
    self.data = self + other
    return self


def sending_fails_without_a_reason(patch):
    method("__reduce_ex__", lambda right, self, protocol: refuse(RuntimeError("no")))(patch)
    patch.setattr("npusim_conformance.contracts.sharing._sent", pickle.dumps)


@contextlib.contextmanager
def index_stays(index):
    if index is not None:
        torch.accelerator.set_device_index(index)
    yield


def autocast_of_others(right, kind, *args, **kwargs):
    return contextlib.nullcontext() if kind == "npusim" else right(kind, *args, **kwargs)


NPU, ACCELERATOR = torch.npusim, torch.accelerator
SIZES = itertools.count()
BROKEN_BY = {
    "device/set_device_changes_current device/set_device_takes_devices "
    "device/current_device_is_per_thread": instead(NPU, "set_device", lambda device: None),
    "device/no_such_index": around(
        NPU, "set_device", lambda right, at: right(at % 2 if isinstance(at, int) else at)
    ),
    "device/context_manager_restores": instead(NPU, "device", StaysCurrent),
    "device/context_manager_restores_after_exceptions": instead(NPU, "device", SwallowsErrors),
    "device/synchronize_takes_devices": around(NPU, "synchronize", lambda right, *at: right()),
    "stream/with_makes_current stream/set_stream_makes_current": one_stream_for_all,
    "stream/module_agrees": instead(NPU, "stream", lambda stream: contextlib.nullcontext()),
    "event/new_event_is_complete event/synchronized_event_is_complete": events_never_complete,
    "memory/allocated_counts_live_tensors memory/statistics_agree": instead(
        NPU, "memory_allocated", lambda device=None: 0
    ),
    "memory/peak_is_the_highest": instead(NPU, "reset_peak_memory_stats", lambda device=None: None),
    "memory/empty_cache_gives_back": instead(NPU, "empty_cache", lambda: None),
    "memory/statistics_are_per_device": around(
        NPU, "memory_allocated", lambda right, device=None: right(0) + right(1)
    ),
    "memory/freed_memory_is_used_again": instead(
        NPU, "memory_reserved", lambda device=None: next(SIZES)
    ),
    "memory/too_much_is_out_of_memory": around(torch, "empty", out_of_memory_has_another_name),
    "memory/works_after_out_of_memory": around(torch, "empty", refusals_keep_memory),
    "rng/manual_seed_repeats rng/devices_have_their_own rng/dropout_follows_the_seed": instead(
        NPU, "manual_seed_all", lambda seed: None
    ),
    "rng/state_can_be_restored rng/fork_rng_restores rng/bad_states_are_refused": instead(
        NPU, "set_rng_state", lambda state, device=None: None
    ),
    "rng/generators_are_independent": instead(
        torch, "Generator", lambda device="cpu": NPU._get_generator(device)
    ),
    "serialization/load_restores_the_device serialization/every_dtype_survives": around(
        torch, "load", lambda right, *args, **more: right(*args, **{**more, "map_location": "cpu"})
    ),
    "serialization/deepcopy_shares_nothing serialization/sharing_survives": method(
        "__deepcopy__", lambda right, self, memo: self
    ),
    "pinned/pin_memory_pins dataloader/pins_batches dataloader/takes_pin_memory_device": instead(
        torch.Tensor, "pin_memory", torch.Tensor.clone
    ),
    "dlpack/names_its_device": instead(torch.Tensor, "__dlpack_device__", lambda self: (1, 0)),
    "numpy/numpy_needs_the_cpu": method("numpy", lambda right, self: right(self.cpu())),
    "printing/every_shape_prints printing/gradients_show printing/float32_prints "
    "printing/every_integer_prints printing/every_other_float_prints "
    "printing/every_rare_dtype_prints": method(
        "__repr__", lambda right, self: f"tensor({self.tolist()})"
    ),
    "indexing/ints_out_of_range_are_refused": method(
        "__getitem__",
        lambda right, self, i: right(self, i % len(self) if isinstance(i, int) else i),
    ),
    "indexing/scalars_come_back indexing/reading_follows_writing": method(
        "item", lambda right, self: 0.0
    ),
    "copy/to_copies_only_when_it_must": method(
        "to", lambda right, self, *args, **kwargs: right(self.clone(), *args, **kwargs)
    ),
    "copy/overlapping_targets_are_refused copy/copies_broadcast": method(
        "copy_", lambda right, self, source, **more: self
    ),
    "storage/in_place_keeps_the_address": method("add_", adds_elsewhere),
    "promotion/dtypes_promote_as_on_the_cpu": method(
        "__mul__", lambda right, self, other: right(self.float(), other)
    ),
    "autograd/hooks_run autograd/errors_of_hooks_come_through": method(
        "register_hook", lambda right, self, hook: SimpleNamespace(remove=lambda: None)
    ),
    "amp/autocast_lowers_matrix_products amp/autocast_trains": around(
        torch, "autocast", autocast_of_others
    ),
    "amp/scaler_skips_infinite_gradients": around(
        torch,
        "_amp_foreach_non_finite_check_and_unscale_",
        lambda right, gradients, found, by: (right(gradients, found, by), found.zero_()),
    ),
    "amp/scaler_sees_each_gradient": around(
        torch,
        "_amp_foreach_non_finite_check_and_unscale_",
        lambda right, gradients, *others: right(gradients[-1:], *others),
    ),
    "amp/autocast_casts_weights_anew": method("__matmul__", remembers({})),
    "storage/as_strided_begins_where_the_tensor_does": method(
        "as_strided", lambda right, self, *given: right(self, *given[:2], *(given[2:] or (0,)))
    ),
    "storage/what_is_no_view_is_refused": method(
        "view", lambda right, self, *shape: right(self.contiguous(), *shape)
    ),
    "storage/elementwise_results_keep_channels_last": around(torch, "relu", in_rows),
    "storage/poolings_keep_channels_last": around(torch.nn.functional, "max_pool2d", in_rows),
    "sharing/sending_works_or_is_refused": sending_fails_without_a_reason,
    "accelerator/device_index_restores": instead(ACCELERATOR, "device_index", index_stays),
    "profiler/records_operators": instead(
        torch.profiler.profile, "key_averages", lambda self, *args, **kwargs: []
    ),
}
HERE, THERE = "npusim:0", "npusim:1"


def or_itself(right, self, *args, **options):
    """The result of a method, or the tensor where it is refused."""
    try:
        return right(self, *args, **options)
    except RuntimeError:
        return self


def or_flat(loaded):
    """The loaded object, but flat if it is a tensor."""
    return loaded.flatten() if isinstance(loaded, torch.Tensor) else loaded


def unconjugated(tensor):
    return tensor.conj() if tensor.is_conj() else tensor


def is_main():
    return threading.current_thread() is threading.main_thread()


def a_copy(right, *args, **options):
    return right(*args, **options).clone()


class Unsigned(torch.Event):
    def elapsed_time(self, other):
        return 1.0


class Counting(torch.Event):
    def elapsed_time(self, other):
        return float(next(SIZES))


class Unready(torch.Event):
    def query(self):
        return False


class Anywhere(torch.Event):
    def record(self, stream=None):
        with contextlib.suppress(RuntimeError):
            super().record(stream)


class Cut(torch.Generator):
    def initial_seed(self):
        seed = super().initial_seed()
        return seed & 0xFFFF if self.device.type == "npusim" else seed

    def clone_state(self):
        return torch.Generator()


def pool_of_one(right, *sizes, **options):
    """torch.empty() that gives every tensor of bytes the same memory."""
    if options.get("dtype") != torch.uint8:
        return right(*sizes, **options)
    KEPT.append(right(8192, dtype=torch.uint8, device=options["device"]))
    return KEPT[0][: sizes[0]]


class UnreadyStream(contextlib.nullcontext):
    """A stream whose events are never complete."""

    def __init__(self, device):
        super().__init__()

    def record_event(self):
        return SimpleNamespace(query=lambda: False, wait=lambda stream: None)

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass


STATES = {}


class NeverWaits(torch.Stream):
    """A stream whose copies never arrive."""

    def __enter__(self):
        KEPT.append(torch.Tensor.copy_)
        torch.Tensor.copy_ = lambda self, source, **more: self
        return super().__enter__()

    def __exit__(self, *raised):
        torch.Tensor.copy_ = KEPT.pop()
        return super().__exit__(*raised)


class Forgetful(torch.Generator):
    def set_state(self, state):
        return self if self.device.type == "npusim" else super().set_state(state)


def unless_it_waits(right, self, source, non_blocking=False):
    """copy_() whose target stays as it was where nobody waits."""
    return self if non_blocking else right(self, source)


class Hoarding(torch.Event):
    def __del__(self):
        KEPT.append(bytearray(3000))


READ = []  # by the thread before


def stale(right, self):
    """item() that gives the first value ever read."""
    READ.append(right(self))
    return READ[0]


BROKEN_BY |= {
    "views/views_lie_where_they_should views/views_of_parts_lie_where_they_should": method(
        "narrow", a_copy
    ),
    "views/windows_are_views": method("unfold", a_copy),
    "views/views_without_elements_lie_where_they_should": method(
        "unsqueeze", lambda right, self, dim: right(self, dim + 1)
    ),
    "views/views_of_another_size_are_refused": method("view", or_itself),
    "views/as_strided_keeps_to_the_storage": method("as_strided", or_itself),
    "views/impossible_sizes_are_refused": around(
        torch, "empty", lambda right, *sizes, **more: right(0 if -1 in sizes else sizes, **more)
    ),
    "views/set_refuses_what_does_not_fit views/set_refuses_another_device": method(
        "set_", or_itself
    ),
    "views/set_reaches_beyond_its_storage": method(
        "set_", lambda right, self, memory, *lies: right(self, memory, 0, *lies[1:])
    ),
    "views/new_tensors_have_the_default_dtype": around(
        torch, "empty", lambda right, *sizes, **more: right(*sizes, **more).float()
    ),
    "views/items_of_views_are_theirs views/items_of_conj_views_are_theirs": method(
        "item", lambda right, self: 0.0
    ),
    "second_device/work_stays_on_its_device": method(
        "flip", lambda right, self, *dims: right(self, *dims).to(HERE)
    ),
    "second_device/growing_stays_on_its_device": method(
        "resize_", lambda right, self, *sizes: torch.empty(*sizes, device=HERE)
    ),
    "second_device/memory_of_two_devices_is_two": method("to", lambda right, self, *more: self),
    "second_device/other_threads_reach_both_devices": method(
        "cpu", lambda right, self: right(self) * is_main()
    ),
    "second_device/no_device_changes_nothing": around(
        NPU, "device", lambda right, at: right(at or 0)
    ),
    "second_device/operands_of_two_devices_are_refused": around(
        torch, "where", lambda right, condition, one, other: one
    ),
    "memory/live_tensors_do_not_overlap": around(torch, "empty", pool_of_one),
    "memory/addresses_fit_every_dtype": around(
        torch, "empty", lambda right, size, **more: right(size + 1, **more)[1:]
    ),
    "memory/threads_may_allocate_at_once": method(
        "clone", lambda right, self: right(self) * is_main()
    ),
    "memory/totals_grow_with_every_allocation": around(
        ACCELERATOR,
        "memory_stats",
        lambda right, *at: {**right(*at), "allocated_bytes.all.freed": 0},
    ),
    "memory/totals_can_be_reset": instead(
        ACCELERATOR, "reset_accumulated_memory_stats", lambda device=None: None
    ),
    "memory/freed_memory_leaves_the_host": method(
        "cpu", lambda right, self: KEPT.append(right(self)) or KEPT[-1]
    ),
    "indexing/threads_read_their_own_values": method("item", stale),
    "promotion/every_dtype_computes": around(
        torch, "add", lambda right, x, y, alpha=1: right(x, y) if x.is_cpu else right(x, y).float()
    ),
    "storage/writes_over_themselves_are_refused": method("add_", or_itself),
    "amp/scaler_keeps_to_its_settings": around(
        torch, "_amp_update_scale_", lambda right, *given: right(*given[:-1], 1)
    ),
    "copy_waits/copies_are_there_after_stream_synchronize "
    "copy_waits/copies_are_there_after_event_synchronize "
    "copy_waits/copies_are_there_after_synchronize "
    "copy_waits/copies_are_there_when_the_stream_is_done "
    "copy_waits/copies_are_there_when_the_event_is_complete "
    "copy_waits/work_follows_the_stream_it_waits_for "
    "copy_waits/work_follows_the_event_it_waits_for "
    "copy_waits/work_follows_an_event_that_waits "
    "copy_waits/events_are_recorded_on_the_stream_named "
    "copy_waits/events_recorded_again_wait_for_the_last "
    "copy_waits/work_follows_events_of_another_device "
    "copy_waits/copies_are_there_after_synchronize_by_name": instead(torch, "Stream", NeverWaits),
    "copy_order/reading_waits_for_late_copies copy_order/copies_of_a_stream_keep_their_order "
    "copy_order/an_event_holds_each_time copy_order/sources_of_late_copies_may_die "
    "copy_order/work_after_a_copy_does_not_reach_it copy_order/parts_and_kinds_are_copied_late "
    "copy_order/late_copies_cross_devices": around(torch.Tensor, "copy_", unless_it_waits),
    "amp/scaler_unscales_every_dtype amp/scaler_serves_two_devices": around(
        torch, "_amp_foreach_non_finite_check_and_unscale_", lambda right, gradients, *others: None
    ),
    "leaks/work_leaves_nothing_on_the_host": method(
        "cpu", lambda right, self: KEPT.append(right(self)) or KEPT[-1]
    ),
    "leaks/pinned_memory_leaves_the_host": around(
        torch.Tensor, "pin_memory", lambda right, self: KEPT.append(right(self)) or KEPT[-1]
    ),
    "leaks/small_objects_are_freed": instead(torch, "Event", Hoarding),
    "conversion/rare_kinds_are_converted": method(
        "to", lambda right, self, *to: right(right(self, torch.float32), *to)
    ),
    "memory/peaks_of_reserved_memory_can_be_reset": instead(
        ACCELERATOR, "max_memory_reserved", lambda device=None: 0
    ),
    "memory/more_than_four_gibibytes": around(
        torch, "empty", lambda right, *sizes, **more: right(*(n % (1 << 32) for n in sizes), **more)
    ),
    "memory/threads_may_read_one_tensor": method(
        "cpu", lambda right, self: right(self) * is_main()
    ),
    "rng/seeds_are_of_the_current_device": instead(NPU, "initial_seed", lambda: 11),
    "serialization/copies_stay_on_their_device": method(
        "__deepcopy__", lambda right, self, memo: right(self, memo).to(HERE)
    ),
    "serialization/files_can_be_mapped": around(
        torch, "load", lambda right, *args, **more: right(*args, **{**more, "map_location": "cpu"})
    ),
    "promotion/numbers_of_python_keep_their_value": method(
        "fill_", lambda right, self, number: right(self, min(number, 2**31 - 1))
    ),
    "serialization/what_has_no_elements_survives": around(
        torch, "load", lambda right, *args, **more: or_flat(right(*args, **more))
    ),
    "rng/moved_states_go_round": instead(torch, "Generator", Forgetful),
    "promotion/float64_is_computed_as_such": around(
        torch, "mm", lambda right, x, y: right(x, y) if x.is_cpu else right(x, y).float().double()
    ),
    "memory/copies_leave_nothing": method(
        "half", lambda right, self: KEPT.append(right(self)) or KEPT[-1]
    ),
    "views/views_of_other_dtypes_lie_where_they_should": method(
        "view", lambda right, self, *to: right(self, *to).clone()
    ),
    "memory/peaks_are_per_device": around(
        ACCELERATOR, "reset_peak_memory_stats", lambda right, at=None: (right(0), right(1))
    ),
    "copy_waits/streams_wait_themselves stream/synchronize_completes_events "
    "accelerator/synchronize_completes_every_stream "
    "accelerator/synchronize_waits_for_the_device_named": instead(torch, "Stream", UnreadyStream),
    "stream/many_streams_can_be_made stream/streams_of_two_devices_differ": one_stream_for_all,
    "stream/streams_are_known_by_their_numbers device/no_such_device_for_streams": around(
        torch, "Stream", lambda right, *args, **more: right(HERE)
    ),
    "event/time_does_not_run_backwards": instead(torch, "Event", Unsigned),
    "event/events_keep_to_their_moment": instead(torch, "Event", Counting),
    "event/events_work_on_either_device": instead(torch, "Event", Unready),
    "event/events_stay_on_their_device": instead(torch, "Event", Anywhere),
    "copy/every_byte_arrives_at_block_ends": method(
        "clone", lambda right, self: right(self) * (self.numel() != 4097)
    ),
    "copy/copies_take_the_values_of_their_moment": method(
        "copy_", lambda right, self, source, **more: self.set_(source)
    ),
    "copy/nothing_is_copied_where_there_is_nothing": method(
        "cpu", lambda right, self: right(self.flatten())
    ),
    "copy/copies_return_their_target": method("copy_", a_copy),
    "copy/memory_formats_are_kept_or_made": method(
        "clone", lambda right, self, **more: right(self)
    ),
    "copy/conj_and_neg_views_go_there": around(
        torch.Tensor, "to", lambda right, self, *args, **more: right(unconjugated(self), *args)
    ),
    "copy/conj_and_neg_views_come_back": method(
        "cpu", lambda right, self: right(unconjugated(self))
    ),
    "copy/conj_and_neg_views_are_copied_there copy/conj_views_are_written_to": method(
        "copy_", lambda right, self, source: right(unconjugated(self), unconjugated(source))
    ),
    "copy/conj_and_neg_views_are_cloned": method(
        "clone", lambda right, self, **more: right(unconjugated(self))
    ),
    "device/no_such_device_for_new_tensors": around(
        torch, "empty", lambda right, *sizes, **more: right(*sizes, device=HERE)
    ),
    "device/no_such_device_for_copies": around(
        torch.Tensor, "to", lambda right, self, *args, **more: right(self, HERE)
    ),
    "device/no_such_device_for_states": around(NPU, "get_rng_state", lambda right, at=0: right(0)),
    "device/methods_of_storages_and_sequences": instead(torch.UntypedStorage, "is_npusim", True),
    "rng/seeds_may_be_negative rng/clones_of_generators_stay_on_their_device": instead(
        torch, "Generator", Cut
    ),
    "rng/generators_of_both_devices_keep_their_seeds rng/equal_seeds_are_equal_states": instead(
        torch, "Generator", lambda device="cpu": NPU._get_generator(HERE)
    ),
    "rng/states_are_copies": around(
        NPU, "get_rng_state", lambda right, at=0: STATES.setdefault(at, right(at))
    ),
    "rng/states_take_a_device_by_any_name": around(
        NPU, "get_rng_state", lambda right, at=0: right(0 if isinstance(at, str) else at)
    ),
    "rng/torch_seeds_the_device": instead(NPU, "manual_seed_all", lambda seed: None),
    "amp/autocast_leaves_doubles_and_integers": method(
        "__matmul__", lambda right, self, other: right(self.float(), other.float())
    ),
    "amp/autocast_knows_its_operators": around(torch, "autocast", autocast_of_others),
    "amp/autocast_refuses_what_overflows": around(
        torch.nn.functional, "binary_cross_entropy", lambda right, one, other: one.half()
    ),
    "promotion/scalars_of_the_cpu_mix": method(
        "__sub__", lambda right, self, other: right(self, other) + 1
    ),
    "promotion/scalars_of_the_cpu_come_first": around(
        torch.Tensor,
        "__sub__",
        lambda right, self, other: right(self, other) + (other.device.type == "npusim"),
    ),
    "promotion/results_of_first_scalars_are_the_devices": around(
        torch.Tensor, "__sub__", lambda right, self, other: right(self, other).cpu()
    ),
    "numpy/force_resolves_conj": method(
        "numpy", lambda right, self, force=False: right(unconjugated(self), force=force)
    ),
    "storage/pairs_of_complex_numbers_share_it": around(torch, "view_as_real", a_copy),
    "storage/complex_views_of_pairs_share_it": around(torch, "view_as_complex", a_copy),
    "storage/is_set_to_tells_others_apart": method("is_set_to", lambda right, self, other: True),
    "storage/resize_grows": method(
        "resize_", lambda right, self, *sizes: right(self, *sizes).zero_()
    ),
    "storage/resize_to_the_same_size_changes_nothing": method("resize_", a_copy),
    "storage/resize_gives_memory_to_what_has_none": method(
        "resize_", lambda right, self, *sizes: right(self, 1)
    ),
    "pinned/pinned_tensors_do_not_overlap pinned/devices_refuse_to_pin": around(
        torch, "empty", lambda right, *sizes, **more: right(*sizes, **{**more, "pin_memory": False})
    ),
    "pinned/nothing_can_be_pinned": around(
        torch.Tensor, "pin_memory", lambda right, self: right(self.flatten())
    ),
    "pinned/memory_that_was_pinned_is_plain_again": instead(
        torch.Tensor, "is_pinned", lambda self: True
    ),
    "pinned/pinned_memory_keeps_every_dtype": around(
        torch.Tensor, "to", lambda right, self, *args, **more: right(self, *args, **more) * 2
    ),
}
PLANTS = {name: plant for names, plant in BROKEN_BY.items() for name in names.split()}
