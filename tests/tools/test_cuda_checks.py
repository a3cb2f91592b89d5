# SPDX-License-Identifier: BSD-3-Clause
"""The count of ATen's checks for CUDA, on sources of a few lines."""

import re
import sys

import pytest
from repo.sources import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import cuda_checks

CUDA = """
// TORCH_CHECK(false, "a comment is no check");
TORCH_CHECK(x.dim() == 2, "expected a ", "matrix of ", name(x, 2), " rows");
TORCH_CHECK(a == b);
TORCH_CHECK(x.is_cuda(), "x: expected a CUDA tensor");
TORCH_CHECK(false, "ATen not compiled with cuDNN support");
TORCH_CHECK(n < 7, "only this kernel has "
            "seven of them");
TORCH_CHECK(n < 8, "all elements of input " "should be between 0 and 1");
"""
SHARED = """
TORCH_CHECK(y.dim() == 2, "expected a ", "matrix of ", y);
TORCH_CHECK(a  ==  b);
if (self.is_cuda()) { at::other(); }
"""


@pytest.fixture
def aten(tmp_path):
    (tmp_path / "native" / "cuda").mkdir(parents=True)
    (tmp_path / "native" / "cuda" / "Some.cu").write_text(CUDA)
    (tmp_path / "native" / "Some.cpp").write_text(SHARED)
    return tmp_path


def test_each_check_is_sorted_by_its_words(aten):
    judge = cuda_checks.Judge(aten)
    found = cuda_checks.checks_by_library(aten)["kernels of ATen"]
    assert [(check.line, judge.verdict(check)) for check in found] == [
        (3, "shared"),
        (4, "shared"),
        (5, "placement"),
        (7, "not modelled"),
        (9, "row"),
    ]
    assert found[3].words == ("only this kernel has seven of them",)


def test_a_comparison_in_a_shared_source_counts(aten):
    (check,) = cuda_checks.checks_by_library(aten)["comparisons with CUDA in shared sources"]
    assert (check.file, check.line) == ("native/Some.cpp", 4)


def test_the_sums_on_the_page_are_those_of_its_rows():
    text = cuda_checks.PAGE.read_text().split(cuda_checks.BEGIN)[1].split(cuda_checks.END)[0]
    rows = [
        [int(cell.strip(" *")) for cell in row.split("|")[2:-1]]
        for row in re.findall(r"^\|.*\d.*\|$", text, re.M)
    ]
    *libraries, total = rows
    assert total == [sum(column) for column in zip(*libraries, strict=True)]
    assert all(row[0] == sum(row[1:]) for row in rows)
