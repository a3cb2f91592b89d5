# SPDX-License-Identifier: BSD-3-Clause
"""Every private name of torch that compiled code on npusim rests on, and what is changed there.

NAMES is checked by tests/compile/test_torch_internals.py, which says what has moved; the patches
have a test each that says when one is no longer needed.
"""

from collections.abc import Callable
from typing import Any

from torch._inductor import config, ir, lowering, scheduler, utils
from torch._inductor.codegen import cpp_utils
from torch._inductor.codegen.common import get_scheduling_for_device
from torch._inductor.virtualized import V

from torch_npusim._names import device_type, is_npusim

#: Module -> the names that this package uses of it, by subclass, call or patch.
NAMES: dict[str, tuple[str, ...]] = {
    "torch": ("_C._storage_Use_Count", "_meta_registrations.device_hint"),
    "torch._decomp": ("decomposition_table", "decompositions.native_batch_norm_helper"),
    "torch._refs": ("native_layer_norm",),
    "torch._dynamo.output_graph": ("GraphCompileReason",),
    "torch._dynamo.trace_rules": ("add", "get_torch_obj_rule_map"),
    "torch._dynamo.variables.ctx_manager": (
        "GenericDeviceVariable",
        "get_device_context_manager",
        "register_device_context_manager",
    ),
    "torch._dynamo.variables.functions": ("SkipFunctionVariable",),
    "torch._dynamo.variables.torch": (
        "TorchInGraphFunctionVariable._get_handlers",
        "constant_fold_functions",
        "constant_fold_functions_need_guards",
    ),
    "torch._dynamo.variables.user_defined": ("UserDefinedClassVariable._in_graph_classes",),
    "torch._dynamo.utils": (
        "DEFAULT_COMPILATION_METRICS_LIMIT",
        "get_compilation_metrics",
        "graph_break_reasons",
        "set_compilation_metrics_limit",
    ),
    "torch._dynamo.device_interface": (
        "CudaInterface",
        "DeviceInterface",
        "caching_worker_current_devices",
        "device_interfaces",
        "get_registered_device_interfaces",
        "register_interface_for_device",
    ),
    "torch._functorch._aot_autograd.utils": ("register_graphsafe_rng_device_type",),
    "torch._C._dynamo.eval_frame": (
        "_FrameAction",
        "_FrameExecStrategy",
        "set_code_exec_strategy",
    ),
    "torch._higher_order_ops.flex_attention": (
        "flex_attention.python_key_table",
        "flex_attention_backward.python_key_table",
        "sdpa_dense",
        "sdpa_dense_backward",
    ),
    "torch._inductor.config": (
        "cpp.use_two_step_variance_threshold",
        "unroll_reductions_threshold",
    ),
    "torch._inductor.cudagraph_utils": ("log_cudagraph_skip_and_bump_counter",),
    "torch._inductor.codegen.common": (
        "DeviceOpOverrides",
        "IndentedBuffer",
        "RemovedArg",
        "custom_backend_codegen_configs",
        "custom_backend_passes",
        "device_codegens",
        "get_scheduling_for_device",
        "register_backend_for_device",
        "register_device_op_overrides",
    ),
    "torch._inductor.codegen.cpp": (
        "CppScheduling.codegen_node",
        "CppScheduling.codegen_template",
        "CppScheduling.define_kernel",
        "get_export_declaration",
        "get_fused_kernel_name",
    ),
    "torch._inductor.codegen.cpp_utils": ("DEVICE_TO_ATEN", "cexpr"),
    "torch._inductor.codegen.cuda.device_op_overrides": ("CUDADeviceOpOverrides",),
    "torch._inductor.codegen.wrapper": (
        "PythonWrapperCodegen._generate_kernel_call_helper",
        "PythonWrapperCodegen.create",
        "PythonWrapperCodegen.generate_after_suffix",
        "PythonWrapperCodegen.make_allocation",
        "PythonWrapperCodegen.write_get_raw_stream",
        "PythonWrapperCodegen.write_header",
        "SubgraphPythonWrapperCodegen",
    ),
    "torch._inductor.custom_graph_pass": ("CustomGraphModulePass",),
    "torch._inductor.dependencies": ("MemoryDep", "WeakDep"),
    "torch._inductor.ir": ("get_device_type",),
    "torch._inductor.lowering": ("get_constant_value", "is_gpu", "use_two_step_variance"),
    "torch._inductor.scheduler": (
        "BaseSchedulerNode.is_cpu",
        "Scheduler._has_multi_stream_nodes",
        "Scheduler.codegen_extern_call",
        "Scheduler.create_backend",
        "Scheduler.flush",
        "device_need_guard",
    ),
    "torch._inductor.metrics": ("generated_kernel_count",),
    "torch._inductor.utils": ("GPU_TYPES", "Placeholder", "get_dtype_size", "sympy_product"),
    "torch._inductor.virtualized": ("V",),
    "torch._subclasses.fake_impls": ("op_implementations_dict",),
    "torch._subclasses.fake_tensor": ("FakeTensor", "in_kernel_invocation_manager"),
    "torch._subclasses.functional_tensor": ("FunctionalTensorMode",),
    "torch.nn.attention.flex_attention": ("_validate_device",),
}

