# SPDX-License-Identifier: BSD-3-Clause
"""Where a judge could err: what is no fault is not called one, and what is one does not pass."""

import contextlib
import sys

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

from npusim_conformance.backend.device import DeviceUnderTest
from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.contracts import contracts
from npusim_conformance.contracts.apart.script import run_script, said
from npusim_conformance.inputs import torch_testing
from npusim_conformance.properties import aliasing, forward
from npusim_conformance.properties.calls import tried
from npusim_conformance.properties.edges import EDGES
from npusim_conformance.properties.special_values import DEFINED

__all__ = ["bench"]

# --- the kit's own mistakes


def test_a_mistake_of_the_kit_is_not_upstreams(bench, monkeypatch):
    """It fails on the CPU as on the device; so would a fault of torch."""
    written = dict(vars(forward))
    exec("def examine(self, run, sample, device):\n    return no_such_name", written)
    monkeypatch.setattr(forward.Forward, "examine", written["examine"])
    outcome = bench.outcome("op:sin/forward/float32")
    assert outcome.status is FAIL
    assert "a mistake of the kit, not of the device" in outcome.message


# --- what the kit needs for itself


def test_a_device_that_is_set_by_index_only_breaks_one_contract(bench, monkeypatch):
    right = torch.npusim.set_device

    def set_device(index):
        if not isinstance(index, int):
            raise TypeError(f"an int is required, not {type(index).__name__}")
        right(index)

    monkeypatch.setattr(torch.npusim, "set_device", set_device)
    assert bench.status("contract:device/set_device_takes_devices") is FAIL
    for case in (
        "contract:storage/views_share_it",
        "contract:rng/devices_have_their_own",
        "op:log1p/second_device/float32",
    ):
        assert bench.status(case) is PASS, case


def test_states_of_generators_are_asked_for_by_index(bench, monkeypatch):
    for name in ("get_rng_state", "set_rng_state"):
        right = getattr(torch.npusim, name)

        def by_index(*args, right=right):
            assert isinstance(args[-1], int)
            return right(*args)

        monkeypatch.setattr(torch.npusim, name, by_index)
    for name in ("state_can_be_restored", "fork_rng_restores", "devices_have_their_own"):
        assert bench.status(f"contract:rng/{name}") is PASS, name
    assert bench.status("op:randn/generator_state/float32") is PASS


def test_scripts_on_the_cpu_load_no_backend():
    cpu = DeviceUnderTest("cpu", "", Expectations())
    script = "print('torch_npusim' in sys.modules)"
    for fresh in (True, False):
        done = run_script(cpu, script, fresh=fresh)
        assert done.stdout.strip() == "False", done


def test_what_a_backend_leaves_out_is_not_applicable(bench, monkeypatch):
    def get_memory_info(device=None):
        raise RuntimeError("getMemoryInfo is not implemented for this allocator yet.")

    monkeypatch.setattr(torch.accelerator, "get_memory_info", get_memory_info)
    outcome = bench.outcome("contract:accelerator/memory_info_is_plausible")
    assert outcome.status is NA
    assert "not implemented for this allocator yet" in outcome.message


def test_a_warning_is_quoted_by_its_text():
    warning = "/a/b.py:12: UserWarning: the cache is full\n  warnings.warn('the cache is full')\n"
    assert said(warning) == "UserWarning: the cache is full"
    assert said(warning + "Traceback (most recent call last):\nKeyError: 3\n") == "KeyError: 3"
    assert said("") == ""


# --- what is right is not failed


def test_who_accepts_more_than_the_cpu_and_is_right_passes(bench, monkeypatch):
    info = torch_testing.operators()["native_group_norm"]
    right = info.op

    def takes_gaps(given, *args, **kwargs):
        on_device = given.device.type == "npusim"
        return right(given.contiguous() if on_device else given, *args, **kwargs)

    monkeypatch.setattr(info, "op", takes_gaps)
    outcome = bench.outcome("op:native_group_norm/noncontiguous/float32")
    assert outcome.status in (PASS, FAIL)
    assert "accepted" not in outcome.message


def test_one_element_rows_may_be_rounded(bench, monkeypatch):
    """Their exact result is the bias; a mean that is rounded once more is seen 316-fold."""
    bench.plant_results("nn.functional.layer_norm", _rounds_the_mean)
    bench.samples_max = 40
    assert bench.status("op:nn.functional.layer_norm/forward/float32") is PASS


def _rounds_the_mean(right, x, shape, *args, **kwargs):
    result = right(x, shape, *args, **kwargs)
    if torch.Size(shape).numel() != 1:
        return result
    return result + x.abs() * torch.finfo(x.dtype).eps / 2 * 316


def test_a_wrong_bias_of_one_element_rows_is_found(bench):
    def wrong(right, x, shape, *args, **kwargs):
        return right(x, shape, *args, **kwargs) + 0.01

    bench.plant_results("nn.functional.layer_norm", wrong)
    assert bench.status("op:nn.functional.layer_norm/forward/float32") is FAIL


# --- what is wrong does not pass


def test_doubles_computed_in_single_precision_fail(bench):
    bench.plant("exp", lambda right, x: right(x) * (1 if x.dtype == torch.float32 else 1 + 3e-8))
    assert bench.status("op:exp/forward/float32") is PASS
    outcome = bench.outcome("op:exp/forward/float64")
    assert outcome.status is FAIL
    assert "change in their last bits" in outcome.message


