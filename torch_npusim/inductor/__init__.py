# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile on npusim: Dynamo's view of the device, and Inductor's C++ kernels as its commands.

Nothing here is imported before torch._dynamo or torch._inductor are: their import takes seconds.

| module | what |
|---|---|
| device_interface.py | what Dynamo asks about devices, streams and events |
| tracing.py | torch.npusim in compiled code |
| scheduling.py | Inductor's C++ kernels, each wrapped into one command |
| kernel_source.py | the C++ of that wrapping |
| account.py | what a kernel reads, writes and computes |
| wrapper.py | the Python code that allocates and calls |
| runtime.py | what that code imports |
| replay.py | code that runs as one graph: mode="reduce-overhead" |

Patches of the compiler are in torch_npusim/patches/.

Code enters if a compiler calls it, or if it reports on compiled code.
"""

from torch_npusim._after_import import after_import
from torch_npusim._names import device_type


def register() -> None:
    """Registers npusim with Dynamo, Inductor and Triton as soon as each of them is imported."""
    after_import("torch._dynamo.device_interface", _register_with_dynamo)
    after_import("torch._dynamo", _trace_with_dynamo)
    after_import("torch._inductor.compile_fx", _register_with_inductor)
    after_import("triton.runtime.interpreter", _register_with_triton)


def _register_with_dynamo() -> None:
    from torch_npusim.inductor import device_interface

    for name in dict.fromkeys(("npusim", device_type())):
        device_interface.register(name)


def _trace_with_dynamo() -> None:
    from torch_npusim.inductor import tracing

    tracing.install()


def _register_with_inductor() -> None:
    from torch_npusim.inductor import registration

    for name in dict.fromkeys(("npusim", device_type())):
        registration.register(name)


def _register_with_triton() -> None:
    from torch_npusim import triton_interpreter

    triton_interpreter.install()


def name_changed() -> None:
    """Registers the name that devices have now, or takes CUDA's registration back."""
    import sys

    if "torch_npusim.inductor.device_interface" in sys.modules:
        from torch_npusim.inductor import device_interface

        device_interface.serve_cuda(device_type() == "cuda")
    if "torch_npusim.inductor.registration" in sys.modules:
        from torch_npusim.inductor import registration

        registration.serve_cuda(device_type() == "cuda")
