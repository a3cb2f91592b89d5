# SPDX-License-Identifier: BSD-3-Clause
"""One of two ranks: does each collective, and prints as JSON what was wrong with it.

python ranks.py DEVICE IMPORT FOLDER RANK
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

SIZE = 2
DTYPES = "float32 float64 float16 bfloat16 int64 int32 int8 uint8".split()
_LEFT_OUT = re.compile("not support|not implement|unsupported|doesn't support", re.I)


def main() -> None:
    """Joins the group, then asks."""
    name, import_name, folder, text = sys.argv[1:]
    if import_name:
        importlib.import_module(import_name)
    rank = int(text)
    device = _device(torch.device(name), rank)
    store = FileStore(f"{folder}/store", SIZE)
    dist.init_process_group(
        None if device.type != "cpu" else "gloo",
        store=store,
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=20),
    )
    found = {
        check: _wrong(ask) for check, ask in {**values(rank, device), **rest(rank, device)}.items()
    }
    dist.destroy_process_group()
    print("\n" + json.dumps(found))


def _device(device: torch.device, rank: int) -> torch.device:
    """The device of this rank: one each, if there are as many."""
    if device.type == "cpu":
        return device
    module = getattr(torch, device.type)
    index = rank % module.device_count() if hasattr(module, "device_count") else 0
    if hasattr(module, "set_device"):
        module.set_device(index)
    return torch.device(device.type, index)


def _wrong(ask: Callable[[], object]) -> str:
    try:
        ask()
    except AssertionError as error:
        return str(error) or "wrong"
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        return f"left out: {text}" if _LEFT_OUT.search(text) else text
    return ""


def _same(got: torch.Tensor, expected: Sequence[float]) -> None:
    found = got.cpu().to(torch.float64).flatten().tolist()
    assert found == list(expected), f"{found}, expected {expected}"


def values(rank: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Each collective, of small integers: results are exact."""

    def mine(*numbers: float) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float32).to(device)

    def reduces(op: dist.ReduceOp.RedOpType, expected: list[float]) -> Callable[[], object]:
        def ask() -> None:
            x = mine(rank + 1, 3 - rank)
            dist.all_reduce(x, op)
            _same(x, expected)

        return ask

    def broadcast() -> None:
        x = mine(rank + 5, rank)
        dist.broadcast(x, src=1)
        _same(x, [6, 1])

    def reduce() -> None:
        x = mine(rank + 1)
        dist.reduce(x, dst=1)
        if rank == 1:
            _same(x, [3])

    def all_gather() -> None:
        parts = [mine(0, 0) for _ in range(SIZE)]
        dist.all_gather(parts, mine(rank, 10 * rank))
        _same(torch.stack(parts), [0, 0, 1, 10])

    def all_gather_into_tensor() -> None:
        whole = torch.zeros(4).to(device)
        dist.all_gather_into_tensor(whole, mine(rank, 10 * rank))
        _same(whole, [0, 0, 1, 10])

    def reduce_scatter_tensor() -> None:
        part = mine(0, 0)
        dist.reduce_scatter_tensor(part, mine(1, 2, 3, 4) * (rank + 1))
        _same(part, [[3, 6], [9, 12]][rank])

    def gather() -> None:
        parts = [mine(0) for _ in range(SIZE)] if rank == 0 else None
        dist.gather(mine(rank + 4), parts, dst=0)
        if parts is not None:
            _same(torch.cat(parts), [4, 5])

    def scatter() -> None:
        part = mine(0)
        dist.scatter(part, [mine(7), mine(8)] if rank == 0 else None, src=0)
        _same(part, [7 + rank])

    def all_to_all_single() -> None:
        got = mine(0, 0)
        dist.all_to_all_single(got, mine(10 * rank, 10 * rank + 1))
        _same(got, [rank, 10 + rank])

    def message() -> None:
        x = mine(rank + 2)
        if rank == 0:
            dist.send(x, dst=1)
        else:
            dist.recv(x, src=0)
            _same(x, [2])

    def strided() -> None:
        x = (torch.arange(6.0).reshape(2, 3) * (rank + 1)).to(device).t().contiguous().t()
        whole = x.contiguous()
        dist.all_reduce(whole)
        _same(whole, [0, 3, 6, 9, 12, 15])

    asked = [broadcast, reduce, all_gather, all_gather_into_tensor, reduce_scatter_tensor]
    asked += [gather, scatter, all_to_all_single, message, strided]
    found: dict[str, Callable[[], object]] = {f"values/{ask.__name__}": ask for ask in asked}
    found["values/barrier"] = dist.barrier
    operations = {"SUM": [3, 5], "PRODUCT": [2, 6], "MIN": [1, 2], "MAX": [2, 3]}
    for name, expected in operations.items():
        found[f"values/all_reduce {name}"] = reduces(
            getattr(dist.ReduceOp, name), [float(number) for number in expected]
        )
    return found


def rest(rank: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Dtypes, waiting, and mistakes; every rank makes the same ones."""

    def of_dtype(name: str) -> Callable[[], object]:
        def ask() -> None:
            x = torch.tensor([1, 2, 3]).to(getattr(torch, name)).to(device) * (rank + 1)
            parts = [torch.zeros_like(x) for _ in range(SIZE)]
            dist.all_gather(parts, x)
            _same(torch.cat(parts), [1, 2, 3, 2, 4, 6])
            dist.all_reduce(x)
            _same(x, [3, 6, 9])

        return ask

    def waits() -> None:
        x = torch.full((1 << 16,), 1.0).to(device)
        x.mul_(rank + 1)  # queued before it
        work = dist.all_reduce(x, async_op=True)
        assert work is not None, "no work came back"
        work.wait()
        _same((x + 1)[:2], [4, 4])

    def overlaps() -> None:
        x, y = torch.ones(1 << 16).to(device), torch.ones(64, 64).to(device)
        work = dist.all_reduce(x, async_op=True)
        product = y @ y  # while it runs
        assert work is not None, "no work came back"
        work.wait()
        _same(product[0, :1], [64])
        _same(x[:1], [2])

    def raises(what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            return
        raise AssertionError(f"{what} raised nothing")

    def wrong_size() -> None:
        raises(
            "a result of a wrong size",
            lambda: dist.all_gather_into_tensor(
                torch.zeros(3).to(device), torch.zeros(2).to(device)
            ),
        )

    def no_such_rank() -> None:
        raises("a rank that is not there", lambda: dist.broadcast(torch.ones(1).to(device), 7))

    def wrong_device() -> None:
        raises(
            "a tensor of another device",
            lambda: dist.all_reduce(
                torch.ones(1, device="meta" if device.type == "cpu" else "cpu")
            ),
        )

    found: dict[str, Callable[[], object]] = {f"dtypes/{name}": of_dtype(name) for name in DTYPES}
    found |= {"async/waits": waits, "async/overlaps": overlaps}
    found |= {"errors/wrong size": wrong_size, "errors/no such rank": no_such_rank}
    found["errors/wrong device"] = wrong_device
    return found


if __name__ == "__main__":
    main()
