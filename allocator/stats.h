// SPDX-License-Identifier: BSD-3-Clause
// What the allocator counts. Names and meaning are those of torch.cuda.memory_stats().
// Identities that hold at every moment (allocator/validate.cpp checks them):
//   reserved = bytes the provider lent;  active = allocated or pending;  reserved = active + free;
//   inactive_split = free parts of split segments;  allocated <= active;  requested <= active.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace npusim::alloc {

// Stat: a quantity, its highest value, and all that was ever added and taken away.
// allocated - freed = current - (current at the last reset_accumulated).
struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;
  std::int64_t freed = 0;
};

enum class PoolKind : std::uint8_t { all, small_pool, large_pool };

// One Stat for all pools together and one for each: index with PoolKind.
struct StatArray : std::array<Stat, 3> {
  using std::array<Stat, 3>::operator[];
  const Stat& operator[](PoolKind kind) const { return (*this)[static_cast<std::size_t>(kind)]; }
};

struct Stats {
  StatArray allocation;       // blocks handed out
  StatArray segment;          // segments held
  StatArray active;           // blocks handed out or pending
  StatArray inactive_split;   // free blocks of split segments
  StatArray allocated_bytes;  // the same four in bytes,
  StatArray reserved_bytes;
  StatArray active_bytes;
  StatArray inactive_split_bytes;
  StatArray requested_bytes;  // and what was asked for, before rounding

  std::int64_t num_alloc_retries =
      0;  // segments asked for again after everything free was released
  std::int64_t num_ooms = 0;
  std::int64_t num_sync_all_streams = 0;  // waits for all pending frees
  std::int64_t num_device_alloc = 0;
  std::int64_t num_device_free = 0;
  Stat oversize_allocations;  // of max_split_bytes and more
  Stat oversize_segments;
  std::int64_t max_split_bytes = -1;  // -1: unlimited
};

// What changes with every event, as plain numbers.
struct AllocatorTotals {
  std::int64_t reserved_bytes = 0;
  std::int64_t active_bytes = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t requested_bytes = 0;
};

}  // namespace npusim::alloc
