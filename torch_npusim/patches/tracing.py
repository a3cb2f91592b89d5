# SPDX-License-Identifier: BSD-3-Clause
"""Patches of fake tensors, meta functions and decompositions, which ask for a device's name.

Only modules that `import torch` has loaded already are touched here. Tests:
tests/compile/test_fake_tensors.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils import _pytree

from torch_npusim import _C
from torch_npusim._names import device_type, is_npusim


def fake_convolutions(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A fake convolution on PrivateUse1 is contiguous, whatever the layout of its operands.

    core's _select_conv_backend() and _conv_determine_backend_memory_format() know no out-of-tree
    device. The kernels of npusim are the CPU's, so the fake ones are asked as on the CPU.
    """
    aten = torch.ops.aten
    original = table[aten.convolution.default]

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

    operators = (
        aten.convolution.default,
        aten._convolution.default,
        aten._convolution.deprecated,
        aten.convolution_backward.default,
    )
    return dict.fromkeys(operators, convolution)


def cached_for_a_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """The cache of fake results knows "npusim" and "npusim:0" apart, and not the current device.

    A result made with `device="npusim"` stayed on the device that was current the first time: on
    another one, and for the ranks of a process that are threads, with operands on two devices.
    Before 2.15 the same was true of CUDA.
    """

    def cache_key(mode: Any, state: Any, func: Any, args: Any, kwargs: Any) -> Any:
        key = original(mode, state, func, args, kwargs)
        device = kwargs.get("device")
        if isinstance(device, torch.device) and device.index is None and is_npusim(device):
            # In place: an entry of a graph's is removed by this very key.
            key.key = (*key.key, torch.accelerator.current_device_index())
            key.hashvalue = hash(key.key)
        return key

    return cache_key


def device_hint(original: Callable[[Any], str]) -> Callable[[Any], str]:
    """Meta functions ask for the device's name where backends differ, and take others for CUDA.

    Whether offset2bag of an embedding bag is empty, whether pixel_shuffle() keeps channels_last,
    whether nonzero_static() is row-major: the kernels of npusim are the CPU's.
    """

    def device_hint(tensor: Any) -> str:
        name = original(tensor)
        return "cpu" if name in ("npusim", device_type()) else name

    return device_hint


def batch_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Batch norm also returns what backward needs: on the CPU, and so here, in the dtype of the
    input unless weights have another, and in evaluation nothing.

    Decomposed and fake ones do so for a device that is called "cpu", and those of the CPU are wrong
    where the weights have another dtype. A dry run asks them with meta tensors.
    """

    def native_batch_norm_helper(
        x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
    ) -> Any:
        found = original(x, weight, bias, mean, var, training, *rest)
        out, *saved, new_mean, new_var = found
        if is_npusim(x.device) or (x.is_meta and _C.in_dry_run_of_npusim()):
            dtype = _kept(x, (weight, bias, mean, var))
            saved = [one.to(dtype) if training else x.new_zeros((0,)) for one in saved]
        return (out, *saved, new_mean, new_var)

    return native_batch_norm_helper


def layer_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same of layer norm."""

    def native_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        out, *saved = original(x, shape, weight, bias, eps)
        if is_npusim(x.device):
            saved = [one.to(_kept(x, (weight, bias))) for one in saved]
        return (out, *saved)

    return native_layer_norm


def decomposed_layer_norm(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same of the table of decompositions, which holds the function itself."""
    operator = torch.ops.aten.native_layer_norm.default
    return {operator: layer_norm(table[operator])}


def _kept(x: torch.Tensor, parameters: tuple[Any, ...]) -> torch.dtype:
    dtypes = [p.dtype for p in parameters if p is not None]
    return dtypes[0] if dtypes else x.dtype
