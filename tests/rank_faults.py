# SPDX-License-Identifier: BSD-3-Clause
"""Faults of ranks, many times over: nothing hangs past its timeout, and what survives starts again.

    python tests/rank_faults.py             each fault with 20 seeds
    python tests/rank_faults.py --seeds 3

Two processes train; the seed says which of them is hit, and when. Each trial runs twice and has to
end in the same way. test_rank_faults.py runs a few of them.
"""

import argparse
import random
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.distributed as dist
from rank_processes import run_ranks

from torch_npusim.sim import clock, faults

LIMIT = 3  # seconds, of a collective
STEPS = 6
KINDS = ("kill", "hang", "launch", "slow", "link")
FACTOR = {"slow": 7, "link": 7}


def rule(kind, seed):
    """Returns what a trial arms: at a collective what ends it, at half of all for the rest."""
    draw = random.Random(f"{kind} {seed}")
    rank = draw.randrange(2)
    if kind in FACTOR:
        return {"probability": 0.5, "factor": FACTOR[kind], "seed": seed, "rank": rank}
    return {"nth": draw.randrange(1, 2 * STEPS + 1), "name": "simccl", "rank": rank}


def start(rank, size, store):
    torch.npusim.set_device(rank)
    dist.init_process_group(
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LIMIT),
    )


def train(rank, size, store, kind=None, seed=0):
    """Returns what happened: steps done, how it failed, what a restart gives, the virtual time."""
    if kind is not None:
        faults.arm(kind, **rule(kind, seed))
    start(rank, size, store)
    weights = torch.ones(64, 64, device="npusim")
    x = torch.full((64, 64), 0.01, device="npusim")
    done, failed, waited = 0, "", 0.0
    began = time.monotonic()
    try:
        for _ in range(STEPS):
            began = time.monotonic()
            gradient = x @ weights
            work = dist.all_reduce(gradient, async_op=True)
            norm = x.square().sum()
            work.wait()
            weights -= 0.1 * gradient
            dist.all_reduce(norm)
            norm.item()
            done += 1
    except dist.DistBackendError as error:
        failed, waited = str(error), time.monotonic() - began
    now = clock.host_time_ns()
    dist.destroy_process_group()
    return done, failed, waited, restart(rank, size, store) if failed else None, now


def restart(rank, size, store):
    """The other ranks begin again, as an elastic launcher would: each leaves word that it is."""
    Path(f"{store}.{rank}").touch()
    others = [other for other in range(size) if other != rank]
    deadline = time.monotonic() + LIMIT + 2
    while time.monotonic() < deadline and not all(Path(f"{store}.{o}").exists() for o in others):
        time.sleep(0.05)
    left = [one for one in range(size) if Path(f"{store}.{one}").exists()]
    start(left.index(rank), len(left), f"{store}.again")
    x = torch.ones(3, device="npusim")
    dist.all_reduce(x)
    result = x.tolist()
    dist.destroy_process_group()
    return result


def outcome(kind, seed):
    """Runs one trial and returns what it has to be each time; raises AssertionError otherwise."""
    results = run_ranks(train, 2, kind, seed, timeout=4 * LIMIT + 20, errors=True)
    told = []
    for rank, result in enumerate(results):
        if result is None:
            assert kind == "kill", f"rank {rank} died"
            told.append("killed")
            continue
        assert len(result) == 5, result  # an error that nobody expects
        done, failed, waited, again, now = result
        assert waited < LIMIT + 2, f"rank {rank} waited {waited:.1f} s"
        told.append((done, bool(failed), again, now if kind in FACTOR else 0))
    if kind in FACTOR:
        assert told[0] == told[1], told  # virtual times too
        assert told[0][0] == STEPS, results
    else:
        left = [one for one in told if one != "killed"]
        assert len(left) == (1 if kind == "kill" else 2), told
        for done, failed, again, _ in left:
            assert failed, told
            assert done < STEPS, told
            assert again == [float(len(left))] * 3, told
    return told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--kind", choices=KINDS, action="append")
    asked = parser.parse_args()
    plain = run_ranks(train, 2)[0][4]
    for kind in asked.kind or KINDS:
        slowest = 0.0
        for seed in range(asked.seeds):
            began = time.monotonic()
            first = outcome(kind, seed)
            slowest = max(slowest, time.monotonic() - began)
            assert outcome(kind, seed) == first, (kind, seed)
            if kind in FACTOR:
                assert first[0][3] > plain, (kind, seed)
        print(f"{kind}: {asked.seeds} seeds, twice; the slowest took {slowest:.1f} s", flush=True)


if __name__ == "__main__":
    main()
