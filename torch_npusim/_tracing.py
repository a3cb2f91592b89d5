# SPDX-License-Identifier: BSD-3-Clause
"""What tracing (fake tensors, AOTAutograd, Dynamo) must be told of npusim before a first graph.

Part of the registration: only modules that `import torch` has loaded already are touched here. What
needs torch._dynamo or torch._inductor waits until these are imported (torch_npusim.inductor).
Tests: tests/compile/test_fake_tensors.py and test_random_in_graphs.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import register_graphsafe_rng_device_type
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils import _pytree

from torch_npusim._names import is_npusim

ORIGINAL_FAKE_CONVOLUTION: Callable[..., Any]


def register() -> None:
    """Tells torch; called once, when the device is registered."""
    _keep_the_layout_of_fake_convolutions()
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
