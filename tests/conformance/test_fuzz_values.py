# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that the fuzzer writes down."""

import pytest
import torch

from npusim_conformance.fuzz.calls import Word
from npusim_conformance.fuzz.seeds import _Unwritable, value_of


def test_plain_values_are_written_as_they_are():
    for value in (None, True, 3, 0.5, 1j, "mean"):
        assert value_of(value) == value
    assert value_of((1, [None, 2.0])) == [1, [None, 2.0]]
    assert value_of(torch.Generator()) is None


def test_words_of_torch_are_written_as_words():
    assert value_of(torch.device("cpu")) == Word("device")
    assert value_of(torch.float16) == Word("torch.float16")
    assert value_of(torch.strided) == Word("torch.strided")


def test_other_objects_are_refused():
    with pytest.raises(_Unwritable, match="object"):
        value_of([1, object()])
