// SPDX-License-Identifier: BSD-3-Clause
// The events of a trace, as columns. Every column has one entry per event; an op reads the columns
// named behind it and ignores the rest.
#pragma once

#include <cstdint>
#include <span>

namespace npusim::lab {

enum class Op : std::uint8_t {
  malloc = 0,           // id, bytes, stream, pool, stack: a new id
  free = 1,             // id: requested and completed at once
  free_requested = 2,   // id: by the user; the memory is not reusable yet
  free_completed = 3,   // id: reusable from here on
  record_stream = 4,    // id, stream: for the reader; the gap between 2 and 3 is its effect
  empty_cache = 5,      // pool: 0 is the default pool and every pool without users
  create_pool = 6,      // pool, bytes: 1 use_on_oom, 2 no_split; of a pool with users: one more
  release_pool = 7,     // pool: one user less
  memory_fraction = 8,  // bytes: the fraction of the capacity, times 2^32
  synchronize = 9,      // every pending free completes
  reset_peaks = 10,     // for example after the blocks that are older than the trace
  mark = 11,            // for the reader
  // What the recorded run did; kept for reference, never replayed.
  segment_alloc = 16,  // id (the address), bytes, stream, pool; likewise the next three
  segment_free = 17,
  segment_map = 18,
  segment_unmap = 19,
  oom = 20,  // id (free bytes of the device), bytes, stream, pool
  snapshot = 21,
  segment_reserve = 22,  // id (the address), bytes, stream, pool: of an expandable segment
  // Only in tables of a snapshot: bytes, stream, pool of a request whose allocator waits.
  retry = 23,
};

// Columns that a trace does not have are empty and read as zeros. A private pool that no event
// creates exists from the start.
struct EventColumns {
  std::span<const std::uint8_t> op;
  std::span<const std::uint64_t> id;
  std::span<const std::uint64_t> bytes;
  std::span<const std::uint32_t> stream;
  std::span<const std::uint32_t> pool;
  std::span<const std::uint32_t> stack;
  std::span<const std::uint64_t> time_ns;
};

}  // namespace npusim::lab
