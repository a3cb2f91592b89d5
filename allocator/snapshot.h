// SPDX-License-Identifier: BSD-3-Clause
// Snapshot: an immutable picture of one allocator at one moment, and the entries of its history.
// Everything is a copy: reading it needs no lock. The dictionaries of torch's memory viewer are
// made from this by csrc and the lab.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/block.h"
#include "allocator/config.h"
#include "allocator/memory_pool.h"
#include "allocator/provider.h"
#include "allocator/stats.h"

namespace npusim::alloc {

enum class HistoryAction : std::uint8_t {
  alloc,
  free_requested,  // by the user
  free_completed,  // the block is reusable
  segment_alloc,
  segment_free,
  segment_map,    // pages of an expandable segment
  segment_unmap,  // likewise
  oom,            // address: free bytes of the device; bytes: the rounded request
  snapshot,       // address: 0; bytes: active bytes
  // What torch does not write down, and a replay needs to do the same again.
  empty_cache,      // of a pool, asked for; what it completes and releases follows
  segment_reserve,  // addresses of an expandable segment
  retry,            // a request as asked for, before its allocator waits, borrows or fails
  pool_retain,      // bytes: 1 use_on_oom, 2 no_split
  pool_release,
  memory_fraction,  // bytes: the fraction times 2^32, rounded up
};

// is_torchs() is whether torch's snapshots know an action.
constexpr bool is_torchs(HistoryAction action) noexcept {
  return action <= HistoryAction::snapshot;
}

// fraction_bits() is a fraction as in a memory_fraction entry; it allows no byte less.
std::size_t fraction_bits(double fraction) noexcept;

// action_name() is the word torch's snapshots use.
const char* action_name(HistoryAction action) noexcept;

// Bytes of alloc and free are as requested, bytes of segments as acquired.
struct HistoryEntry {
  HistoryAction action = HistoryAction::alloc;
  Address address = 0;
  std::size_t bytes = 0;
  StreamId stream = 0;
  std::int64_t time_ns = 0;  // virtual
  ContextId context = 0;
  PoolId pool;
};

struct BlockInfo {
  Address address = 0;
  std::size_t bytes = 0;
  std::size_t requested_bytes = 0;  // 0 for a free block
  BlockState state = BlockState::free;
  ContextId context = 0;
  std::int64_t order = 0;  // in the tie-break, after the size; for adopt(): 0 is not known
};

// state_name() is the word torch's snapshots use: active_allocated, active_pending_free, inactive.
const char* state_name(BlockState state) noexcept;

// Of an expandable segment every run of mapped pages is a SegmentInfo of its own, as in torch's
// snapshots; they share the registration.
struct SegmentInfo {
  Address address = 0;
  std::size_t total_bytes = 0;
  std::size_t allocated_bytes = 0;
  std::size_t active_bytes = 0;
  std::size_t requested_bytes = 0;  // of active blocks
  StreamId stream = 0;
  bool is_large = false;
  bool is_expandable = false;
  PoolId pool;
  std::int64_t registration = 0;  // order of acquisition
  ContextId context = 0;
  std::vector<BlockInfo> blocks;  // by address, tiling the segment
};

struct Snapshot {
  std::vector<SegmentInfo> segments;  // by address
  // Free blocks as the search sees them: the default pool, then private pools by id; in each the
  // small blocks, then the large; those by stream, size, tie-break.
  std::vector<Address> free_order;
  std::vector<PoolInfo> pools;        // private ones, by id
  std::vector<HistoryEntry> history;  // oldest first
  std::uint64_t history_dropped = 0;  // entries the ring buffer has overwritten
  Stats stats;
  Config config;
  std::string policy;  // that places blocks instead of `config`; empty: none does
};

}  // namespace npusim::alloc
