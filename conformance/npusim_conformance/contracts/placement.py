# SPDX-License-Identifier: BSD-3-Clause
"""Where tensors are made: on the device that is named, or that the operands lie on.

The second device is named while the first is current; a factory that takes the current device is
right on every machine with one device.
"""

from collections.abc import Callable

import torch

from npusim_conformance.contracts import contract, other_device, same
from npusim_conformance.properties.base import Run

_NO_CPU = "the CPU is one device"
_INDICES = ((0, 1), (1, 0))


def _coo() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor(_INDICES), torch.tensor([1.0, 2.0]), (2, 2))


def _all_on(device: torch.device, makers: dict[str, Callable[[], torch.Tensor]]) -> None:
    for what, make in makers.items():
        same(f"device of {what}", make().device, device)


@contract(no_cpu=_NO_CPU, two_devices=True)
def dense_factories_take_the_device_named(run: Run) -> None:
    """empty, full, arange, rand, tensor, *_like and their kin make tensors where they are told."""
    there = other_device(run)
    base = torch.ones(2, 3).to(there)
    _all_on(
        there,
        {
            "empty": lambda: torch.empty(2, device=there),
            "empty_strided": lambda: torch.empty_strided((2, 2), (1, 2), device=there),
            "zeros": lambda: torch.zeros(2, device=there),
            "full": lambda: torch.full((2,), 3, device=there),
            "arange": lambda: torch.arange(3, device=there),
            "linspace": lambda: torch.linspace(0, 1, 3, device=there),
            "eye": lambda: torch.eye(2, device=there),
            "rand": lambda: torch.rand(2, device=there),
            "randint": lambda: torch.randint(5, (2,), device=there),
            "randperm": lambda: torch.randperm(4, device=there),
            "tensor": lambda: torch.tensor([1, 2], device=there),
            "tril_indices": lambda: torch.tril_indices(2, 2, device=there),
            "empty_like": lambda: torch.empty_like(base),
            "rand_like": lambda: torch.rand_like(base),
            "new_zeros": lambda: base.new_zeros(2),
            "new_tensor": lambda: base.new_tensor([1.0]),
        },
    )


@contract(no_cpu=_NO_CPU, two_devices=True)
def sparse_factories_take_the_device_named(run: Run) -> None:
    """Sparse tensors lie where they are told, or where their indices and values lie."""
    there = other_device(run)
    indices = torch.tensor(_INDICES).to(there)
    values = torch.tensor([1.0, 2.0]).to(there)
    rows, columns = torch.tensor([0, 1, 2]).to(there), torch.tensor([0, 1]).to(there)
    _all_on(
        there,
        {
            "empty in COO": lambda: torch.empty((2, 2), layout=torch.sparse_coo, device=there),
            "zeros in COO": lambda: torch.zeros((2, 2), layout=torch.sparse_coo, device=there),
            "zeros in CSR": lambda: torch.zeros((2, 2), layout=torch.sparse_csr, device=there),
            "sparse_coo_tensor by name": lambda: torch.sparse_coo_tensor(
                torch.tensor(_INDICES), [1.0, 2.0], (2, 2), device=there
            ),
            "sparse_coo_tensor by operands": lambda: torch.sparse_coo_tensor(
                indices, values, (2, 2)
            ),
            "sparse_coo_tensor without a size": lambda: torch.sparse_coo_tensor(indices, values),
            "sparse_csr_tensor": lambda: torch.sparse_csr_tensor(rows, columns, values, (2, 2)),
            "to() of COO": lambda: _coo().to(there),
            "to() of CSR": lambda: _coo().to_sparse_csr().to(there),
            "to_sparse()": lambda: torch.eye(2).to(there).to_sparse(),
            "zeros_like": lambda: torch.zeros_like(_coo().to(there)),
            "the values of COO": lambda: _coo().to(there)._values(),
        },
    )
    same("values", _coo().to(there).to_dense(), _coo().to_dense())


@contract()
def sparse_invariants_are_checked(run: Run) -> None:
    """sparse_coo_tensor(check_invariants=True, is_coalesced=True) takes what is valid."""
    indices = torch.tensor(_INDICES).to(run.device)
    values = torch.tensor([1.0, 2.0]).to(run.device)
    made = torch.sparse_coo_tensor(
        indices, values, (2, 2), check_invariants=True, is_coalesced=True
    )
    same("is_coalesced()", made.is_coalesced(), True)
    same("values", made.to_dense(), _coo().to_dense())


@contract()
def sparse_out_is_resized(run: Run) -> None:
    """zeros(shape, out=) resizes a sparse tensor that holds values."""
    out = torch.tensor([1.0, 2.0]).to_sparse().to(run.device)
    torch.zeros(2, 3, 4, out=out)
    same("shape", out.shape, torch.Size([2, 3, 4]))
    same("values", out._nnz(), 0)
