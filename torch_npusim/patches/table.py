# SPDX-License-Identifier: BSD-3-Clause
"""The rows: every function and table of torch that this package changes.

Tests: tests/repo/test_patches.py walks the rows; each row names the test of its need.
"""

from torch_npusim._changes import Patch

_PATCHES = "api/test_patches.py::"
_FAKE = "compile/test_fake_tensors.py::"
_DYNAMO = "compile/test_tracing.py::"
_INDUCTOR = "compile/test_torch_internals.py::"
_FLEX = "compile/test_flex_attention.py::"
_ASKED = "the backend is asked instead of the device's name"

#: Applied when the device is registered.
_WITH_THE_DEVICE = (
    Patch(
        "torch:Tensor.__dlpack_device__",
        "patches.eager:dlpack_device",
        _PATCHES + "test_dlpack_patch_is_still_needed",
        ends="the oldest supported torch compares with the renamed device",
        upstream="pytorch/pytorch 195815",
    ),
    Patch(
        "torch:Tensor.__dlpack__",
        "patches.eager:dlpack",
        _PATCHES + "test_upstream_numpy_still_leaves_the_remedy_out",
        ends="NumPy's message states the remedy",
        upstream="none: not a defect of torch",
    ),
    Patch(
        "torch:Tensor._reduce_ex_internal",
        "patches.eager:reduced_by_layout",
        _PATCHES + "test_sparse_pickles_of_renamed_backends_still_lose_their_layout",
        ends="core pickles sparse tensors of every backend by their parts",
    ),
    Patch(
        "torch:set_default_tensor_type",
        "patches.eager:default_tensor_type",
        _PATCHES + "test_default_tensor_type_patch_is_still_needed",
        ends="torch removes the function, deprecated since 2.1",
        upstream="pytorch/pytorch 120174, closed",
    ),
    Patch(
        "torch:_C",
        "patches.eager:copies_between_devices",
        _PATCHES + "test_device_copies_are_still_needed",
        ends="DataParallel works on any accelerator",
        upstream="pytorch/pytorch 143239",
    ),
    Patch(
        "torch.nn.parallel.parallel_apply:_get_device_index",
        "patches.eager:index_of_a_device",
        _PATCHES + "test_device_index_patch_is_still_needed",
        ends="DataParallel works on any accelerator",
        upstream="pytorch/pytorch 143239",
    ),
    Patch(
        "torch.nn.modules.linear_cross_entropy_options:LinearCrossEntropyOptions._adjust",
        "patches.eager:chunked_cross_entropy",
        _PATCHES + "test_cross_entropy_patch_is_still_needed",
        ends=_ASKED,
    ),
    Patch(
        "torch.autograd.profiler:profile.__init__",
        "patches.eager:profile_with_kineto",
        _PATCHES + "test_autograds_profiler_still_asks_for_markers",
        ends="use_kineto is the default, as in torch.profiler",
    ),
    Patch(
        "torch.optim:Optimizer._accelerator_graph_capture_health_check",
        "patches.eager:captured_optimizer",
        _PATCHES + "test_optimizers_still_let_a_capture_of_npusim_pass",
        ends="the oldest supported torch asks the accelerator, whatever its name",
        upstream="pytorch/pytorch 194362, in 2.15",
        versions="<2.15",
    ),
    Patch(
        "torch.multiprocessing.reductions:reduce_storage",
        "_sharing:storages",
        _PATCHES + "test_reducer_is_still_needed",
        ends="hooks between processes exist",
        upstream="pytorch/pytorch 192099",
    ),
    Patch(
        "torch.multiprocessing.reductions:reduce_tensor",
        "_sharing:tensors",
        _PATCHES + "test_reducer_of_tensors_is_still_needed",
        ends="hooks between processes exist",
        upstream="pytorch/pytorch 192099",
    ),
    Patch(
        "torch._subclasses.fake_impls:op_implementations_dict",
        "patches.tracing:fake_convolutions",
        _FAKE + "test_fake_convolution_patch_is_still_needed",
        ends="fake tensors ask the backend",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode._cache_key",
        "patches.tracing:cached_for_a_device",
        _FAKE + "test_fake_results_are_on_the_current_device",
        ends="torch 2.15 is the oldest supported one: the key has the current device",
        upstream="pytorch/pytorch 197583, in 2.15",
        versions="<2.15",
    ),
    Patch(
        "torch._meta_registrations:device_hint",
        "patches.tracing:device_hint",
        _FAKE + "test_meta_and_normalization_patches_are_still_needed",
        ends="meta functions ask the backend",
    ),
    Patch(
        "torch._decomp:decompositions.native_batch_norm_helper",
        "patches.tracing:batch_norm",
        _FAKE + "test_meta_and_normalization_patches_are_still_needed",
        ends=_ASKED,
    ),
    Patch(
        "torch._refs:native_layer_norm",
        "patches.tracing:layer_norm",
        _FAKE + "test_meta_and_normalization_patches_are_still_needed",
        ends=_ASKED,
    ),
    Patch(
        "torch._decomp:decomposition_table",
        "patches.tracing:decomposed_layer_norm",
        _FAKE + "test_meta_and_normalization_patches_are_still_needed",
        ends=_ASKED,
    ),
)

