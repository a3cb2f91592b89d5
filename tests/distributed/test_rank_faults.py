# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that die, hang or are slow, links that degrade; rank_faults.py does more of the same."""

import os
import textwrap

import pytest
import rank_faults
import torch
import torch.distributed as dist
from processes import python
from rank_processes import run_ranks as run_processes
from repo.sources import ROOT

from torch_npusim.sim import clock, fabric, faults
from torch_npusim.testing.ranks import RanksFailed, run_ranks


@pytest.mark.parametrize("kind", rank_faults.KINDS)
def test_a_fault_of_a_rank_ends_in_time_and_what_is_left_starts_again(kind):  # (rule F9)
    rank_faults.outcome(kind, seed=1)


def table_of(rank, size, store):
    faults.arm("hang", nth=2, rank=1, name="all_reduce")
    rank_faults.start(rank, size, store)
    x = torch.ones(4, device="npusim")
    dist.all_reduce(x)
    dist.all_reduce(x)
    x.tolist()


def test_everyone_is_told_who_hangs_and_where():
    for kind, text in run_processes(table_of, 2, errors=True):
        assert kind == "DistBackendError"
        assert "all_reduce 1 of group '0'" in text
        assert "rank 1: hangs (injected fault) in all_reduce 1 of group '0' at " in text


def hangs():
    x = torch.ones(4, device="npusim")
    dist.all_reduce(x)
    x.tolist()


def test_the_watchdog_says_what_nccls_says():
    with (
        faults.inject("hang", nth=1, device=1, name="simccl"),
        pytest.raises(RanksFailed) as raised,
    ):
        run_ranks(hangs, 2, timeout=1)
    assert "Watchdog caught collective operation timeout" in str(raised.value.failures[1])
    assert "Timeout(ms)=1000) ran for 1" in str(raised.value.failures[1])


def timed(rank, size, store, kind):
    if kind:
        faults.arm(kind, every=1, factor=10.0, rank=1)
    rank_faults.start(rank, size, store)
    fabric.use("dgx-h100")
    x = torch.ones(1 << 24, device="npusim")
    y = torch.ones(1 << 22, device="npusim")
    torch.npusim.synchronize()
    times = []
    for work in (lambda: y * 2, lambda: dist.all_reduce(x)):
        dist.barrier()
        before = clock.host_time_ns()
        work()
        torch.npusim.synchronize()
        times.append(clock.host_time_ns() - before)
    return times


def test_a_slow_rank_has_slow_kernels_and_a_bad_link_slows_all_who_use_it():  # (rule F8)
    plain, slow, link = (run_processes(timed, 2, kind) for kind in ("", "slow", "link"))
    assert slow[0][0] == plain[0][0] < slow[1][0]
    assert link[1][0] == plain[1][0]
    # Both ranks are slower, though only one has the bad link; latency is what it was.
    assert 4 < link[0][1] / plain[0][1] < 10
    assert 4 < link[1][1] / plain[1][1] < 10


def killed(rank, size, store):
    rank_faults.start(rank, size, store)
    dist.barrier()  # rank 1 does not leave while rank 0 still connects
    faults.arm("kill", nth=2, rank=0)
    x = torch.ones(4, device="npusim")
    x + 1
    return x.tolist()


def test_only_the_rank_that_is_named_is_killed():
    assert run_processes(killed, 2, errors=True) == [None, [1.0] * 4]


def test_the_environment_kills_a_rank_of_a_launcher(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
            import torch, torch_npusim, torch.distributed as dist
            dist.init_process_group()
            torch.npusim.set_device(dist.get_rank())
            x = torch.ones(2, device="npusim")
            for _ in range(3):
                dist.all_reduce(x)
            print(x.tolist())
        """)
    )
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = python(
        *command,
        "--rdzv-endpoint=localhost:0",
        "--rdzv-backend=c10d",
        script,
        variables={
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "NPUSIM_FAULT": "kill@2:rank=1:name=simccl",
        },
        timeout=120,
    )
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr


def in_a_thread():
    faults.arm("kill", nth=1, rank=dist.get_rank())
    torch.ones(1, device="npusim")


def test_a_thread_cannot_be_killed():
    try:
        with pytest.raises(RanksFailed, match="threads of one process; start processes"):
            run_ranks(in_a_thread, 2)
    finally:
        faults.clear()


def leaves_early():
    if dist.get_rank() == 1:
        raise KeyError("lost")
    x = torch.ones(3, device="npusim")
    dist.all_reduce(x)
    x.tolist()


def test_who_has_left_is_not_waited_for():
    with pytest.raises(RanksFailed) as raised:
        run_ranks(leaves_early, 2)
    assert "rank 1 has left the group before it took part" in str(raised.value.failures[0])


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("slow", {"every": 1}, "needs a factor, more than 1"),
        ("slow", {"every": 1, "factor": 0.5}, "needs a factor, more than 1"),
        ("link", {"every": 1, "factor": float("nan")}, "needs a factor, more than 1"),
        ("hang", {"nth": 1, "factor": 2.0}, "only slow and link have a factor"),
        ("kill", {"nth": 1, "rank": -2}, "rank counts from 0"),
    ],
)
def test_bad_rules_are_refused(kind, arguments, text):
    with pytest.raises(ValueError, match=text):
        faults.arm(kind, **arguments)


def starts_again(rank, size, store):
    torch.npusim.set_device(rank)
    found = []
    for attempt in range(2):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        keys = dist.FileStore(store)
        keys.set(f"begins {attempt} {rank}", "")
        if rank == 0:  # rank 1 finds what the first attempt has left
            keys.get(f"begins {attempt} 1")
        dist.init_process_group("simccl", store=keys, rank=rank, world_size=size)
        x = torch.ones(4, device="npusim")
        dist.all_reduce(x)
        found += x.tolist()
        dist.destroy_process_group()
    return found


def test_a_launcher_that_starts_ranks_again_may_keep_its_store():
    assert run_processes(starts_again, 2) == [[2.0] * 8] * 2
