# SPDX-License-Identifier: BSD-3-Clause
"""Rule F3 over the operators of op_db: what a command that a fault hit has made is garbage."""

import contextlib

import pytest
import torch
from ops.swept import NPU, on_device, over_operators, samples_of, tensors_of

from torch_npusim.sim import faults, poison


def garbage(tensor):
    """Returns whether no element was computed: spoilt, or fresh memory, which is poisoned here."""
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    fresh = (flat.view(torch.uint8).reshape(flat.numel(), -1) == 0xD0).all(1)
    if flat.dtype.is_floating_point or flat.dtype.is_complex:
        spoilt = flat.isnan()
    elif flat.dtype == torch.bool:
        spoilt = flat
    else:
        spoilt = flat == (255 if flat.dtype == torch.uint8 else -1)
    return bool((fresh | spoilt).all())


def test_what_was_computed_is_no_garbage():
    for dtype in (torch.float32, torch.int64, torch.bool, torch.uint8):
        assert not garbage(torch.tensor([1, 0], dtype=dtype))


def bytes_of(tensor):
    """Returns all bytes of its storage."""
    return torch.empty(0, dtype=torch.uint8, device=NPU).set_(tensor.untyped_storage())


@contextlib.contextmanager
def every_command_fails():
    """An operator that reads values meets the fault, or garbage."""
    torch.npusim.synchronize()
    with contextlib.suppress(Exception):
        with poison.use_mode("fresh"), faults.inject("launch", every=1):
            yield
    faults.clear()
    with contextlib.suppress(RuntimeError):
        torch.npusim.synchronize()


@over_operators
def test_nothing_of_it_is_valid(op):
    given = on_device(next(samples_of(op)))
    inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(given)
              if tensor.layout == torch.strided}  # fmt: skip

    def call():
        return [
            tensor
            for tensor in tensors_of(op(given[0], *given[1], **given[2]))
            if tensor.device.type == NPU.type and tensor.layout == torch.strided
            if tensor.untyped_storage().data_ptr() not in inputs
        ]

    try:
        call()
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"docs/reference/exclusions.md: {error}")
    made = []
    with every_command_fails():
        made = call()
    for tensor in made:
        assert tensor.numel() == 0 or garbage(tensor.cpu())
    if (in_place := op.inplace_variant) is None:
        return
    changed = given[0].clone()
    try:
        in_place(changed, *given[1], **given[2])
    except (RuntimeError, TypeError):
        return  # results of another shape or dtype
    if torch.equal(bytes_of(changed), bytes_of(given[0].clone())):
        return  # a view, or dropout outside of training
    changed = given[0].clone()
    with every_command_fails():
        in_place(changed, *given[1], **given[2])
    assert changed.numel() == 0 or garbage(changed.cpu())


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_spoilt_by_what_changes_them(training):
    """Rule F3: the schema does not say that batch norm writes them."""
    norm = torch.nn.BatchNorm1d(2, device=NPU).train(training)
    with every_command_fails():
        norm(torch.ones(3, 2, device=NPU))
    for statistics in (norm.running_mean, norm.running_var):
        assert garbage(statistics.cpu()) == training


@pytest.mark.parametrize("name", ["zero_", "uniform_", "normal_", "random_", "bernoulli_"])
def test_what_is_written_without_being_read_is_spoilt(name):
    """Rule F3."""
    x = torch.full((5,), 0.5, device=NPU)
    with every_command_fails():
        getattr(x, name)()
    assert garbage(x.cpu())


def test_both_results_of_dropout_are_spoilt():
    """Rule F3."""
    x, results = torch.full((5,), 0.5, device=NPU), []
    with every_command_fails():
        results += torch.native_dropout(x, 0.5, True)
    assert [garbage(result.cpu()) for result in results] == [True, True]