#: Applied after an import of torch's, which `import torch` does not do in every build.
_LATER = (
    Patch(
        "torch.distributed.distributed_c10d:_new_process_group_helper",
        "patches.groups:backends_of_a_group",
        _PATCHES + "test_choice_of_backends_is_still_needed",
        ends="torch asks the registered backends",
        upstream="pytorch/pytorch 177103 asks for a part",
        after="torch.distributed.distributed_c10d",
    ),
    Patch(
        "torch.distributed.tensor:DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs",
        "patches.sharding:split_attention",
        "distributed/test_threads.py::test_attention_is_split_by_batch_and_by_heads",
        ends="DTensor splits the CPU's attention",
        after="torch.distributed.tensor",
    ),
    Patch(
        "torch.testing._internal.optests.autograd_registration:autograd_registration_check",
        "patches.eager:opcheck_about_autograd",
        "examples/test_custom_op.py::test_opcheck_patch_is_still_needed",
        ends="the oldest supported torch has it",
        upstream="pytorch/pytorch 190677",
        after="torch.testing._internal.optests.autograd_registration",
    ),
    Patch(
        "torch.utils.flop_counter:flop_registry",
        "patches.eager:counted_attention",
        _PATCHES + "test_upstream_counter_still_leaves_attention_on_the_cpu_out",
        ends="torch 2.15 is the oldest supported one: it has them",
        after="torch.utils.flop_counter",
        versions="<2.15",
    ),
    Patch(
        "torch.nn.attention.flex_attention:_validate_device",
        "patches.flex_attention:device_of_the_operands",
        _FLEX + "test_the_patch_is_still_needed",
        ends="the check asks the backend",
        after="torch.nn.attention.flex_attention",
    ),
    Patch(
        "torch._higher_order_ops.flex_attention:flex_attention.python_key_table",
        "patches.flex_attention:traced",
        _FLEX + "test_templates_still_know_no_other_device",
        ends="Inductor asks the scheduling for a template",
        after="torch.nn.attention.flex_attention",
    ),
    Patch(
        "torch._higher_order_ops.flex_attention:flex_attention_backward.python_key_table",
        "patches.flex_attention:traced_backward",
        _FLEX + "test_templates_still_know_no_other_device",
        ends="Inductor asks the scheduling for a template",
        after="torch.nn.attention.flex_attention",
    ),
)


def _dynamo(
    target: str, body: str, versions: str = "", upstream: str = "pytorch/pytorch 189138"
) -> Patch:
    return Patch(
        f"torch._dynamo.{target}",
        f"patches.dynamo:{body}",
        _DYNAMO + "test_dynamo_still_needs_to_be_told",
        ends="Dynamo asks the device's interface",
        upstream=upstream,
        after="torch._dynamo",
        versions=versions,
    )


_TABLES = "variables.torch:"
_CLASSES = "variables.user_defined:UserDefinedClassVariable"

_SAFETENSORS = "integrations/test_libraries.py::"