ORIGINAL_GET_DEVICE_TYPE: Callable[[Any], str | None]
ORIGINAL_GET_CONSTANT_VALUE: Callable[[Any], Any]
ORIGINAL_USE_TWO_STEP_VARIANCE: Callable[..., bool]
ORIGINAL_IS_GPU: Callable[[str | None], bool]
ORIGINAL_IS_CPU: Callable[[Any], bool]
ORIGINAL_DEVICE_NEED_GUARD: Callable[[str], bool]
ORIGINAL_CODEGEN_EXTERN_CALL: Callable[[Any, Any], None]
ORIGINAL_CREATE_BACKEND: Callable[[Any, Any], Any]


def patch() -> None:
    """Changes what has no hook; once, when Inductor has been imported."""
    if "ORIGINAL_IS_CPU" not in globals():
        _lower_as_on_the_host()
        _compute_on_the_device()
        _write_loops_as_on_the_host()
        _guard_devices_of_streams()
        _keep_the_order_of_synchronization()
        _ask_nobody_about_triton()


def name_of_device(name: str) -> None:
    """Tells Inductor's tables of names about npusim devices that are called `name`."""
    cpp_utils.DEVICE_TO_ATEN[name] = "at::kPrivateUse1"
    # What is on this list is compiled by Triton, recorded in CUDA graphs and guarded.
    if name in utils.GPU_TYPES:
        utils.GPU_TYPES.remove(name)


def name_of_cuda() -> None:
    """Puts Inductor's tables of names back as they are for real CUDA devices."""
    cpp_utils.DEVICE_TO_ATEN["cuda"] = "at::kCUDA"
    if "cuda" not in utils.GPU_TYPES:
        utils.GPU_TYPES.insert(0, "cuda")


def _lower_as_on_the_host() -> None:
    """Lowerings ask for the name "cpu" where they mean that loops are written in C++.

    Any other device gets what Triton or its GPU needs: positions of argmax() in the order of memory
    instead of the tensor's, a quotient by a constant as a product with the reciprocal, Welford's
    variance in short rows, convolutions without their bias, and other limits for what is fused.
    So compiled code differed from eager where the CPU's does not, by wrong positions even.
    Upstream: no issue known. Goes when the backend is asked.
    """
    global ORIGINAL_GET_DEVICE_TYPE, ORIGINAL_GET_CONSTANT_VALUE, ORIGINAL_USE_TWO_STEP_VARIANCE
    ORIGINAL_GET_DEVICE_TYPE = get_type = ir.get_device_type
    ORIGINAL_GET_CONSTANT_VALUE = get_constant = lowering.get_constant_value
    use_two_steps: Callable[..., bool] = lowering.use_two_step_variance
    ORIGINAL_USE_TWO_STEP_VARIANCE = use_two_steps

    def get_device_type(x: Any) -> str | None:
        found = get_type(x)
        return "cpu" if found in ("npusim", device_type()) else found

    def get_constant_value(x: Any) -> Any:  # of a divisor
        return None if is_on_npusim(x) else get_constant(x)

    def use_two_step_variance(x: Any, *args: Any, **kwargs: Any) -> bool:
        if not is_on_npusim(x):
            return use_two_steps(x, *args, **kwargs)
        longest = config.cpp.use_two_step_variance_threshold
        with config.patch(unroll_reductions_threshold=longest):
            return use_two_steps(x, *args, **kwargs)

    def is_on_npusim(x: Any) -> bool:
        device = x.get_device() if isinstance(x, ir.IRNode) else None
        return device is not None and is_npusim(device)

    ir.get_device_type = get_device_type
    lowering.get_constant_value = get_constant_value
    lowering.use_two_step_variance = use_two_step_variance


