# SPDX-License-Identifier: BSD-3-Clause
"""The kit's properties of repeated calls: determinism, memory given back, and fallbacks."""

import gc
import sys
import types
import warnings

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.verdict import Status

__all__ = ["bench"]


def test_bits_that_change_from_call_to_call_are_seen(bench):
    calls = iter(range(1000))
    case = "op:exp2/determinism/float32"
    assert bench.status(case) is PASS
    bench.plant("exp2", lambda right, x: right(x).nextafter_(torch.full_like(x, next(calls) % 2)))
    outcome = bench.outcome(case)
    assert outcome.status is FAIL
    assert "ulp" in outcome.message
    assert outcome.upstream_samples == 0


def test_one_ulp_is_no_failure_of_forward(bench):
    bench.plant("exp2", lambda right, x: right(x).nextafter_(torch.full_like(x, torch.inf)))
    assert bench.status("op:exp2/forward/float32") is PASS


def test_documented_nondeterminism_is_asked_under_deterministic_algorithms(bench):
    calls = iter(range(1000))

    def careless(right, *args, **kwargs):
        result = right(*args, **kwargs)
        if torch.are_deterministic_algorithms_enabled():
            return result
        return result + next(calls)

    bench.plant("index_add", careless)
    assert bench.status("op:index_add/determinism/float32") is PASS
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_refusal_to_be_deterministic_is_not_a_failure(bench):
    def refusing(right, *args, **kwargs):
        raise RuntimeError("cumsum_kernel does not have a deterministic implementation, but ...")

    bench.plant("cumsum", refusing)
    outcome = bench.outcome("op:cumsum/determinism/float32")
    assert outcome.status is NA
    assert "cumsum_kernel" in outcome.message


@pytest.mark.parametrize("operator", ["nn.functional.dropout", "normal"])
def test_random_operators_are_left_to_their_own_property(bench, operator):
    assert bench.status(f"op:{operator}/determinism/float32") is NA


def test_memory_that_is_kept_is_seen(bench):
    kept = []

    def leaking(right, x, dims):
        kept.append(right(x, dims))
        return kept[-1].clone()

    case = "op:flip/memory/float32"
    assert bench.status(case) is PASS
    bench.plant("flip", leaking)
    outcome = bench.outcome(case)
    assert outcome.status is FAIL
    assert "bytes stay allocated" in outcome.message


def test_garbage_of_others_hides_no_leak(bench):
    kept = []

    def leaking(right, x, dims):
        kept.append(right(x, dims))
        cycle = [torch.empty(1 << 16, device="npusim")] if len(kept) % 2 else []
        cycle.append(cycle)
        return kept[-1].clone()

    bench.plant("flip", leaking)
    gc.collect()
    gc.disable()
    try:
        assert bench.status("op:flip/memory/float32") is FAIL
    finally:
        gc.enable()


def test_what_only_the_first_call_keeps_is_no_leak(bench):
    kept = {}

    def caching(right, x, dims):
        kept.setdefault(x.shape, right(x, dims))
        return right(x, dims)

    bench.plant("flip", caching)
    assert bench.status("op:flip/memory/float32") is PASS


def test_cycles_of_python_objects_are_no_leak(bench):
    def cyclic(right, x, dims):
        cycle = [right(x, dims)]
        cycle.append(cycle)
        return right(x, dims)

    gc.disable()
    try:
        bench.plant("flip", cyclic)
        assert bench.status("op:flip/memory/float32") is PASS
    finally:
        gc.enable()


def test_memory_is_unknown_where_nobody_counts(bench, monkeypatch):
    monkeypatch.delattr(torch.npusim, "memory_allocated")
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda device: {})
    outcome = bench.outcome("op:flip/memory/float32")
    assert outcome.status is NA
    assert "does not say" in outcome.message


@pytest.fixture
def fallen(bench, monkeypatch):
    """op:i0 computed by the CPU, and a hook that tells."""
    counts = {}
    hook = types.ModuleType("hook_of_a_test")
    hook.counts = lambda: counts
    monkeypatch.setitem(sys.modules, hook.__name__, hook)

    def falling(right, x):
        counts["aten::i0"] = counts.get("aten::i0", 0) + 1
        return right(x.cpu()).to(x.device)

    bench.plant("i0", falling)
    return bench


CASE = "op:i0/fallback/float32"


def test_without_hook_and_warning_it_is_unknown(fallen):
    outcome = fallen.outcome(CASE)
    assert outcome.status is NA
    assert outcome.message.startswith("unknown")


def test_a_hook_tells_what_fell_back(fallen):
    fallen.expectations = Expectations(fallback_hook="hook_of_a_test:counts")
    outcome = fallen.outcome(CASE)
    assert outcome.status is Status.FALLBACK_PASS
    assert outcome.fallbacks == ["aten::i0"]
    native = fallen.outcome("op:sin/fallback/float32")
    assert (native.status, native.native) == (PASS, True)


def test_a_fallback_of_what_is_declared_native_fails(fallen):
    fallen.expectations = Expectations(
        fallback_hook="hook_of_a_test:counts", native=("op:i0", "op:sin")
    )
    outcome = fallen.outcome(CASE)
    assert outcome.status is FAIL
    assert "aten::i0" in outcome.message
    assert fallen.status("op:sin/fallback/float32") is PASS


def test_a_warning_of_a_fallback_is_heeded(bench):
    def warning(right, x):
        warnings.warn("The operator 'aten::i0' will fall back to run on the CPU.", stacklevel=1)
        return right(x)

    bench.plant("i0", warning)
    outcome = bench.outcome(CASE)
    assert outcome.status is Status.FALLBACK_PASS
    assert outcome.fallbacks == ["aten::i0"]
    bench.expectations = Expectations(native=("op:i0",))
    assert bench.status(CASE) is FAIL


def test_the_cpu_does_not_fall_back(bench):
    assert bench.status(CASE, device="cpu") is NA