@pytest.mark.parametrize("operator", ["svd", "linalg.pinv", "matmul", "cumprod", "lgamma"])
def test_doubles_added_in_another_order_pass(bench, operator):
    def shaken(right, *args, **kwargs):
        result = right(*args, **kwargs)
        leaves = [result] if isinstance(result, torch.Tensor) else list(result)
        for leaf in leaves:
            leaf.mul_(1 + 4 * torch.finfo(leaf.dtype).eps)
        return result

    bench.plant(operator, shaken)
    assert bench.status(f"op:{operator}/forward/float64") is PASS


@pytest.mark.parametrize(("off", "status"), [(0, PASS), (1e-3, FAIL)])
def test_steps_of_mixed_dtypes_may_be_single(bench, off, status):
    """As torch's own addr() of every device but the CPU has a step in the vectors' dtype."""

    def addr(right, x, one, other, **options):
        beta, alpha = (options.get(name, 1) for name in ("beta", "alpha"))
        if beta == 0 or "out" in options:
            return right(x, one, other, **options)
        return beta * x + alpha * torch.outer(one, other) + off

    bench.plant("addr", addr)
    outcome = bench.outcome("op:addr/edges")
    assert outcome.status is status, outcome.message


def test_an_operand_that_is_read_wrong_is_not_a_call_s(bench, monkeypatch):
    right = torch.Tensor.cpu

    def cpu(self):
        sizes = sorted(zip(self.stride(), self.shape, strict=True))
        gaps = self.device.type == "npusim" and sizes and sizes[0][0] > 1
        return right(self) + 1 if gaps else right(self)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    outcome = bench.outcome("op:nn.functional.pixel_shuffle/edges")
    assert outcome.status is FAIL
    assert outcome.message.startswith("an operand comes back wrong before any call: operand")
    assert outcome.culprit == ""


def test_the_sign_of_zero_counts(bench):
    bench.plant("abs", lambda right, x: right(x).where(x != 0, x))
    outcome = bench.outcome("op:abs/special_values/float32")
    assert outcome.status is FAIL
    assert outcome.message.startswith("abs of -0.0: -0.0, on the CPU 0.0")


def test_nan_counts(bench):
    bench.plant("nn.functional.relu", lambda right, x, **how: right(x, **how).where(x == x, 0))
    outcome = bench.outcome("op:nn.functional.relu/special_values/float32")
    assert outcome.message.startswith("nn.functional.relu of nan: 0.0, on the CPU nan")


def test_integers_that_went_through_a_double_are_found(bench, monkeypatch):
    right = torch.Tensor.item

    def item(tensor):
        found = right(tensor)
        lossy = tensor.device.type == "npusim" and tensor.dtype == torch.int64
        return int(float(found)) if lossy else found

    monkeypatch.setattr(torch.Tensor, "item", item)
    outcome = bench.outcome("contract:indexing/scalars_of_every_dtype_come_back")
    assert outcome.message == "item() of torch.int64: 9007199254740992, expected 9007199254740993"


def test_a_restored_state_must_give_the_same_numbers(bench, monkeypatch):
    monkeypatch.setattr(torch.npusim, "set_rng_state", lambda state, device=None: None)
    assert bench.status("contract:rng/state_can_be_restored") is FAIL
    assert bench.status("op:randn/generator_state/float32") is FAIL


def test_no_contract_but_one_sets_devices_by_anything_but_an_index():
    """Contracts of groups that ask for something else must not fail for that."""
    named = {"device", "accelerator"}  # these ask for other forms on purpose
    lines = []
    for contract in contracts().values():
        module = sys.modules[contract.check.__module__]
        with contextlib.suppress(OSError), open(module.__file__) as source:
            lines += [
                line for line in source if ".set_device(" in line and contract.group not in named
            ]
    assert lines == []


def test_the_cpu_refuses_only_edges_that_are_to_be_refused():
    def said(name, call):
        _, error = tried(lambda: torch_testing.operators()[name](*call[0], **call[1]))
        return str(error or "out of")

    texts = [said(name, call) for name, calls in EDGES.items() for call in calls]
    assert [text for text in texts if "out of" not in text and "overflow" not in text] == []


def test_every_operator_with_edges_exists():
    assert set(EDGES) <= set(torch_testing.operators())
    assert set(DEFINED) <= set(torch_testing.operators())


# --- every failure has a script that shows it


def test_scripts_of_out_show_their_own_failure(bench, monkeypatch):
    def wrong(right, x, out=None):
        if out is not None and not out.is_contiguous():
            return out
        return right(x) if out is None else right(x, out=out)

    bench.plant("atan", wrong)
    script = bench.outcome("op:atan/out/float32").repro
    assert "out = torch.utils._pytree.tree_map(lambda result: torch.empty(" in script
    assert ", out=out)" in script
    compile(script, "script", "exec")


def test_scripts_of_layouts_show_their_own_failure(bench):
    def wrong(right, x, **how):
        return right(x, **how) if x.is_contiguous() else right(x, **how) + 1

    bench.plant("nn.functional.silu", wrong)
    script = bench.outcome("op:nn.functional.silu/noncontiguous/float32").repro
    assert ".as_strided(" in script


def test_writes_to_elements_that_share_an_address_do_not_depend_on_their_order():
    windows = torch.zeros(6).unfold(0, 3, 1)
    numbers = aliasing._ramp(windows, 2)
    for row in torch.randperm(len(windows), generator=torch.Generator().manual_seed(0)):
        windows[row].copy_(numbers[row])
    assert torch.equal(windows, numbers)
    assert len(set(numbers.flatten().tolist())) == 6
    assert aliasing._ramp(torch.empty(0, 3), 2).shape == (0, 3)
