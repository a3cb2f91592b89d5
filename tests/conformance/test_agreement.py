# SPDX-License-Identifier: BSD-3-Clause
"""When a result counts as the CPU's, and how far off it is said to be."""

import math

import pytest
import torch

from npusim_conformance.judge.agreement import Agreement, error_size
from npusim_conformance.verdict import Mismatch

CPU = torch.device("cpu")


def agree(expected, got, device=CPU, recompute=None, **kinds):
    agreement = Agreement(**kinds)
    agreement.check(expected, got, device, recompute=recompute)
    return agreement


def test_equal_bits_agree_in_every_dtype():
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool,
                  torch.float8_e4m3fn, torch.complex32):  # fmt: skip
        one = torch.tensor([0, 1, 1]).to(dtype)
        agree(one, one.clone(), bitwise=True)
        agree(one, one.clone())


def test_nan_agrees_with_nan_only():
    one = torch.tensor([math.nan, 1.0])
    agree(one, one.clone())
    with pytest.raises(Mismatch, match="inf"):
        agree(one, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (torch.ones(3), "shape"),
        (torch.ones(2, dtype=torch.float64), "dtype"),
        (torch.ones(2).to_sparse(), "layout"),
        (torch.ones(2, device="meta"), "on meta, expected on cpu"),
        (7, "a int"),
        ([torch.ones(2), torch.ones(2)], "a list|structure"),
    ],
)
def test_other_facts_are_named(got, said):
    with pytest.raises(Mismatch, match=said):
        agree(torch.ones(2), got)


def test_integers_must_be_equal():
    with pytest.raises(Mismatch, match="1 of 3 elements"):
        agree(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]))


def test_a_small_difference_is_accepted_and_remembered():
    agreement = agree(torch.ones(2), torch.tensor([1.0, 1.0 + 2**-22]))
    assert agreement.largest.absolute == 2**-22
    assert agreement.largest.ulp == 2


def test_bitwise_accepts_no_difference():
    with pytest.raises(Mismatch, match="2 ulp; equal bits are demanded"):
        agree(torch.ones(1), torch.tensor([1.0 + 2**-22]), bitwise=True)
    with pytest.raises(Mismatch):
        agree(torch.zeros(1), -torch.zeros(1), bitwise=True)


def test_a_declared_tolerance_counts():
    agree(torch.ones(1), torch.tensor([1.01]), rtol=0.1, atol=0.0)
    with pytest.raises(Mismatch):
        agree(torch.ones(1), torch.tensor([1.01]), rtol=1e-3, atol=0.0)


def test_a_device_as_exact_as_the_cpu_is_not_wrong():
    exact = torch.tensor([1.0], dtype=torch.float64)
    host, device = torch.tensor([1.001]), torch.tensor([0.999])
    agreement = agree(host, device, recompute=lambda vary: exact)
    assert agreement.largest.device == pytest.approx(0.001, rel=1e-3)
    assert agreement.largest.host == pytest.approx(0.001, rel=1e-3)


def test_a_device_much_less_exact_than_the_cpu_is_wrong():
    exact = torch.tensor([1.0], dtype=torch.float64)
    with pytest.raises(Mismatch, match=r"from float64: device 0\.01") as caught:
        agree(torch.tensor([1.0001]), torch.tensor([1.01]), recompute=lambda vary: exact)
    assert caught.value.error.absolute == pytest.approx(0.0099, rel=1e-2)


@pytest.mark.parametrize("got", [[math.nan, 1.0], [-math.inf, 1.0], [math.inf, 5.0], [1.0, 1.0]])
def test_an_overflow_of_the_cpu_excuses_nothing(got):
    """float16 ends at 65504: the CPU is infinitely far from 70000, the device must not be."""
    host, exact = torch.tensor([math.inf, 1.0]).half(), torch.tensor([70000.0, 1.0]).double()
    with pytest.raises(Mismatch):
        agree(host, torch.tensor(got).half(), recompute=lambda vary: exact)


def test_a_small_element_beside_a_large_one_is_judged_by_itself():
    exact = torch.tensor([1e4, 1e-3], dtype=torch.float64)
    with pytest.raises(Mismatch, match="from float64"):
        agree(exact.half(), torch.tensor([1e4, 1.0]).half(), recompute=lambda vary: exact)


def test_one_of_rtol_and_atol_is_enough():
    agree(torch.ones(1), torch.tensor([1.01]), rtol=0.1)
    with pytest.raises(Mismatch):
        agree(torch.ones(1), torch.tensor([1.01]), atol=1e-3)


def test_what_cannot_be_recomputed_is_judged_by_tolerance():
    def no_kernel(vary):
        raise NotImplementedError

    with pytest.raises(Mismatch, match=r"tolerance for torch\.float32 exceeded"):
        agree(torch.ones(1), torch.tensor([1.01]), recompute=no_kernel)


def test_the_right_one_of_many_is_named():
    one = [torch.ones(1), (torch.zeros(1), torch.ones(1))]
    other = [torch.ones(1), (torch.ones(1), torch.ones(1))]
    with pytest.raises(Mismatch, match="result 1: "):
        agree(one, other)


@pytest.mark.parametrize(("one", "other"), [(1, 2), (True, 1.5), ("a", "b"), (None, 1)])
def test_scalars_must_be_equal(one, other):
    with pytest.raises(Mismatch):
        agree([torch.ones(1), one], [torch.ones(1), other])


def test_sparse_results_are_compared_by_member():
    one = torch.eye(2).to_sparse()
    agree(one, one.clone())
    with pytest.raises(Mismatch, match="member 1"):
        agree(one, one * 2)


def test_ulps_count_across_zero():
    tiny = 2.0**-149  # the smallest positive float32
    found = error_size(torch.tensor([-tiny]), torch.tensor([tiny]))
    assert found.ulp == 2


def test_a_huge_element_of_an_elementwise_operator_excuses_no_small_one():
    exact = torch.tensor([1e30, 0.25], dtype=torch.float64)
    host = torch.tensor([1e30 * (1 + 1e-6), 0.25])
    kinds = {"recompute": lambda _: exact}
    agree(host, torch.tensor([1e30, 0.25 + 1e-6]), elementwise=True, **kinds)
    agree(host, torch.tensor([1e30, 1.5]), **kinds)  # of a sum, nothing is known
    with pytest.raises(Mismatch, match=r"tolerance for torch\.float32"):
        agree(host, torch.tensor([1e30, 1.5]), elementwise=True, **kinds)
