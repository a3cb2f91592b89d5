# SPDX-License-Identifier: BSD-3-Clause
"""DLPack: the device's memory in the hands of others, or a clear refusal."""

import numpy
import torch
from torch.utils import dlpack

from npusim_conformance.contracts import contract, on, refuses, same
from npusim_conformance.inputs.torch_testing import DTYPE_ORDER
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_REFUSED = (BufferError, RuntimeError, TypeError, ValueError, NotImplementedError)
_DTYPES = DTYPE_ORDER[:12]  # those of every torch and every DLPack


def _is_named(run: Run) -> None:
    """NotApplicable where torch cannot name the device: pytorch#195815."""
    try:
        on(run.device, 1).__dlpack_device__()
    except ValueError as error:
        if "Unknown device type" in str(error):
            raise NotApplicable(
                f"torch {torch.__version__} has no DLPack type for renamed devices"
            ) from error
        raise


@contract()
def names_its_device(run: Run) -> None:
    """__dlpack_device__() is (type, index), and the CPU's type is for the CPU only."""
    _is_named(run)
    kind, index = on(run.device, 1).__dlpack_device__()
    cpu, _ = torch.ones(1).__dlpack_device__()
    same("index", int(index), run.device.index or 0)
    same("it says that it is the CPU", int(kind) == int(cpu), run.under_test.is_cpu)


@contract()
def goes_round(run: Run) -> None:
    """torch.from_dlpack(tensor) is the same memory on the same device, for every dtype."""
    _is_named(run)
    for dtype in _DTYPES:
        tensor = torch.tensor([0, 1, 1], dtype=dtype).to(run.device)
        other = dlpack.from_dlpack(tensor)
        same(f"device for {dtype}", other.device, run.device)
        same(f"values for {dtype}", other, tensor)
        same(f"data_ptr() for {dtype}", other.data_ptr(), tensor.data_ptr())
        tensor.zero_()
        same(f"values for {dtype} after a write", other, torch.zeros(3, dtype=dtype))


@contract()
def capsules_go_round(run: Run) -> None:
    """A capsule of __dlpack__() can be consumed once."""
    tensor = on(run.device, 1, 2, 3)
    capsule = tensor.__dlpack__()
    same("values", dlpack.from_dlpack(capsule), tensor)
    refuses("a capsule that was consumed", lambda: dlpack.from_dlpack(capsule), _REFUSED)


@contract()
def capsules_share_memory(run: Run) -> None:
    """A capsule of a tensor with strides has its address and its strides, and copies nothing."""
    view = torch.arange(24.0).view(4, 6).to(run.device).t()[1:5:2]
    other = dlpack.from_dlpack(view.__dlpack__())
    same("data_ptr()", other.data_ptr(), view.data_ptr())
    same("stride()", other.stride(), view.stride())


@contract()
def strides_and_offsets_survive(run: Run) -> None:
    """A view that is exchanged keeps shape, strides and values."""
    _is_named(run)
    view = torch.arange(24.0).view(4, 6).to(run.device).t()[1:5:2]
    other = dlpack.from_dlpack(view)
    same("shape", other.shape, view.shape)
    same("stride()", other.stride(), view.stride())
    same("values", other, view)
    empty = dlpack.from_dlpack(torch.empty(0, 3, device=run.device))
    same("shape without elements", empty.shape, torch.Size([0, 3]))


@contract()
def memory_outlives_its_tensor(run: Run) -> None:
    """Exchanged memory lives as long as anyone who looks at it."""
    _is_named(run)
    other = dlpack.from_dlpack(on(run.device, 1, 2, 3))
    for value in range(8):
        torch.full((3,), float(value)).to(run.device)
    same("values", other, torch.tensor([1.0, 2.0, 3.0]))


@contract()
def cannot_be_expressed(run: Run) -> None:
    """Tensors that DLPack cannot express are refused: gradients, conj views."""
    refuses(
        "a tensor that requires grad",
        lambda: dlpack.from_dlpack(on(run.device, 1).requires_grad_()),
        _REFUSED,
    )
    conjugate = torch.tensor([1 + 2j]).to(run.device).conj()
    refuses("a conj view", lambda: dlpack.from_dlpack(conjugate), _REFUSED)


@contract(no_cpu="NumPy can read the CPU's memory")
def numpy_refuses(run: Run) -> None:
    """numpy.from_dlpack() of the device's memory raises and does not read it."""
    refuses("numpy.from_dlpack()", lambda: numpy.from_dlpack(on(run.device, 1, 2)), _REFUSED)


@contract(no_cpu="they are one device")
def crosses_to_and_from_the_cpu(run: Run) -> None:
    """from_dlpack(device=) copies between the CPU and the device, or refuses; it never aliases."""
    for source, target in ((torch.ones(3), run.device), (on(run.device, 1, 1, 1), "cpu")):
        try:
            moved = dlpack.from_dlpack(source, device=target)
        except _REFUSED:
            continue
        same(f"device of a copy to {target}", moved.device, torch.device(target))
        source.zero_()
        same(f"values of a copy to {target}", moved, torch.ones(3))
    require(torch.ones(1).__dlpack_device__()[1] == 0, "the CPU has an index")


@contract()
def arrays_of_numpy_reach_the_device(run: Run) -> None:
    """An array that dlpack.from_dlpack() reads from NumPy can be copied to the device."""
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    same("values", dlpack.from_dlpack(array).to(run.device), torch.arange(6.0).view(2, 3))
