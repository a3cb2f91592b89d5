# SPDX-License-Identifier: BSD-3-Clause
"""The kit's `autocast` sees operators that do not run, or cast otherwise than all backends do."""

import pytest
import torch
from conformance.single_cases import FAIL, PASS, bench
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["bench"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("operator", ["mm", "nn.functional.mse_loss", "sin", "nn.functional.rrelu"])
def test_right_casts_pass(bench, operator, dtype):
    assert bench.status(f"op:{operator}/autocast/{dtype}") is PASS


def without_autocast(right, *args, **kwargs):
    with torch.autocast("npusim", enabled=False):
        return right(*args, **kwargs)


def test_a_product_that_is_not_cast_is_seen(bench):
    bench.plant("mm", without_autocast)
    outcome = bench.outcome("op:mm/autocast/bfloat16")
    assert outcome.status is FAIL
    assert "dtype torch.float32" in outcome.message
    assert outcome.upstream_samples == 0


def test_a_loss_in_half_precision_is_seen(bench):
    bench.plant("nn.functional.mse_loss", without_autocast)
    outcome = bench.outcome("op:nn.functional.mse_loss/autocast/bfloat16")
    assert outcome.status is FAIL
    assert "dtype torch.bfloat16" in outcome.message


def test_an_operator_that_does_not_run_is_seen(bench):
    def refusing(right, x):
        if torch.is_autocast_enabled("npusim"):
            raise RuntimeError("no kernel for AutocastPrivateUse1")
        return right(x)

    bench.plant("sin", refusing)
    assert bench.status("op:sin/autocast/bfloat16") is FAIL


def test_the_backend_may_cast_what_the_cpu_does_not(bench):
    bench.plant("sin", lambda right, x: right(x.bfloat16()))
    assert bench.status("op:sin/autocast/bfloat16") is PASS


def test_a_wrong_value_under_autocast_is_seen(bench):
    def wrong(right, x):
        result = right(x)
        with _disable_current_modes():  # as a kernel, which no mode looks into
            return result.add_(1) if torch.is_autocast_enabled("npusim") else result

    bench.plant("sin", wrong)
    assert bench.status("op:sin/forward/float32") is PASS
    outcome = bench.outcome("op:sin/autocast/bfloat16")
    assert outcome.status is FAIL
    assert "tolerance" in outcome.message


def test_a_dtype_out_of_nowhere_is_seen(bench):
    bench.plant("sin", lambda right, x: right(x).double())
    outcome = bench.outcome("op:sin/autocast/bfloat16")
    assert outcome.status is FAIL
    assert "torch.float64 under autocast" in outcome.message


def test_what_torch_bans_under_autocast_may_be_refused(bench):
    assert bench.status("op:nn.functional.binary_cross_entropy/autocast/bfloat16") is PASS
