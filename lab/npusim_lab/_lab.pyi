# SPDX-License-Identifier: BSD-3-Clause
"""Types of the compiled module; behaviour is documented in allocator/*.h, member by member."""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypedDict, type_check_only

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    """The results of malloc. The numbers stay readable after free."""

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
        preset: "npusim", "cuda-2.13", "cuda-2.12", "cuda-2.11", "cuda-2.9", "cuda-2.4" or
            "ascend".
        settings: changes to the preset, in the syntax of PYTORCH_ALLOC_CONF.
    """

    def __init__(
        self, device: SimulatedDevice, preset: str = "npusim", settings: str = ""
    ) -> None: ...
    def malloc(self, bytes: int, stream: int = 0, pool: int = 0) -> Block | None:
        """Return a block, or None for 0 bytes. `pool` is 0 (default) or from create_pool().

        Raises:
            OutOfMemoryError: after everything that can be given back was.
        """

    def free(self, block: Block) -> None: ...
    def free_held(self, block: Block) -> int:
        """Free, but keep the memory from reuse until complete_free() gets the number returned."""

    def complete_free(self, hold: int) -> bool:
        """Return whether the block was still pending; the allocator may have waited for it."""

    def free_address(self, address: int) -> None: ...
    def record_stream(self, block: Block, stream: int) -> None: ...
    def process_events(self) -> None: ...
    def empty_cache(self, pool: int = 0) -> None:
        """Release free memory of the default pool and of pools nobody uses, or of that one pool."""

    def create_pool(self, use_on_oom: bool = False, no_split: bool = False) -> int:
        """Return the number of a new private pool with one user."""

    def retain_pool(self, pool: int) -> None: ...
    def release_pool(self, pool: int) -> None:
        """Take one user away; a pool without users is emptied like the default pool and ends."""
    def enter_pool_scope(self) -> None:
        """Begin to allocate to private pools: up to "cuda-2.12" no pending free ends meanwhile."""

    def leave_pool_scope(self) -> None: ...
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

# --- Snapshots of torch.

@type_check_only
class SnapshotEntries(TypedDict):
    """One row per entry of the history."""

    op: NDArray[np.uint8]  # of Op; MARK for an annotation
    address: NDArray[np.uint64]
    bytes: NDArray[np.uint64]
    time_us: NDArray[np.uint64]
    stream: NDArray[np.uint32]  # index of "streams"
    pool: NDArray[np.uint32]  # index of "pools"
    stack: NDArray[np.uint32]  # index of "stacks"

@type_check_only
class SnapshotBlocks(TypedDict):
    """One row per block that is allocated or pending at the end."""

    address: NDArray[np.uint64]
    bytes: NDArray[np.uint64]  # as requested
    block_bytes: NDArray[np.uint64]  # as set aside
    stream: NDArray[np.uint32]
    pool: NDArray[np.uint32]
    stack: NDArray[np.uint32]
    is_pending: NDArray[np.uint8]

@type_check_only
class SnapshotSegments(TypedDict):
    """At the end of the recording; of expandable segments each contiguous run of pages."""

    address: NDArray[np.uint64]
    bytes: NDArray[np.uint64]
    stream: NDArray[np.uint32]
    pool: NDArray[np.uint32]
    is_large: NDArray[np.uint8]
    is_expandable: NDArray[np.uint8]

@type_check_only
class SnapshotTables(TypedDict):
    """A snapshot's content about one device."""

    entries: SnapshotEntries
    segments: SnapshotSegments
    blocks: SnapshotBlocks
    streams: list[int]  # as recorded
    pools: list[tuple[int, int]]
    stacks: list[tuple[tuple[str, int, str], ...]]  # file, line, function; innermost first

def give_back_memory() -> None:
    """Return freed memory to the system, where the C library keeps it for the process."""

class Snapshot:
    """A pickled memory snapshot. Reading it runs nothing: a pickle that asks for code is refused.

    Raises:
        ValueError: If the bytes are no such pickle, naming the byte and why.
    """

    @staticmethod
    def read_file(path: str) -> Snapshot:
        """Read a file.

        Raises:
            OSError: If it cannot be read.
        """

    @staticmethod
    def read_bytes(data: bytes) -> Snapshot: ...
    @property
    def devices(self) -> list[int]:
        """The devices that have segments or a history."""
    @property
    def used_devices(self) -> list[int]:
        """Those of which the history says that they were used."""

    @property
    def settings(self) -> str:
        """PYTORCH_ALLOC_CONF of the recorded run; empty where the snapshot does not say it."""

    @property
    def has_whole_history(self) -> bool:
        """Whether npusim recorded it with what torch leaves out: nothing need be inferred."""

    def tables(self, device: int) -> SnapshotTables:
        """Return what is said about one device.

        Raises:
            ValueError: Naming the entry or segment that cannot be.
        """

