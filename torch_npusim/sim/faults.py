# SPDX-License-Identifier: BSD-3-Clause
"""Fault injection: makes the device fail on purpose, by count or by seeded probability.

    >>> x = torch.ones(3, device="npusim")
    >>> with inject("launch", nth=1):  # the next command does not run
    ...     y = x + 1
    ...     torch.npusim.synchronize()  # errors surface where the host waits
    Traceback (most recent call last):
        ...
    torch.AcceleratorError: npusim error: launch failure: ...

Kinds: "oom" (no memory for a new segment), "launch" (a command does not run), "hang" (a command
never ends; waiting for it is given up), "device" (the device is lost until the faults are cleared),
"slow" (a command takes `factor` times as long), "link" (what this rank has to do with others has
1/`factor` of the bandwidth, for all who take part), "kill" (the process ends, as by SIGKILL).

Collectives are commands, "simccl::all_reduce" and so on. A rank that is hit at one by "launch",
"hang" or "device" does not take part in it, and the group ends as docs/use/distributed.md says.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_npusim import _C
from torch_npusim._device_index import DeviceLike, _get_device_index

__all__ = ["KINDS", "arm", "clear", "counts", "inject"]

KINDS = ("oom", "launch", "hang", "device", "slow", "link", "kill")


def arm(
    kind: str,
    *,
    nth: int | None = None,
    every: int | None = None,
    probability: float | None = None,
    seed: int = 0,
    device: DeviceLike = None,
    rank: int | None = None,
    factor: float = 1.0,
    name: str = "",
) -> None:
    """Arms one rule until clear(). Rules add up.

    Args:
        kind: One of KINDS.
        nth: Hit the n-th matching call from now on, counted from 1; then disarm.
        every: Hit each `every`-th matching call; instead of `nth`.
        probability: Hit each matching call with this probability, 0 to 1; instead of `nth`.
        seed: Of the probability; the same seed and calls give the same faults.
        device: Only calls on this device; default: on any.
        rank: Only on this rank, from when torch.distributed is initialized; default: on all.
        factor: Of "slow" and "link": more than 1.
        name: Only commands whose name contains this, such as "aten::mm"; default: all.

    Raises:
        ValueError: For an unknown kind, unless exactly one of `nth`, `every` and `probability` is
            given, or for a `factor` where there is none or too little.
    """
    if kind not in KINDS:
        raise ValueError(f"fault kind: got {kind!r}, expected one of {', '.join(KINDS)}")
    if [nth, every, probability].count(None) != 2:
        raise ValueError(
            f"a fault is injected at the `nth` call, at each `every`-th or with a `probability`: "
            f"give exactly one (got nth={nth}, every={every}, probability={probability})"
        )
    for what, count in (("nth", nth), ("every", every)):
        if count is not None and count < 1:
            raise ValueError(f"{what} counts calls from 1, got {count}")
    if probability is not None and not 0 < probability <= 1:
        raise ValueError(f"probability must be above 0 and at most 1, got {probability}")
    if kind in ("slow", "link"):
        if not 1 < factor <= 1e6:
            raise ValueError(f"{kind} needs a factor, more than 1 and up to 1e6; got {factor}")
    elif factor != 1:
        raise ValueError(f"only slow and link have a factor; got {factor} for {kind}")
    if rank is not None and rank < 0:
        raise ValueError(f"rank counts from 0, got {rank}")
    index = -1 if device is None else _get_device_index(device, optional=True)
    _C.inject_fault(
        kind,
        nth or 0,
        every or 0,
        probability or 0.0,
        seed,
        index,
        -1 if rank is None else rank,
        factor,
        name,
    )


@contextmanager
def inject(
    kind: str,
    *,
    nth: int | None = None,
    every: int | None = None,
    probability: float | None = None,
    seed: int = 0,
    device: DeviceLike = None,
    rank: int | None = None,
    factor: float = 1.0,
    name: str = "",
) -> Iterator[None]:
    """Arms one rule for a `with` block and clears all faults at its end; arguments of arm()."""
    arm(
        kind,
        nth=nth,
        every=every,
        probability=probability,
        seed=seed,
        device=device,
        rank=rank,
        factor=factor,
        name=name,
    )
    try:
        yield
    finally:
        clear()


def clear() -> None:
    """Disarms all rules, forgets errors not yet reported, revives lost devices, zeroes counts."""
    _C.clear_faults()


def counts() -> dict[str, int]:
    """Returns the number of injected faults by kind, and of those "reported" as exceptions."""
    return _C.fault_counts()