_OF_SAFETENSORS = (
    Patch(
        "safetensors:safe_open",
        "patches.safetensors:devices_by_name",
        _SAFETENSORS + "test_upstream_safetensors_knows_devices_by_a_list_of_names",
        ends="safetensors asks torch for the device",
        upstream="none: safetensors 779, open",
        after="safetensors",
    ),
    *(
        Patch(
            f"safetensors.torch:{name}",
            "patches.safetensors:saved_tensors",
            _SAFETENSORS + "test_tensors_without_values_are_not_saved",
            ends="never: no other device has tensors without values",
            upstream="none: not a defect of safetensors",
            after="safetensors.torch",
        )
        for name in ("save_file", "save")
    ),
)

_OF_TRANSFORMERS = (
    Patch(
        "transformers.generation.utils:GenerationMixin._beam_search_has_unfinished_sequences",
        "patches.generation:beams_that_go_on",
        "profiling/test_known_values.py::test_beams_go_on_to_their_longest",
        ends="never: no other device has tensors without values",
        upstream="none: not a defect of transformers",
        after="transformers.generation.utils",
        optional=True,
    ),
)

_OF_DYNAMO = (
    _dynamo(_TABLES + "constant_fold_functions", "constants"),
    _dynamo(_TABLES + "constant_fold_functions_need_guards", "guarded_constants"),
    _dynamo(
        _TABLES + "TorchInGraphFunctionVariable._get_handlers()",
        "handlers",
        upstream="pytorch/pytorch 192970, open",
    ),
    _dynamo(
        _CLASSES + "._in_graph_classes()",
        "classes_in_graphs",
        "<2.15",
        "pytorch/pytorch 194343, in 2.15",
    ),
    _dynamo(_CLASSES + ".call_function", "makers"),
    _dynamo("trace_rules:get_torch_obj_rule_map", "rules_of_objects"),
)


def _inductor(
    target: str,
    body: str,
    test: str,
    versions: str = "",
    upstream: str = "pytorch/pytorch 189135",
) -> Patch:
    return Patch(
        f"torch._inductor.{target}",
        f"patches.inductor:{body}",
        test,
        ends=_ASKED,
        upstream=upstream,
        after="torch._inductor.compile_fx",
        versions=versions,
    )


_LOWERING = _INDUCTOR + "test_lowering_patches_are_still_needed"

_OF_INDUCTOR = (
    _inductor("ir:get_device_type", "type_of_a_device", _LOWERING),
    _inductor("lowering:get_constant_value", "constant_divisor", _LOWERING),
    _inductor("lowering:use_two_step_variance", "variance_in_two_steps", _LOWERING),
    _inductor(
        "lowering:is_gpu",
        "device_of_mixed_operands",
        _INDUCTOR + "test_is_gpu_patch_is_still_needed",
    ),
    _inductor(
        "scheduler:BaseSchedulerNode.is_cpu",
        "loops_as_on_the_host",
        _INDUCTOR + "test_is_cpu_patch_is_still_needed",
    ),
    _inductor(
        "scheduler:device_need_guard",
        "guard_of_streams",
        _INDUCTOR + "test_streams_are_still_declared_in_a_guard",
    ),
    _inductor(
        "scheduler:Scheduler.codegen_extern_call",
        "order_of_synchronization",
        _DYNAMO + "test_events_are_recorded_where_they_stand",
    ),
    _inductor(
        "scheduler:Scheduler.create_backend",
        "capability_for_triton",
        _INDUCTOR + "test_create_backend_patch_is_still_needed",
    ),
    _inductor(
        "ir:ExternKernel.process_kernel",
        "generators_of_fallbacks",
        "compile/test_training.py::test_generators_of_fallbacks_are_still_named",
        versions=">=2.14",
    ),
    _inductor(
        "codegen.cpp_utils:DEVICE_TO_ATEN",
        "name_in_aten",
        _INDUCTOR + "test_names_in_aten_are_still_a_table",
        versions="<2.15",
        upstream="pytorch/pytorch 193904, in 2.15",
    ),
)

PATCHES = _WITH_THE_DEVICE + _LATER + _OF_SAFETENSORS + _OF_TRANSFORMERS + _OF_DYNAMO + _OF_INDUCTOR