# --- Replay. Events are columns of one length; see lab/engine/event.h for each op.

class Op:
    """Codes of the column `op`; in brackets the other columns that an op reads."""

    MALLOC: Final = 0  # [id, bytes, stream, pool, stack] a new id
    FREE: Final = 1  # [id] requested and completed at once
    FREE_REQUESTED: Final = 2  # [id] by the user; the memory is not reusable yet
    FREE_COMPLETED: Final = 3  # [id] reusable from here on
    RECORD_STREAM: Final = 4  # [id, stream] counted, otherwise without effect
    EMPTY_CACHE: Final = 5  # [pool] pool 0: the default pool and every pool without users
    CREATE_POOL: Final = 6  # [pool, bytes = flags: 1 use_on_oom, 2 no_split]
    RELEASE_POOL: Final = 7  # [pool]
    MEMORY_FRACTION: Final = 8  # [bytes = fraction of the capacity, times 2**32]
    SYNCHRONIZE: Final = 9  # [] every pending free completes
    RESET_PEAKS: Final = 10  # [] e.g. after the initial live set
    MARK: Final = 11  # [id] for the reader; without effect
    SEGMENT_ALLOC: Final = 16  # [id = address, bytes, stream, pool] what the recorded run did:
    SEGMENT_FREE: Final = 17  # 16 to 22 are kept for reference and never replayed
    SEGMENT_MAP: Final = 18
    SEGMENT_UNMAP: Final = 19
    OOM: Final = 20  # [id = free bytes of the device, bytes = request, stream, pool]
    SNAPSHOT: Final = 21
    SEGMENT_RESERVE: Final = 22  # [id = address, bytes, stream, pool] of an expandable segment
    RETRY: Final = 23  # [bytes, stream, pool] in tables of a snapshot only: its allocator waits

