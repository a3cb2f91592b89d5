# SPDX-License-Identifier: BSD-3-Clause
"""What tracing (fake tensors, AOTAutograd, Dynamo) must be told of npusim before a first graph.

Part of the registration: only modules that `import torch` has loaded already are touched here. What
needs torch._dynamo or torch._inductor waits until these are imported (torch_npusim.inductor).
Tests: tests/compile/test_fake_tensors.py and test_random_in_graphs.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import _meta_registrations, _refs
from torch._decomp import decomposition_table, decompositions
from torch._functorch._aot_autograd.utils import register_graphsafe_rng_device_type
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils import _pytree

from torch_npusim._names import device_type, is_npusim

ORIGINAL_FAKE_CONVOLUTION: Callable[..., Any]
ORIGINAL_DEVICE_HINT: Callable[[Any], str]
ORIGINAL_BATCH_NORM: Callable[..., Any]
ORIGINAL_LAYER_NORM: Callable[..., Any]


def register() -> None:
    """Tells torch; called once, when the device is registered."""
    _keep_the_layout_of_fake_convolutions()
    _ask_meta_functions_as_on_the_host()
    _save_what_normalizations_save()
    # A graph that draws again what a checkpoint drew does so by states that generators share.
    register_graphsafe_rng_device_type("npusim")


def _keep_the_layout_of_fake_convolutions() -> None:
    """A fake convolution on PrivateUse1 is contiguous, whatever the layout of its operands.

    core's _select_conv_backend() and _conv_determine_backend_memory_format() know no out-of-tree
    device. The kernels of npusim are the CPU's, so the fake ones are asked as on the CPU. Upstream:
    no issue known. Goes when fake tensors ask the backend.
    """
    global ORIGINAL_FAKE_CONVOLUTION
    aten = torch.ops.aten
    original = fake_impls.op_implementations_dict[aten.convolution.default]
    ORIGINAL_FAKE_CONVOLUTION = original

    def convolution(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        operands = (x for x in (*args, *kwargs.values()) if isinstance(x, FakeTensor))
        device = next(operands).fake_device
        if not is_npusim(device):
            return original(fake_mode, func, *args, **kwargs)

        def moved(target: torch.device) -> Callable[[Any], Any]:
            def move(x: Any) -> Any:
                if not isinstance(x, FakeTensor):
                    return x
                with in_kernel_invocation_manager(fake_mode):
                    meta = x.as_strided(x.size(), x.stride(), x.storage_offset())
                return FakeTensor(fake_mode, meta, target)

            return move

        on_host, back = moved(torch.device("cpu")), moved(device)
        host_args, host_kwargs = _pytree.tree_map(on_host, (args, kwargs))
        return _pytree.tree_map(back, original(fake_mode, func, *host_args, **host_kwargs))

    for operator in (
        aten.convolution.default,
        aten._convolution.default,
        aten._convolution.deprecated,
        aten.convolution_backward.default,
    ):
        fake_impls.op_implementations_dict[operator] = convolution


def _ask_meta_functions_as_on_the_host() -> None:
    """Meta functions ask for the device's name where backends differ, and take others for CUDA.

    Whether offset2bag of an embedding bag is empty, whether pixel_shuffle() keeps channels_last,
    whether nonzero_static() is row-major: the kernels of npusim are the CPU's. Upstream: no issue
    known. Goes when fake tensors ask the backend.
    """
    global ORIGINAL_DEVICE_HINT
    ORIGINAL_DEVICE_HINT = original = _meta_registrations.device_hint

    def device_hint(tensor: Any) -> str:
        name = original(tensor)
        return "cpu" if name in ("npusim", device_type()) else name

    _meta_registrations.device_hint = device_hint


def _save_what_normalizations_save() -> None:
    """Batch and layer norm also return what backward needs: on the CPU, and so here, in the dtype
    of the input unless weights have another, and of a batch norm in evaluation nothing.

    Decomposed and fake ones do so for a device that is called "cpu". Upstream: no issue known, and
    those of the CPU are wrong where the weights have another dtype. Goes when they ask the backend.
    """
    global ORIGINAL_BATCH_NORM, ORIGINAL_LAYER_NORM
    ORIGINAL_BATCH_NORM = batch_norm = decompositions.native_batch_norm_helper
    ORIGINAL_LAYER_NORM = layer_norm = _refs.native_layer_norm

    def kept(x: torch.Tensor, parameters: tuple[Any, ...]) -> torch.dtype:
        dtypes = [p.dtype for p in parameters if p is not None]
        return dtypes[0] if dtypes else x.dtype

    def native_batch_norm_helper(
        x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
    ) -> Any:
        found = batch_norm(x, weight, bias, mean, var, training, *rest)
        out, *saved, new_mean, new_var = found
        if is_npusim(x.device):
            dtype = kept(x, (weight, bias, mean, var))
            saved = [one.to(dtype) if training else x.new_zeros((0,)) for one in saved]
        return (out, *saved, new_mean, new_var)

    def native_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        out, *saved = layer_norm(x, shape, weight, bias, eps)
        if is_npusim(x.device):
            saved = [one.to(kept(x, (weight, bias))) for one in saved]
        return (out, *saved)

    decompositions.native_batch_norm_helper = native_batch_norm_helper  # type: ignore[assignment]
    _refs.native_layer_norm = native_layer_norm  # type: ignore[assignment]
    decomposition_table[torch.ops.aten.native_layer_norm.default] = native_layer_norm
