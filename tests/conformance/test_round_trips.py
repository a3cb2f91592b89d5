# SPDX-License-Identifier: BSD-3-Clause
"""The kit's `serialization` and `numpy` see what comes back otherwise than it went."""

import copy
import importlib.util
import pickle

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

__all__ = ["bench"]

CASE = "op:add/serialization/float32"


def test_a_right_device_passes(bench):
    assert bench.status(CASE) is PASS
    assert bench.status("op:view/serialization/float32") is PASS
    assert bench.status("op:conj/serialization/complex64") is PASS
    assert bench.status("op:view_as_real/serialization/complex64") is PASS


def on_device(tensors):
    return any(tensor.device.type == "npusim" for tensor in tensors)


def spoilt(monkeypatch, module, name, spoil):
    """Lets a function of a module spoil tensors of the device."""
    right = getattr(module, name)

    def wrong(*args, **kwargs):
        back = right(*args, **kwargs)
        if isinstance(back, list) and on_device(back):
            return [spoil(tensor) for tensor in back]
        return back

    monkeypatch.setattr(module, name, wrong)


@pytest.mark.parametrize(
    ("module", "name", "way"),
    [
        (torch, "load", "torch.load"),
        (pickle, "loads", "pickle"),
        (copy, "deepcopy", "copy.deepcopy"),
    ],
)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda tensor: tensor.cpu(), "on cpu"),
        (lambda tensor: tensor + 1, "equal bits"),
        (lambda tensor: tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor, "strides"),
    ],
)
def test_what_comes_back_otherwise_is_seen(bench, monkeypatch, module, name, way, spoil, said):
    spoilt(monkeypatch, module, name, spoil)
    outcome = bench.outcome(CASE)
    assert outcome.status is FAIL
    assert outcome.message.startswith(way)
    assert said in outcome.message
    assert outcome.upstream_samples == 0


def test_a_shared_storage_that_is_lost_is_seen(bench, monkeypatch):
    spoilt(monkeypatch, torch, "load", lambda tensor: tensor.clone())
    outcome = bench.outcome("op:view/serialization/float32")
    assert outcome.status is FAIL
    assert "share storages" in outcome.message


def test_map_location_is_looked_at(bench, monkeypatch):
    right = torch.load
    monkeypatch.setattr(
        torch, "load", lambda *args, map_location=None, **kwargs: right(*args, **kwargs)
    )
    outcome = bench.outcome(CASE)
    assert outcome.status is FAIL
    assert "map_location" in outcome.message


# --- numpy


@pytest.mark.parametrize(
    "operator", ["sin", "fft.ihfft2", "var", "linalg.tensorinv", "equal", "clamp"]
)
def test_right_values_are_numpy_s(bench, operator):
    bench.samples_max = None
    outcome = bench.outcome(f"op:{operator}/numpy/float64")
    assert outcome.status is PASS
    assert outcome.upstream_samples == 0


def test_wrong_values_are_not_numpy_s(bench):
    bench.plant("sin", lambda right, x: right(x) * (1 + 1e-6))
    outcome = bench.outcome("op:sin/numpy/float64")
    assert outcome.status is FAIL
    assert outcome.message.startswith("result 0: largest error")


def test_without_counterpart_it_is_not_applicable(bench, monkeypatch):
    assert bench.outcome("op:cat/numpy/float64").message == ""
    assert bench.outcome("op:unfold/numpy/float64").status is NA
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "scipy is not installed" in bench.outcome("op:unfold/numpy/float64").message
