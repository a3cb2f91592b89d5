# SPDX-License-Identifier: BSD-3-Clause
"""NumPy: it cannot see the device's memory, and both copy to each other through the CPU."""

import warnings
from typing import Any

import numpy
import torch

from npusim_conformance.contracts import contract, on, refuses, same
from npusim_conformance.properties.base import Run, require

_NO_CPU = "NumPy can read the CPU's memory"


@contract(no_cpu=_NO_CPU)
def numpy_needs_the_cpu(run: Run) -> None:
    """Tensor.numpy() raises TypeError and says what to do."""
    refuses("numpy()", on(run.device, 1, 2).numpy, TypeError, ("cpu",))


@contract(no_cpu=_NO_CPU)
def arrays_need_the_cpu(run: Run) -> None:
    """numpy.asarray() and numpy.array() of a tensor on the device raise TypeError."""
    tensor = on(run.device, 1, 2)
    refuses("numpy.asarray()", lambda: numpy.asarray(tensor), TypeError)
    refuses("numpy.array()", lambda: numpy.array(tensor), TypeError)


@contract()
def force_copies(run: Run) -> None:
    """Tensor.numpy(force=True) copies, also what requires grad."""
    there = on(run.device, 1, 2).requires_grad_()
    same("values", there.numpy(force=True).tolist(), [1.0, 2.0])


@contract()
def force_resolves_conj(run: Run) -> None:
    """Tensor.numpy(force=True) of a conj view has its values."""
    conjugate = torch.tensor([1 + 2j]).to(run.device).conj()
    same("values of a conj view", conjugate.numpy(force=True).tolist(), [1 - 2j])


@contract()
def arrays_are_copied(run: Run) -> None:
    """torch.tensor() and as_tensor() of an array, with device=, hold its values."""
    array = numpy.array([[1, 2], [3, 4]], dtype=numpy.int32)
    for name, there in {
        "torch.tensor()": torch.tensor(array, device=run.device),
        "torch.as_tensor()": torch.as_tensor(array, device=run.device),
        "torch.from_numpy().to()": torch.from_numpy(array).to(run.device),
        "torch.asarray()": torch.asarray(array, device=run.device),
    }.items():
        same(f"device of {name}", there.device, run.device)
        same(f"values of {name}", there, torch.tensor([[1, 2], [3, 4]], dtype=torch.int32))


@contract(no_cpu="as_tensor() of an array shares memory on the CPU")
def arrays_are_not_shared(run: Run) -> None:
    """A later write to an array does not show on the device."""
    array = numpy.ones(3, dtype=numpy.float32)
    there = torch.as_tensor(array, device=run.device)
    array[0] = 9
    same("values", there, torch.ones(3))


@contract()
def numbers_of_numpy_mix(run: Run) -> None:
    """Numbers of NumPy work as operands and as indexes."""
    there = on(run.device, 1, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one: Any = numpy.float32(1)
        same("a sum", there + one, torch.tensor([2.0, 3.0, 4.0]))
    same("an index", float(there[numpy.int64(2)]), 3.0)
    same("an array as index", there[numpy.array([2, 0])], torch.tensor([3.0, 1.0]))


@contract()
def values_go_round(run: Run) -> None:
    """From NumPy to the device and back, values and dtypes stay."""
    for name in ("float32", "float64", "int64", "int8", "uint8", "bool", "complex64"):
        if name in run.under_test.expectations.unsupported_dtypes:
            continue
        array = numpy.array([0, 1, 1], dtype=name)
        back = torch.from_numpy(array).to(run.device).cpu().numpy()
        same(f"dtype of {name}", back.dtype.name, name)
        require(bool((back == array).all()), f"{name}: {back}, expected {array}")
