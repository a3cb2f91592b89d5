# SPDX-License-Identifier: BSD-3-Clause
"""The fixture that runs a test's function on several ranks."""

RANKS = """
    import torch
    import torch.distributed as dist

    def total():
        x = torch.full((1,), float(dist.get_rank()), device="npusim")
        dist.all_reduce(x)
        return x.item()

    def test_total(npusim_ranks):
        assert npusim_ranks(total, 4) == [6.0] * 4
"""


def test_ranks_are_threads_and_leave_nothing(run_pytest):
    run = run_pytest({"test_it.py": RANKS}, "--npusim", "--npusim-devices=4")
    assert run.code == 0, run.output
    assert run.passed() == {"test_total"}


def test_without_the_option_it_is_skipped(run_pytest):
    run = run_pytest({"test_it.py": RANKS})
    assert "1 skipped" in run.output
