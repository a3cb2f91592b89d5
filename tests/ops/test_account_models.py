# SPDX-License-Identifier: BSD-3-Clause
"""Rule C1 over whole models, beside torch's counter; docs/account.md explains what differs."""

import pytest
from ops import account_page


@pytest.fixture(scope="module")
def rows():
    return account_page.measured()


def test_the_operators_that_torch_counts_are_charged_what_it_says(rows):
    for row in rows:
        assert row.counted == pytest.approx(row.counter, rel=0.01), (row.model, row.what)


def test_attention_and_fused_layers_are_closed_forms(rows):
    found = {(row.model.split(",")[0], row.what): row for row in rows}
    scores = 4 * 4 * 64 * 64  # batch, heads, time, time
    for model in ("BERT", "GPT"):
        assert found[model, "forward"].attention == 2 * scores * 4 * 32
        assert found[model, "training step"].attention == 2 * scores * (4 + 10) * 32
    steps = 8 * 32  # sequences, time
    weights = 4 * 128 * (64 + 128) + 4 * 128 * (128 + 128)
    assert found["LSTM", "forward"].layers == pytest.approx(2 * steps * weights, rel=0.01)


def test_what_torch_does_not_count_is_little(rows):
    for row in rows:
        assert row.other < 0.15 * row.total, (row.model, row.what, row.others)


def test_the_page_is_what_the_command_writes(rows):
    page = account_page.PAGE.read_text()
    assert page == account_page.rewritten(page, rows), "python tests/ops/account_page.py"
