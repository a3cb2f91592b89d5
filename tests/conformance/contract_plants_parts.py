# SPDX-License-Identifier: BSD-3-Clause
"""Plants for the parts of a device: streams, events, generators, files, DLPack, gradients."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.utils.dlpack
from conformance.contract_plants import (
    ACCELERATOR,
    HERE,
    NPU,
    SIZES,
    STATES,
    THERE,
    Counting,
    Forgetful,
    Unready,
    a_copy,
    around,
    autocast_of_others,
    in_rows,
    instead,
    method,
    unless_it_waits,
)


def loads(wrong):
    """torch.load() whose result is `wrong` of the right one."""
    return around(torch, "load", lambda right, *args, **more: wrong(right(*args, **more)))


def imports(wrong):
    """from_dlpack() whose result is `wrong` of the right one."""
    return around(torch.utils.dlpack, "from_dlpack", lambda right, *args: wrong(right(*args)))


def halved(right, *args):
    """A product whose gradient is half of the right one."""
    result = right(*args)
    return torch.add(result.mul(0.5), result.detach().mul(0.5))


def on_the_cpu(right, data):
    """The unpickled object, on the CPU."""
    result = right(data)
    return result.cpu() if hasattr(result, "cpu") else result


def both(name, wrong):
    """A statistic of the device's module and of torch.accelerator."""

    def plant(patch):
        patch.setattr(NPU, name, wrong)
        patch.setattr(ACCELERATOR, name, wrong)

    return plant


def read_by_numpy(patch):
    patch.setattr(torch.Tensor, "__dlpack_device__", lambda self: (1, 0))
    method("__dlpack__", lambda right, self, **more: right(self.cpu(), **more))(patch)


def event(**wrong):
    """An event with other attributes."""
    return instead(torch, "Event", type("Wrong", (torch.Event,), wrong))


def generator(**wrong):
    """A generator with other attributes."""
    return instead(torch, "Generator", type("Wrong", (torch.Generator,), wrong))


class Swallowing(torch.Stream):
    def __exit__(self, *raised):
        super().__exit__(*raised)
        return True


def column_in_rows(right, tensor, *args, **options):
    """A pooling of npusim that takes images of one column for rows, as its stride says."""
    if tensor.device.type == "npusim" and tensor.shape[-1] == tensor.stride(-1) == 1:
        tensor = tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride())
    return right(tensor, *args, **options)


AUTOCAST = torch.autocast
STALE = method("cpu", lambda right, self: right(self) * 0)  # as if nothing waited
DOUBLED = around(torch.Tensor, "to", lambda right, *args, **more: right(*args, **more) * 2)
STILL = {"elapsed_time": lambda self, other: 0.0}
HALVED = method("__mul__", halved)
COUNTS = both("memory_allocated", lambda device=None: 512 * next(SIZES))
CURRENT = around(torch, "Stream", lambda right, *args, **more: ACCELERATOR.current_stream())
WITHOUT_GENERATOR = {
    name: around(torch, name, lambda right, *args, generator=None, **more: right(*args, **more))
    for name in ("rand", "randn")
}

