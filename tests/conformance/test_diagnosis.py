# SPDX-License-Identifier: BSD-3-Clause
"""Which texts of torch name a missing kernel, and which kernel that is."""

import pytest
import torch
from conformance.single_cases import bench

from npusim_conformance.judge.diagnosis import diagnose
from npusim_conformance.verdict import Mismatch, Status

__all__ = ["bench"]

NO_KERNEL = (
    "Could not run 'aten::{}' with arguments from the '{}' backend. This could be because the "
    "operator doesn't exist for this backend"
)


def said_by_torch(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the text is what is tested)
        call()
    return caught.value


def test_a_missing_kernel_is_named():
    sparse = torch.ones(2).to_sparse()
    found = diagnose(said_by_torch(lambda: torch.ops.aten.lgamma(sparse)))
    assert (found.status, found.missing) == (Status.UNIMPLEMENTED, "aten::lgamma")


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError])
def test_a_fallback_that_only_refuses_names_a_missing_kernel(kind):
    text = "Operator 'aten::abs.out' is not implemented for chip. CPU fallback is disabled."
    found = diagnose(kind(text))
    assert (found.status, found.missing) == (Status.UNIMPLEMENTED, "aten::abs.out")
    assert found.message == text


@pytest.mark.parametrize(
    "text",
    [
        "Operator 'aten::abs' is not implemented for dtype Half",
        "operator aten::abs is not supported for torch.float16",
        "aten::abs: complex numbers are not implemented for chip",
    ],
)
def test_a_kernel_that_refuses_some_operands_is_there(text):
    assert diagnose(RuntimeError(text)).status is Status.FAIL


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        (
            lambda: torch.ops.aten.convolution_overrideable(
                torch.ones(1, 1, 2), torch.ones(1, 1, 1), None, [1], [0], [1], False, [0], 1
            ),
            "aten::convolution_overrideable",
        ),
        (
            lambda: torch.ops.aten.convolution_backward_overrideable(
                *(torch.ones(1, 1, 2), torch.ones(1, 1, 2), torch.ones(1, 1, 1)),
                *([1], [0], [1], False, [0], 1, [True, True, True]),
            ),
            "aten::convolution_backward_overrideable",
        ),
    ],
    ids=["forward", "backward"],
)
def test_a_kernel_that_only_asks_for_another_is_missing(call, missing):
    found = diagnose(said_by_torch(call))
    assert (found.status, found.missing) == (Status.UNIMPLEMENTED, missing)


def test_without_a_fallthrough_for_autocast_no_operator_is_missing():
    errors = [NotImplementedError(NO_KERNEL.format(name, "Autocastchip")) for name in ("a", "b")]
    first, second = map(diagnose, errors)
    assert first == second
    assert (first.status, first.missing) == (Status.UNIMPLEMENTED, "")
    assert "Autocastchip" in first.message


@pytest.mark.parametrize(
    "text",
    ["Unsupported data type Half", "data type is not supported on this chip", "unknown dtype 15"],
)
def test_a_dtype_that_no_operator_takes_is_one_cause(bench, text):
    def refuses(right, *args, **kwargs):
        raise RuntimeError(text)

    causes = set()
    for name in ("sin", "cos"):
        bench.plant(name, refuses)
        causes.add(bench.outcome(f"op:{name}/forward/float16").cause)
    assert causes == {"unsupported data type: float16"}


def test_a_dtype_that_a_table_lacks_is_the_cause_whatever_the_case_has(bench):
    def refuses(right, *args, **kwargs):
        raise KeyError(torch.complex64)

    causes = set()
    for name in ("sin", "cos"):
        bench.plant(name, refuses)
        causes.add(bench.outcome(f"op:{name}/forward/float32").cause)
    assert causes == {"unsupported data type: complex64"}


def test_a_dtype_that_one_operator_lacks_is_that_operators():
    error = RuntimeError("\"lgamma\" not implemented for 'Half'")
    assert diagnose(error).cause == "RuntimeError: \"lgamma\" not implemented for 'Half'"


@pytest.mark.parametrize(("results", "said"), [([], "fewer"), ([1, 2], "more")])
def test_a_number_of_results_is_told_in_words(results, said):
    with pytest.raises(ValueError, match="zip") as raised:
        list(zip([1], results, strict=True))
    found = diagnose(raised.value)
    assert found.message == f"the device gives {said} results than the CPU"
    assert found.cause == found.message


def test_printed_tensors_are_one_line_and_no_cause():
    printed = (torch.zeros(3, 4), torch.ones(20, dtype=torch.complex64), torch.ones(2, 2).int())
    found = [diagnose(Mismatch(f"result: {value!r}, on the CPU 1")) for value in printed]
    assert {one.message for one in found} == {"result: tensor(...), on the CPU 1"}
    assert len({one.cause for one in found}) == 1


def test_causes_ignore_what_varies():
    causes = {diagnose(Mismatch(f"result: {count} of 9 elements differ")).cause for count in (1, 2)}
    assert len(causes) == 1