class Trace:
    """Events, checked once and compiled, to be replayed any number of times (on any thread).

    Args:
        op: uint8, codes of Op.
        id: uint64, of the allocation (any numbers; one id is live at most once at a time).
        bytes: uint64, as requested, before rounding.
        stream, pool, stack: uint32; pool 0 is the default pool; stack is kept for reports.
        time_ns: uint64 or None; used for integrals over time only.

    Arrays of other integer types are converted. Columns left out are zero.

    Raises:
        ValueError: naming the event and what is wrong with it (a free of an id that is not live, a
            second malloc of a live id, a pool nobody created, columns of different lengths).
    """

    def __init__(
        self,
        op: ArrayLike,
        id: ArrayLike,
        bytes: ArrayLike | None = None,
        stream: ArrayLike | None = None,
        pool: ArrayLike | None = None,
        stack: ArrayLike | None = None,
        time_ns: ArrayLike | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def mallocs(self) -> int: ...
    @property
    def malloc_event(self) -> NDArray[np.uint32]:
        """For the k-th malloc the index of its event."""

    @property
    def free_event(self) -> NDArray[np.uint32]:
        """For the k-th malloc the index of its free or free_requested; len(self): none."""

    @property
    def completed_event(self) -> NDArray[np.uint32]:
        """For the k-th malloc the index of its free or free_completed; len(self): none."""

    @property
    def malloc_bytes(self) -> NDArray[np.uint64]:
        """For the k-th malloc the requested bytes."""

    @property
    def malloc_stack(self) -> NDArray[np.uint32]: ...
    @property
    def max_live_bytes(self) -> int:
        """The most requested bytes in use at once, pending ones included: no policy needs less."""

    @property
    def max_live_event(self) -> int: ...

class PolicyDevice:
    """Source of memory for a policy written in Python; `attach(device)` hands it over."""

    def acquire(self, bytes: int) -> int | None:
        """Return the address of new memory, None where the device is full."""

    def release(self, address: int) -> None:
        """Give memory back that acquire() returned; nothing live may be in it.

        An address that is not lent changes nothing and is a violation.
        """

    def stitch(self, pieces: Sequence[tuple[int, int]]) -> int:
        """Return an address behind which the pieces (address, bytes) of own memory lie in a row."""

    def unstitch(self, address: int) -> None: ...
    @property
    def free_bytes(self) -> int: ...
    @property
    def capacity_bytes(self) -> int: ...

@type_check_only
class Policy(Protocol):
    """A placement policy in Python. A call costs about 0.1 us besides the policy's own work."""

    def attach(self, device: PolicyDevice) -> None: ...
    def malloc(self, bytes: int, stream: int) -> int | None:
        """Return an address with that many bytes behind it, None for out of memory."""

    def free(self, address: int, bytes: int, stream: int) -> None:
        """Take back what malloc returned."""

    def empty_cache(self) -> None:
        """Release what is free."""

class MemoryPicture:
    """Segments and blocks at one moment, as columns; both sorted by address."""

    event: int  # the picture is of the state after this event
    segment_address: NDArray[np.uint64]
    segment_bytes: NDArray[np.uint64]
    segment_stream: NDArray[np.uint32]
    segment_pool: NDArray[np.uint32]
    segment_order: NDArray[np.int64]  # order of acquisition
    segment_is_large: NDArray[np.bool_]
    segment_is_expandable: NDArray[np.bool_]
    block_segment: NDArray[np.int64]  # index of the segment
    block_address: NDArray[np.uint64]
    block_bytes: NDArray[np.uint64]
    block_requested: NDArray[np.uint64]  # 0 for a free block
    block_state: NDArray[np.uint8]  # 0 free, 1 allocated, 2 pending
    block_malloc: NDArray[np.int64]  # which malloc of the trace; -1 for a free block
    block_order: NDArray[np.int64]  # in the tie-break, after the size; may be missing in `initial`

class Replay:
    """Result of one policy on one trace. Arrays over mallocs are in the order of the trace."""

    began_as_recorded: bool  # set by study.replay()
    policy: str
    seconds: float  # CPU time of the replay alone
    failed: NDArray[np.bool_]  # per malloc: ran out of memory
    address: NDArray[np.uint64]  # per malloc; 0 where it failed
    segment: NDArray[np.int32]  # per malloc: order of acquisition of its segment; -1: failed
    offset: NDArray[np.uint64]  # per malloc: in its segment
    block_bytes: NDArray[np.uint64]  # per malloc: after rounding
    # Curves: one point per `curve_every` events, the largest value among them and the smallest, the
    # one before the interval included: no peak is lost, and neighbouring intervals meet.
    curve_every: int
    reserved: NDArray[np.int64]
    active: NDArray[np.int64]  # allocated and pending
    allocated: NDArray[np.int64]
    requested: NDArray[np.int64]  # by the caller, of active blocks
    reserved_low: NDArray[np.int64]
    active_low: NDArray[np.int64]
    allocated_low: NDArray[np.int64]
    requested_low: NDArray[np.int64]
    largest_free: NDArray[np.int64]  # at the end of the interval; empty unless asked for
    free_bytes: NDArray[np.int64]  # of all of them, likewise
    # Peaks and the events at which they were first reached.
    peak_reserved: int
    peak_reserved_event: int
    peak_active: int
    peak_active_event: int
    peak_allocated: int
    peak_requested: int
    active_at_peak_reserved: int
    reserved_byte_events: float  # the integral of reserved over events
    reserved_byte_ns: float  # over time; 0 without times
    # Calls to the device, in order.
    device_event: NDArray[np.int64]
    device_op: NDArray[np.uint8]  # Op.SEGMENT_*
    device_address: NDArray[np.uint64]
    device_bytes: NDArray[np.uint64]
    device_stream: NDArray[np.uint32]
    device_pool: NDArray[np.uint32]
    ooms: list[dict[str, Any]]  # event, malloc, text and the numbers of OutOfMemoryReport
    waits: NDArray[np.int64]  # events of mallocs that waited for frees, of the caching allocator
    retries: int  # mallocs tried again after cached memory was given back
    stitched_bytes: int  # put behind other addresses, and taken from there
    unstitched_bytes: int
    latency_ns: NDArray[np.uint32]  # per event, of this machine; empty unless asked for
    stopped_at: int  # the event of the first failure with on_oom="stop", else -1
    stats: dict[str, int]  # torch.cuda.memory_stats() at the end; caching policies only
    metrics: dict[str, float]  # of the policy's own, e.g. "bank_conflicts"
    pictures: list[MemoryPicture]  # at snapshots_at, then at the end
    violations: list[str]  # the first 20 impossible answers, with their events; with validate
    violation_count: int  # all of them

def replay(
    trace: Trace,
    policy: str | Policy = "npusim",
    settings: str = "",
    capacity_bytes: int = ...,
    *,
    pending: str = "recorded",
    on_oom: str = "skip",
    placements: bool = True,
    curve_points: int = 0,
    fragmentation: bool = False,
    snapshots_at: Sequence[int] = (),
    picture_at_end: bool = False,
    segment_addresses: ArrayLike | None = None,
    validate: bool | None = None,
    scatter_seed: int = 0,
    validate_every: int = 0,
    initial: MemoryPicture | None = None,
    latency: bool = False,
) -> Replay:
    """Run a trace under a policy. The GIL is released unless the policy is a Python object.

    Args:
        trace: the events.
        policy: a name of policies(), the path of a shared library (anything with a "/"), or a
            Python object.
        settings: "key:value,..." for the policy; those of PYTORCH_ALLOC_CONF for the caching ones.
        capacity_bytes: of the device; 2**50 by default, which is also the most there can be.
        pending: when memory freed with FREE_REQUESTED is reusable: "recorded" (at its
            FREE_COMPLETED, or when the allocator waits), "immediate", or "never" (only when the
            allocator waits).
        on_oom: "skip" (the allocation is absent, its free is ignored) or "stop".
        placements: fill address, segment, offset, block_bytes and failed.
        curve_points: at most this many points of each curve; 0 for none.
        fragmentation: fill largest_free and free_bytes too (walks all blocks at each point).
        snapshots_at: indices of events, ascending.
        picture_at_end: add a picture of the end.
        segment_addresses: address of the k-th segment, for policies that look at addresses
            (cuda-2.11); the device chooses where the list ends, or where the range is taken.
        validate: check the policy's every answer for overlaps and foreign memory, and the caching
            allocator's invariants at snapshots and at the end. Default: everything but the caching
            presets.
        scatter_seed: 0 for ascending segment addresses; else they jump about.
        validate_every: check the caching allocator's invariants after every so many events too;
            slow. 0 for not.
        initial: what a caching preset begins with, as a MemoryPicture (or any object with its
            columns): the exact state where a recording began. block_malloc names the mallocs of
            this trace that its allocated blocks are; those are not placed again, wherever in the
            trace they stand. Blocks are free or allocated, segments not expandable.
        latency: measure every call, with the clock of this machine.

    Raises:
        ValueError: unknown policy or setting, a library that cannot be loaded; a policy in Python
            without its methods, or one that raises or returns no address, with the event.
    """

def bank_conflicts(
    trace: Trace, address: ArrayLike, banks: int = 32, stride_bytes: int = 512, window: int = 3
) -> tuple[int, int]:
    """Return conflicts and pairs: of a malloc and one of the `window` before it, still live.

    A conflict is a pair that begins in one bank, (address // stride_bytes) % banks. `address` is
    that of a Replay.
    """

def policies() -> dict[str, str]:
    """Return the names of the built-in policies, each with one line about it."""

def presets() -> list[str]:
    """Return the names of policies() that are presets of the caching allocator."""

def ignores_streams(name: str) -> bool:
    """Whether a built-in policy gives what is freed on one stream to another at once."""

def has_arenas(name: str) -> bool:
    """Whether a built-in policy has the setting `arena`: where it gets its segments from."""

def rounded(
    bytes: NDArray[np.uint64], preset: str = "npusim", settings: str = ""
) -> NDArray[np.uint64]:
    """Return the bytes that a caching preset rounds each request to.

    Raises:
        ValueError: For an unknown preset or setting, and for a request of 1 EB or more.
    """

def config(preset: str = "npusim", settings: str = "") -> dict[str, Any]:
    """Return the resolved rules of a caching preset, by the names of allocator/config.h."""

def plan(
    lower: ArrayLike,
    upper: ArrayLike,
    bytes: ArrayLike,
    method: str = "best",
    alignment: int = 1,
    *,
    alignments: ArrayLike | None = None,
    gaps: Sequence[tuple[int, int, int]] = (),
    capacity: int | None = None,
    steps: int = 0,
    seconds: float = 0.0,
) -> tuple[NDArray[np.uint64], int, int, int]:
    """Place buffers of known lifetimes [lower, upper) into one range of addresses.

    Args:
        lower, upper: int64, in any unit of time; upper > lower.
        bytes: uint64.
        method: "birth" (first fit), "size", "lifetime", "area" (first fit in that order, largest
            first), "skyline" (lowest place first, the buffer that suits it best), or "best": the
            best of all, lowered by a search.
        alignment: of every offset; sizes are rounded up to it.
        alignments: uint64, of each offset.
        gaps: (buffer, lower, upper) in order: then others may have its bytes.
        capacity: bytes; a plan within it is good enough.
        steps: of the search.
        seconds: of the search, instead of steps, if not 0.

    Returns:
        The offsets, the height, a proven lower bound of the height, and the steps searched.

    Raises:
        ValueError: For buffers that cannot be placed, or an unknown method.
    """

def max_live(lower: ArrayLike, upper: ArrayLike, bytes: ArrayLike) -> int:
    """Return the largest sum of bytes over any moment."""
