# SPDX-License-Identifier: BSD-3-Clause
"""Axes of inputs: each kind of argument takes each of its values, for operators by their schema."""

import pytest
import torch

pytest.importorskip("npusim_conformance")

from npusim_conformance.inputs import axes, torch_testing
from npusim_conformance.inputs.transfer import tensors_of


def _calls(name):
    return axes.varied(torch_testing.operators()[name])


def test_an_index_is_turned_repeated_and_reshaped():
    found = [call[0][2] for call in _calls("index_select")]
    assert any(index.dim() == 0 for index in found)
    assert any(len(index.unique()) < index.numel() for index in found if index.dim())
    assert any((index < 0).any() for index in found)
    assert any(index.dtype == torch.int32 for index in found)


def test_indices_that_write_do_not_repeat():
    samples = [call[0][2] for call in _calls("index_copy")]
    assert [index for index in samples if len(index.unique()) < index.numel()] == []


def test_every_dimension_and_its_negative():
    dims = {call[0][1] for call in _calls("cumsum") if len(call[0]) > 1}
    assert {-1, 0, -3, 2} <= dims


def test_factors_that_a_sample_leaves_out():
    given = [call[1] for call in _calls("addmm")]
    assert {0, -1} <= {one.get("beta") for one in given}
    assert {0, -1} <= {one.get("alpha") for one in given}


def test_modes_are_all_asked_for():
    modes = {call[1].get("side") for call in _calls("searchsorted")}
    assert {"left", "right"} <= modes


def test_lengths_and_ranks_of_a_lone_tensor():
    shapes = {tuple(call[0][0].shape) for call in _calls("cumsum")}
    assert {(), (0,), (67,), (0, 3), (2, 3, 5)} <= shapes


def test_operands_lie_transposed_and_with_gaps():
    first = [call[0][1] for call in _calls("addmm")]
    assert any(x.mT.is_contiguous() and not x.is_contiguous() for x in first)
    assert any(x.stride(-1) == 2 for x in first)


def test_no_operator_costs_more_than_its_share():
    counts = {
        name: len(axes.varied(operator))
        for name, operator in torch_testing.operators().items()
        if axes.is_varied(operator)
    }
    assert max(counts.values()) <= axes.CALLS_MAX
    assert sum(count > 0 for count in counts.values()) > 390


def test_a_call_changes_one_argument_at_a_time():
    for name in ("addmm", "gather", "scatter_add"):
        for args, _ in _calls(name):
            assert len(tensors_of(args)) == len(tensors_of(_calls(name)[0][0]))