def _compute_on_the_device() -> None:
    """Of operands on a device and on the host, a lowering takes the first that is on a GPU.

    GPU_TYPES do not have npusim, so that `torch.fmax(x, torch.tensor(0.0))`, which asks for the
    scalar first, became a kernel of the host that read device memory. Upstream: no issue known.
    Goes when the lowering asks for "not the host".
    """
    global ORIGINAL_IS_GPU
    module: Any = lowering  # it does not export the name to mypy
    ORIGINAL_IS_GPU = original = module.is_gpu

    def is_gpu(name: str | None) -> bool:
        return name in ("npusim", device_type()) or original(name)

    module.is_gpu = is_gpu


def _write_loops_as_on_the_host() -> None:
    """A scheduler takes each node that is not on the CPU for one of a SIMD backend.

    is_cpu() decides whether loops may be reindexed, which only those allow: their groups are
    (numel, rnumel), those of C++ kernels pairs of tuples ("can't multiply sequence by non-int").
    Upstream: no issue known. Goes when the backend is asked.
    """
    global ORIGINAL_IS_CPU
    ORIGINAL_IS_CPU = original = scheduler.BaseSchedulerNode.is_cpu

    def is_cpu(self: Any) -> bool:
        device = self.get_device()
        return original(self) or (device is not None and is_npusim(device))

    scheduler.BaseSchedulerNode.is_cpu = is_cpu  # type: ignore[method-assign]


def _guard_devices_of_streams() -> None:
    """A graph with streams declares them in a guard of the device, which only GPU_TYPES get.

    Without the patch such a graph ends in "NameError: stream1". Graphs without streams need no
    guard, because every allocation and every launch names its device. Upstream: no issue known.
    Goes when the backend is asked.
    """
    global ORIGINAL_DEVICE_NEED_GUARD
    module: Any = scheduler  # it does not export the name to mypy
    original: Callable[[str], bool] = module.device_need_guard
    ORIGINAL_DEVICE_NEED_GUARD = original

    def device_need_guard(device: str) -> bool:
        if device not in ("npusim", device_type()):
            return original(device)
        return bool(V.graph.scheduler._has_multi_stream_nodes())

    module.device_need_guard = device_need_guard


def _keep_the_order_of_synchronization() -> None:
    """Loops in C++ wait for others to join their kernel, until a node of some device comes.

    What synchronizes has no device: it came before the kernels that it should wait for, and freed
    their operands ("cannot access local variable 'arg0_1'"). On the CPU, with the same kernels,
    nothing synchronizes. Upstream: no issue known. Goes when the scheduler flushes.
    """
    global ORIGINAL_CODEGEN_EXTERN_CALL
    original: Callable[[Any, Any], None] = scheduler.Scheduler.codegen_extern_call
    ORIGINAL_CODEGEN_EXTERN_CALL = original

    def codegen_extern_call(self: Any, scheduler_node: Any) -> None:
        if scheduler_node.get_device() is None:
            self.flush()
        original(self, scheduler_node)

    scheduler.Scheduler.codegen_extern_call = codegen_extern_call  # type: ignore[method-assign]


def _ask_nobody_about_triton() -> None:
    """What is called "cuda" must be new enough for Triton, whoever writes its kernels.

    Under the alias a device of capability 1.0, such as the spec ascend-910b, ended in
    GPUTooOldForTriton. Upstream: no issue known. Goes when the backend is asked.
    """
    global ORIGINAL_CREATE_BACKEND
    ORIGINAL_CREATE_BACKEND = original = scheduler.Scheduler.create_backend

    def create_backend(self: Any, device: Any) -> Any:
        if not is_npusim(device):
            return original(self, device)
        V.graph.add_device_info(device)
        made: Any = get_scheduling_for_device(device.type)
        return made(self)

    scheduler.Scheduler.create_backend = create_backend  # type: ignore[method-assign]
