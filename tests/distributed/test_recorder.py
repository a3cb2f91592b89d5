# SPDX-License-Identifier: BSD-3-Clause
"""The flight recorder: torch's own tool reads the files of ranks and finds the wrong one."""

import json
import os
import pickle
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

from torch_npusim import _C
from torch_npusim.distributed import _recorder
from torch_npusim.testing import run_ranks as run_threads


def work():
    rank = dist.get_rank()
    x = torch.ones(3, 4, device="npusim")
    dist.all_reduce(x)
    dist.batch_isend_irecv(
        [dist.P2POp(dist.isend if rank == 0 else dist.irecv, x, 1 - rank)]
    ).pop().wait()
    dist.broadcast(x, 0)
    torch.npusim.synchronize()
    return pickle.loads(_recorder.dump()), json.loads(_recorder.dump_json())


def test_collectives_and_transfers_are_recorded():
    _C.forget_flight_records()
    for rank, (trace, without_stacks) in enumerate(run_threads(work, 2, backend="npusim:simccl")):
        assert trace["pg_config"]["0"]["ranks"] == "[0, 1]"
        *_, status = trace["pg_status"].values()  # after those of groups that have ended
        assert status["last_enqueued_collective"] == status["last_completed_collective"] == 2
        entries = trace["entries"]
        transfer = ["nccl:send 0->1", "nccl:recv 1<-0"][rank]
        titles = ["nccl:all_reduce", transfer, "nccl:coalesced", "nccl:broadcast"]
        assert [entry["profiling_name"] for entry in entries] == titles
        assert [entry["collective_seq_id"] for entry in entries] == [1, 1, 1, 2]
        assert [entry["p2p_seq_id"] for entry in entries] == [0, 1, 1, 1]
        # As with NCCL, transfers of a group of calls end with the group.
        assert [entry["state"] == "completed" for entry in entries] == [True, False, True, True]
        assert entries[0]["input_sizes"] == entries[0]["output_sizes"] == [[3, 4]]
        assert "test_recorder.py" in str(entries[0]["frames"])
        kept = [{**entry, "process_group": list(entry["process_group"])} for entry in entries]
        assert without_stacks["entries"] == [
            {key: value for key, value in entry.items() if key != "frames"} for entry in kept
        ]


def hang(rank, size, store, folder, late):
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / "rank_")
    torch.npusim.set_device(rank)
    dist.init_process_group(
        "npusim:simccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    x = torch.ones(4, device="npusim")
    dist.all_reduce(x)
    torch.npusim.synchronize()
    if rank != late:
        dist.group.WORLD._get_backend(x.device)._set_default_timeout(timedelta(seconds=0.5))
        dist.broadcast(x, 0)
        with pytest.raises(dist.DistBackendError, match="timeout"):
            torch.npusim.synchronize()
    until = time.monotonic() + 30
    while len(list(folder.glob("rank_*"))) < size:
        assert time.monotonic() < until
        torch.npusim.current_device()


def test_torchs_tool_names_the_rank_that_did_not_come(tmp_path, monkeypatch, capfd):
    from torch.distributed.flight_recorder import fr_trace

    files = tmp_path / "files"
    files.mkdir()
    run_ranks(hang, 2, files, 1)
    monkeypatch.setattr("sys.argv", ["torchfrtrace", str(files), "--prefix", "rank_"])
    fr_trace.main()
    said = capfd.readouterr()
    assert "broadcast" in said.out + said.err
    assert "missing ranks: {1}" in said.out + said.err
