// SPDX-License-Identifier: BSD-3-Clause
// The state and the inner steps of CachingAllocator. Every function is entered with its lock held.
//   caching_allocator.cpp  the hot path: malloc, free, split, merge, pending frees
//   reclaim.cpp            the cold path: buying segments, collection, releasing, running out
//   inspect.cpp            address lookup, snapshot
//
// Nothing outside these three files includes this header.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>  // lock_guard
#include <unordered_map>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/free_index.h"
#include "allocator/history.h"
#include "allocator/ledger.h"
#include "allocator/lock.h"

namespace npusim::alloc {

// The two pools of one stream.
struct StreamPools {
  StreamPools(const Config& config)
      : small(config.quantum_bytes, config.small_segment_bytes),
        large(config.quantum_bytes, kUnlimited) {}
  FreeIndex& of(bool is_small) noexcept { return is_small ? small : large; }
  FreeIndex small;
  FreeIndex large;
};

// A request on its way through malloc().
struct Request {
  std::size_t requested_bytes = 0;
  std::size_t rounded_bytes = 0;
  StreamId stream = 0;
  bool is_small = false;
  FreeIndex* free_index = nullptr;
  ContextId context = 0;
  OutOfMemoryReport* report = nullptr;
};

// A block that waits for a mark in a stream.
struct Pending {
  Ticket ticket = 0;
  Block* block = nullptr;
};

struct CachingAllocator::Impl {
  Impl(Provider& provider_in, const Config& config_in, CachingAllocator* owner_in);

  // --- caching_allocator.cpp
  Block* allocate(const Request& request);
  Block* take_free_block(const Request& request);         // null, or a block out of its index
  Block* split(Block* block, std::size_t bytes);          // the new block is the low part
  void release_to_pool(Block* block, ContextId context);  // merge, index, book
  Block* merge(Block* block, Block* neighbour);  // the neighbour, if free, becomes part of block
  void require_live(const Block* block, const char* verb) const;
  void free_live(Block* block, ContextId context);
  void free_later(Block* block, ContextId context);  // pending: one mark per using stream
  void book_free(const Block* block, ContextId context);
  void process_events();
  StreamPools& pools_of(StreamId stream);
  void reserve_blocks();  // so that new_block() cannot fail half-way
  Block* new_block() noexcept;
  void recycle(Block* block) noexcept;
  void record(HistoryAction action, Address address, std::size_t bytes, StreamId stream,
              ContextId context);

  // --- reclaim.cpp
  Block* acquire_or_reclaim(const Request& request);  // what to try, in order
  bool limited() const noexcept { return allowed_bytes != kUnlimited; }
  void set_fraction(double fraction);
  Block* buy_segment(const Request& request, bool is_retry);
  void index_insert(Block* block);                // starts the block's age
  bool release_oversize(const Request& request);  // enough blocks too large to split
  void collect_garbage();
  void wait_for_pending();
  void release_free_segments();
  void release(const std::vector<Block*>& whole_segments);
  std::vector<Block*> free_blocks(bool is_small);  // of all streams, in best-fit order
  void fail(const Request& request, OutOfMemoryReport::Cause cause);
  std::size_t largest_free_block();

  // --- inspect.cpp
  Block* block_at(Address address) const;  // the block the address lies in, or null
  Snapshot picture();

  Provider& provider;
  CachingAllocator* const owner;
  const Config config;

  WordLock mutex;  // guards everything below, and the fields of blocks and segments
  std::map<StreamId, StreamPools> pools;
  StreamId last_stream = 0;  // the cache of pools_of()
  StreamPools* last_pools = nullptr;
  std::map<Address, Segment> segments;
  std::int64_t next_registration = 0;

  std::vector<std::unique_ptr<std::array<Block, 256>>> slab;
  Block* unused_blocks = nullptr;  // linked through `next`

  std::unordered_map<const Block*, std::vector<StreamId>> stream_uses;
  std::map<StreamId, std::deque<Pending>> pending;
  std::size_t pending_count = 0;

  Ledger ledger;
  HistoryMode history_mode = HistoryMode::off;
  History history;
  double memory_fraction = 1.0;
  std::size_t allowed_bytes = kUnlimited;   // kUnlimited: no fraction is set
  std::array<std::uint64_t, 2> searches{};  // [is_small], counted while collection is on
  OutOfMemoryReport::Cause last_cause{};    // of the last segment not bought,
  std::string last_reason;                  // with the provider's words
};

}  // namespace npusim::alloc
