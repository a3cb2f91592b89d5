# SPDX-License-Identifier: BSD-3-Clause
"""Each row of the rule book has a question, and the question meets the row."""

import warnings

import pytest
import torch

from npusim_truth import comparison
from npusim_truth.recorder.rules import rule_call, rule_rows
from torch_npusim.sim import faults, rules

ASKED = {
    key
    for rule in rules.rows()
    if not comparison.is_heard(rule)
    for key in comparison.keys_of(rule)
}
#: Questions about what no row is about: a sum is in order where determinism is requested.
FREE = {
    f"rules|aten::{name}|any"
    for name in ("scatter.reduce", "scatter.reduce_out", "scatter_.reduce")
}
#: Questions about rows of other versions of torch.
OF_OTHERS = {
    key
    for rule in rules.rows_of_all_versions()
    if not rules.is_of_this_torch(rule)
    for key in comparison.keys_of(rule)
}
CALLS = {}  # key: the call, for npusim
for operator, what, *words in rule_rows():
    key = f"asserts|aten::{operator}" if what == "asserts" else f"rules|aten::{operator}|{what}"
    call = rule_call(operator, what, *words).replace("'cuda'", "'npusim'")
    if key not in OF_OTHERS:
        CALLS[key] = call

#: Rows that npusim follows with the rules and without, and why the answer is the same.
SAME = {
    "_empty_affine_quantized": "raises about the dtype before",
    "_empty_per_channel_affine_quantized": "raises about the dtype before",
    "_scaled_dot_product_flash_attention_for_cpu": "a kernel of npusim's own",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "a kernel of npusim's own",
    "_scaled_mm": "about older chips",
    "_scaled_mm.out": "about older chips",
    "to_mkldnn": "refused without the rules, in other words",
    "embedding_dense_backward": "the CPU's kernel looks at no index",
    "fft_rfft": "refuses complex numbers on the CPU too",
    "fft_rfft2": "the same",
    "fft_ihfft2": "the same",
    "fft_ihfftn": "the same",
    "fft_rfftn": "the same",
    "fft_ihfft": "the same",
    "scatter.reduce": "a sum is in order where determinism is requested",
    "scatter.reduce_out": "the same",
    "scatter_.reduce": "the same",
}


def outcomes():
    """The result or exception of each call, and the number of calls in a wider dtype."""
    found = {}
    for key, text in CALLS.items():
        widened = sum(rules.widened_calls().values())
        said = []
        for is_strict in (False, True):
            torch.use_deterministic_algorithms(is_strict)
            try:
                said.append(type(eval(text)).__name__)
            except Exception as error:
                said.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        found[key] = (said, sum(rules.widened_calls().values()) - widened)
    return found


@pytest.fixture(scope="module")
def both():
    """The outcomes without the rules and with them."""
    found = []
    for book in ("off", "cuda"):
        torch.npusim.set_rules(book)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(outcomes())
    torch.use_deterministic_algorithms(False)
    faults.clear()
    torch.npusim.set_rules("auto")
    return found


def test_each_row_is_asked_or_has_its_reason():
    never = {
        key for rule in rules.rows() if rule.operator in comparison.NOT_ASKED
        for key in comparison.keys_of(rule)
        if not comparison.is_heard(rule)
    }  # fmt: skip
    assert ASKED - set(CALLS) == never
    assert set(CALLS) - FREE <= ASKED, "a question about no row"


def test_the_questions_meet_the_rows(both):
    off, on = both
    same = [key for key in CALLS if off[key] == on[key]]
    assert {key.split("|")[1].removeprefix("aten::") for key in same} <= set(SAME)


def test_a_call_without_the_rules_is_no_mistake(both):
    wrong = [
        (CALLS[key], said) for key, (said, _) in both[0].items()
        if said[0].startswith(("TypeError", "AttributeError", "NameError", "SyntaxError"))
        and "ComplexHalf" not in said[0]  # the answer of fft_rfft, fft_ihfft in torch 2.15
    ]  # fmt: skip
    assert wrong == []