PARTS = {
    "stream/new_streams_differ stream/current_stream_is_per_thread "
    "stream/stream_of_another_device": CURRENT,
    "stream/each_device_has_its_current_stream": instead(
        ACCELERATOR, "set_stream", lambda to: None
    ),
    "stream/with_restores_after_exceptions": instead(torch, "Stream", Swallowing),
    "stream/wait_orders_work stream/streams_keep_their_order stream/synchronize_finishes "
    "stream/device_waits_for_all_streams stream/waits_across_devices "
    "stream/priorities_are_accepted event/two_streams_take_turns "
    "event/wait_keeps_to_the_recording event/waits_for_another_device": STALE,
    "event/event_has_device": event(device=torch.device("cpu")),
    "event/later_event_implies_earlier": instead(torch, "Event", Unready),
    "event/elapsed_time_is_positive event/recording_again_moves_the_mark "
    "event/times_need_timing": event(**STILL),
    "event/elapsed_times_add_up": instead(torch, "Event", Counting),
    "event/waiting_orders_times": event(elapsed_time=lambda self, other: -1.0),
    "event/module_has_events": instead(NPU, "Event", type("Still", (torch.Event,), STILL)),
    "accelerator/is_the_current_accelerator": instead(ACCELERATOR, "is_available", lambda: False),
    "accelerator/index_follows_the_module": instead(NPU, "current_device", lambda: 7),
    "accelerator/no_such_accelerator_index": instead(ACCELERATOR, "set_device_index", lambda at: 0),
    "accelerator/current_stream_is_of_the_device": instead(
        ACCELERATOR, "current_stream", lambda device=None: torch.Stream(THERE)
    ),
    "accelerator/memory_statistics_agree accelerator/memory_agrees_with_the_module": instead(
        ACCELERATOR, "memory_allocated", lambda device=None: 12345
    ),
    "accelerator/peaks_can_be_reset": instead(
        ACCELERATOR, "reset_peak_memory_stats", lambda device=None: None
    ),
    "accelerator/memory_info_is_plausible": instead(
        ACCELERATOR, "get_memory_info", lambda device=None: (2, 1)
    ),
    "accelerator/capability_names_dtypes": instead(
        ACCELERATOR, "get_device_capability", lambda device=None: {"supported_dtypes": set()}
    ),
    "autograd/gradients_are_on_the_device autograd/gradients_accumulate "
    "autograd/second_derivatives autograd/threads_share_a_leaf autograd/graphs_cross_devices "
    "autograd/graphs_cross_two_devices autograd/backward_follows_the_streams "
    "autograd/saved_tensors_can_wait_on_the_cpu autograd/transforms_compose": HALVED,
    "autograd/checkpoints_recompute": method("tanh", lambda right, x: right(x).mul(next(SIZES))),
    "autograd/checkpoints_draw_the_same_numbers rng/states_go_round": instead(
        NPU, "set_rng_state", lambda state, device=None: None
    ),
    "autograd/hooks_find_their_device_current": instead(
        ACCELERATOR, "current_device_index", lambda: 0
    ),
    "autograd/functions_of_users_run": method("__mul__", lambda right, x, by: right(x, 2)),
    "autograd/modes_switch_recording_off": method(
        "__mul__", lambda right, x, by: right(x, by).detach()
    ),
    "autograd/writes_to_saved_tensors_are_noticed": method(
        "add_", lambda right, x, number: right(x.data, number)
    ),
    "autograd/anomalies_are_found": method("sqrt", lambda right, x: right(x + 1)),
    "rng/module_seeds_repeat": instead(NPU, "manual_seed", lambda seed: None),
    "rng/numbers_are_uniform": around(
        torch, "rand", lambda right, *a, **more: right(*a, **more) * 2
    ),
    "rng/seeding_all_reaches_all": instead(NPU, "manual_seed_all", NPU.manual_seed),
    "rng/states_of_generators_go_round rng/generator_states_can_be_restored": instead(
        torch, "Generator", Forgetful
    ),
    "rng/clones_of_generators_are_their_own": generator(clone_state=lambda self: self),
    "rng/generators_seed_themselves": generator(
        seed=lambda self: self.manual_seed(7).initial_seed()
    ),
    "rng/generators_name_their_device": around(torch, "Generator", lambda right, at=0: right(HERE)),
    "rng/states_are_bytes_on_the_cpu": around(
        NPU, "get_rng_state", lambda right, *at: right(*at).float()
    ),
    "rng/drawing_changes_the_state": around(
        NPU, "get_rng_state", lambda right, *at: right(*at) * 0
    ),
    "rng/initial_seed_is_what_was_given": instead(NPU, "initial_seed", lambda: 11),
    "rng/seed_is_not_deterministic": instead(NPU, "seed", lambda: None),
    "rng/drawing_leaves_the_cpu_alone": around(
        torch, "rand", lambda right, *args, **more: (right(1), right(*args, **more))[1]
    ),
    "rng/states_of_all_can_be_restored": instead(NPU, "set_rng_state_all", lambda states: None),
    "rng/generator_of_another_device_is_refused": WITHOUT_GENERATOR["rand"],
    "rng/generators_reach_every_distribution": WITHOUT_GENERATOR["randn"],
    "rng/permutations_hold_each_number_once": around(
        torch, "randperm", lambda right, count, **more: right(count, **more) * 0
    ),
    "rng/certain_draws_are_certain rng/chances_hold_in_every_dtype": method(
        "bernoulli_", lambda right, x, chance: right(x, 0.5)
    ),
    "serialization/parameters_survive": loads(lambda found: found.requires_grad_()),
    "serialization/load_restores_the_index serialization/map_location_to_another_index "
    "serialization/load_ignores_the_current_device serialization/map_location_to_the_cpu": loads(
        lambda found: found.to(HERE)
    ),
    "serialization/map_location_to_the_device": loads(torch.Tensor.cpu),
    "serialization/map_location_without_such_a_device": around(
        torch, "load", lambda right, file, map_location: right(file)
    ),
    "serialization/every_dtype_pickles serialization/modules_pickle": around(
        pickle, "loads", on_the_cpu
    ),
    "serialization/layout_survives": loads(torch.Tensor.contiguous),
    "serialization/conj_survives": loads(torch.Tensor.resolve_conj),
    "serialization/state_dict_goes_round serialization/state_dict_of_the_cpu_loads": instead(
        torch.nn.Module, "load_state_dict", lambda self, state: None
    ),
    "serialization/deepcopy_keeps_the_layout": method(
        "__deepcopy__", lambda right, x, memo: right(x, memo).contiguous()
    ),
    "serialization/sparse_survives": loads(lambda found: found * 2),
    "dlpack/goes_round": around(torch.utils.dlpack, "from_dlpack", a_copy),
    "dlpack/capsules_go_round": around(
        torch.utils.dlpack,
        "from_dlpack",
        lambda right, x: STATES[id(x)] if id(x) in STATES else STATES.setdefault(id(x), right(x)),
    ),
    "dlpack/strides_and_offsets_survive": imports(torch.Tensor.contiguous),
    "dlpack/memory_outlives_its_tensor": imports(torch.Tensor.zero_),
    "dlpack/cannot_be_expressed": around(
        torch.utils.dlpack, "from_dlpack", lambda right, x: right(x.detach().resolve_conj())
    ),
    "dlpack/numpy_refuses": read_by_numpy,
    "dlpack/crosses_to_and_from_the_cpu": around(
        torch.utils.dlpack, "from_dlpack", lambda right, x, device: right(x)
    ),
    "dlpack/arrays_of_numpy_reach_the_device": DOUBLED,
    "memory/views_allocate_nothing memory/empty_tensors_allocate_nothing "
    "memory/temporaries_are_freed memory/memory_may_die_in_another_thread "
    "memory/new_data_frees_the_old memory/resizing_frees_the_old "
    "memory/reference_cycles_are_freed": COUNTS,
    "memory/reserved_covers_allocated": both("memory_reserved", lambda device=None: 0),
    "memory/record_stream_keeps_memory accelerator/empty_cache_keeps_live_tensors": STALE,
    "memory/free_memory_is_plausible": instead(NPU, "mem_get_info", lambda device=None: (2, 1)),
    "memory/summary_is_a_text": instead(NPU, "memory_summary", lambda *args, **more: None),
    "device/is_available": instead(NPU, "is_available", lambda: False),
    "device/counts_agree": instead(NPU, "device_count", lambda: 9),
    "device/get_device_is_index": method("get_device", lambda right, x: 5),
    "device/default_device": instead(torch, "set_default_device", lambda device: None),
    "device/properties_are_plausible": instead(
        NPU, "get_device_properties", lambda at=None: SimpleNamespace(name="", total_memory=0)
    ),
    "device/has_a_name": instead(NPU, "get_device_name", lambda at=None: None),
    "amp/autocast_leaves_other_operators_alone amp/scaler_scales_and_unscales "
    "copy/every_dtype_goes_round copy/layouts_are_copied_right copy/layouts_survive_the_way "
    "copy/padding_is_left_alone copy/copies_convert copy/many_dimensions_are_copied_right "
    "copy/scalars_cross_devices copy/copies_to_itself copy/large_copies_arrive "
    "copy/copies_between_devices copy/gradients_follow_copies "
    "copy_on_write/lazy_clone_shares_memory copy_on_write/write_to_a_lazy_clone "
    "copy_on_write/view_of_a_lazy_clone copy_on_write/data_ptr_of_a_lazy_clone "
    "copy_on_write/lazy_clones_of_threads pinned/layouts_of_pinned_memory_are_copied_right "
    "pinned/copies_to_the_device_do_not_lose_order "
    "pinned/freed_pinned_memory_is_not_taken_too_early pinned/plain_memory_may_be_used_at_once "
    "pinned/blocking_copies_have_arrived memory/operators_run_out_of_memory "
    "device/operators_leave_current_device device/mixed_devices_are_refused "
    "indexing/every_index_reads indexing/every_index_writes indexing/writes_follow_each_other "
    "indexing/slices_are_views indexing/writes_accumulate_when_asked "
    "indexing/values_of_the_cpu_can_be_assigned numpy/arrays_are_copied "
    "numpy/arrays_are_not_shared numpy/numbers_of_numpy_mix "
    "placement/sparse_factories_take_the_device_named placement/sparse_invariants_are_checked "
    "printing/printing_changes_nothing promotion/numbers_promote_as_on_the_cpu "
    "promotion/scalars_of_the_cpu_promote promotion/results_cannot_be_narrowed_in_place "
    "sharing/copies_on_the_cpu_can_be_shared storage/views_share_it "
    "storage/writes_land_where_a_view_lies storage/writes_keep_to_the_gaps "
    "storage/complex_views_share_it storage/dtype_views_share_it storage/set_takes_a_tensor "
    "storage/set_takes_a_view storage/set_takes_all_of_a_storage storage/set_takes_a_storage "
    "storage/resize_keeps_values storage/resize_keeps_the_offset "
    "storage/views_share_it_on_every_device storage/storage_can_be_resized "
    "storage/data_can_be_exchanged storage/data_can_change_device "
    "storage/volumes_have_a_memory_format storage/an_operand_may_be_the_target": STALE,
    "device/errors_leave_current_device": method("copy_", lambda right, x, *args, **more: x),
    "indexing/scalars_of_every_dtype_come_back indexing/scalars_come_from_their_device "
    "indexing/python_protocols_work numpy/force_copies printing/formats_as_numbers "
    "storage/sizes_in_bytes": DOUBLED,
    "storage/addresses_are_not_null": method("__getitem__", lambda right, x, at: right(x, at) * 2),
    "stream/belongs_to_device": around(torch, "Stream", lambda right, *args: right(THERE)),
    "amp/autocast_lowers_to_what_was_asked amp/autocast_keeps_what_needs_precision "
    "amp/autocast_nests "
    "amp/autocast_dtype_is_settable": around(torch, "autocast", autocast_of_others),
    "pinned/factories_pin": instead(torch.Tensor, "is_pinned", lambda self: False),
    "pinned/device_memory_is_not_pinned": instead(torch.Tensor, "is_pinned", lambda self: True),
    "pinned/copies_to_the_host_arrive pinned/copies_arrive_by_their_event ": around(
        torch.Tensor, "copy_", unless_it_waits
    ),
    "device/methods_of_tensors_and_modules": instead(torch.Tensor, "is_npusim", False),
    "device/two_devices_are_not_mixed": method(
        "__add__", lambda right, x, y: right(x, y.to(x.device))
    ),
    "indexing/indexes_of_another_device_are_refused": around(
        torch.Tensor, "__getitem__", lambda right, x, at: right(x, at.to(x.device))
    ),
    "numpy/arrays_need_the_cpu": instead(
        torch.Tensor, "__array__", lambda self, *args, **more: self.cpu().numpy()
    ),
    "storage/strided_memory": around(
        torch, "empty_strided", lambda right, *args, **more: right(*args, **more).contiguous()
    ),
    "storage/is_set_to_sees_it": method("is_set_to", lambda right, x, other: False),
    "storage/resize_takes_a_memory_format": method(
        "resize_", lambda right, x, *sizes, **more: right(x, *sizes)
    ),
    "storage/a_column_hides_no_channels_last": around(
        torch.nn.functional, "avg_pool2d", column_in_rows
    ),
    "storage/convolutions_keep_channels_last": around(torch.nn.functional, "conv2d", in_rows),
    "storage/storages_can_be_made_and_copied": instead(
        torch.UntypedStorage, "clone", lambda self: self
    ),
    "promotion/result_type_agrees": around(
        torch, "result_type", lambda right, x, y: right(x, y) if x.is_cpu else torch.float64
    ),
    "statistics/tensors_of_threads_are_counted": COUNTS,
    "profiler/records_ranges profiler/records_the_device profiler/records_backward ": instead(
        torch.profiler.profile, "key_averages", lambda self, **more: []
    ),
    "profiler/lets_exceptions_through": instead(torch.profiler.profile, "events", lambda self: []),
    "profiler/follows_a_schedule": instead(torch.profiler.profile, "step", lambda self: None),
    "amp/autocast_restores_after_exceptions": instead(
        torch,
        "autocast",
        type(
            "Wrong",
            (AUTOCAST,),
            {"__exit__": lambda self, *raised: AUTOCAST.__exit__(self, *raised) or True},
        ),
    ),
    "amp/autocast_of_the_cpu_is_another": around(
        torch, "autocast", lambda right, kind, **more: right("npusim", **more)
    ),
    "amp/scaler_state_goes_round": instead(
        torch.amp.GradScaler, "load_state_dict", lambda self, state: None
    ),
    "pinned/pinning_keeps_the_layout": around(
        torch.Tensor, "pin_memory", lambda right, x: right(x.contiguous())
    ),
    "promotion/scalars_of_the_device_do_not_mix": around(
        torch.Tensor, "__mul__", lambda right, x, y: right(x, y.cpu())
    ),
    "accelerator/synchronize_by_index": instead(ACCELERATOR, "synchronize", lambda *device: 0),
    "accelerator/dtypes_that_it_names_can_be_made device/name_without_index_is_current": around(
        torch, "empty", lambda right, *sizes, **more: right(*sizes, device=HERE)
    ),
    "device/index_alone_is_accelerator": around(
        torch, "empty", lambda right, *sizes, **more: right(*sizes, **{**more, "device": "cpu"})
    ),
    "device/name_is_kept": around(
        torch.Tensor, "to", lambda right, *args, **more: right(*args, **more).cpu()
    ),
    "placement/sparse_out_is_resized": around(torch, "zeros", lambda right, *sizes, out: out),
    "profiler/trace_is_json profiler/table_and_trace_show_the_device": instead(
        torch.profiler.profile,
        "export_chrome_trace",
        lambda self, path: Path(path).write_text('{"traceEvents": []}'),
    ),
    "placement/dense_factories_take_the_device_named": around(
        torch, "full", lambda right, *args, **more: right(*args, **more).to(HERE)
    ),
}
PARTS = {name: plant for names, plant in PARTS.items() for name in names.split()}
