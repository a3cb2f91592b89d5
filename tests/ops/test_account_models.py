# SPDX-License-Identifier: BSD-3-Clause
"""Rule C1 over whole models, beside torch's counter (docs/reference/account.md)."""

import pytest
from pages import account as account_page


@pytest.fixture(scope="module")
def rows():
    return account_page.measured()


def test_the_operators_that_torch_counts_are_charged_what_it_says(rows):
    for row in rows:
        assert row.counted == pytest.approx(row.counter, rel=0.01), (row.model, row.what)


def test_fused_layers_are_closed_forms(rows):
    found = {(row.model.split(",")[0], row.what): row for row in rows}
    steps = 8 * 32  # sequences, time
    weights = 4 * 128 * (64 + 128) + 4 * 128 * (128 + 128)
    assert found["LSTM", "forward"].layers == pytest.approx(2 * steps * weights, rel=0.01)


def test_what_torch_does_not_count_is_little(rows):
    for row in rows:
        assert row.other < 0.15 * row.total, (row.model, row.what, row.others)


def test_the_page_is_what_the_command_writes(rows):
    page = account_page.PAGE.read_text()
    assert page == account_page.rewritten(page, rows), "python tools/pages/account.py"
