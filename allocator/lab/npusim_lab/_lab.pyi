# SPDX-License-Identifier: BSD-3-Clause
"""Types of the compiled module; behaviour is documented in allocator/*.h, member by member."""

from typing import Any

class OutOfMemoryError(MemoryError):
    """The simulated device, or a limit, has no room. The text has the numbers."""

class SimulatedDevice:
    """A device that is only arithmetic: capacity in bytes, a clock in ns, streams with work."""

    def __init__(self, capacity_bytes: int, scatter_seed: int = 0) -> None: ...
    def run(self, stream: int, duration_ns: int) -> None:
        """Queue work on a stream."""

    def advance(self, duration_ns: int) -> None:
        """Let virtual time pass."""

    def fail_call(self, k: int) -> None:
        """Make the k-th fallible call from now on fail; 0 cancels."""

    @property
    def now_ns(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...

class Block:
    """What malloc returned. The numbers stay readable after free."""

    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def requested_bytes(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def placement(self) -> tuple[int, int]:
        """Which segment, counted in order of acquisition, and the offset in it, in bytes."""

class Allocator:
    """The caching allocator of one device.

    Args:
        device: where segments come from.
        preset: "npusim", "cuda-2.13" or "cuda-2.11".
        settings: changes to the preset, in the syntax of PYTORCH_ALLOC_CONF.
    """

    def __init__(
        self, device: SimulatedDevice, preset: str = "npusim", settings: str = ""
    ) -> None: ...
    def malloc(self, bytes: int, stream: int = 0) -> Block | None:
        """Return a block, or None for 0 bytes.

        Raises:
            OutOfMemoryError: after everything that can be given back was.
        """

    def free(self, block: Block) -> None: ...
    def free_address(self, address: int) -> None: ...
    def record_stream(self, block: Block, stream: int) -> None: ...
    def process_events(self) -> None: ...
    def empty_cache(self) -> None: ...
    def set_memory_fraction(self, fraction: float) -> None: ...
    def stats(self) -> dict[str, int]:
        """Return the keys of torch.cuda.memory_stats(), e.g. "allocated_bytes.all.peak"."""

    def reset_peak_stats(self) -> None: ...
    def reset_accumulated_stats(self) -> None: ...
    def record_history(self, enabled: str | None = "all", max_entries: int = ...) -> None: ...
    def snapshot(self) -> dict[str, Any]:
        """Return the dictionary of torch.cuda.memory._snapshot()."""

    def violations(self) -> list[str]:
        """Say what is wrong with the state, in words; empty when nothing is."""
