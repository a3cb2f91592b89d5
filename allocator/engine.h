// SPDX-License-Identifier: BSD-3-Clause
// The state and the inner steps of CachingAllocator. Every function is entered with its lock held.
//   caching_allocator.cpp  the hot path: malloc, free, split, merge, pending frees
//   acquire_segments.cpp   the cold path: buying segments, collection, releasing, running out
//   expandable.cpp         segments that grow and shrink by the page
//   private_pools.cpp      pools that come and go
//   inspect.cpp            address lookup, snapshot
//   adopt.cpp              beginning with what another allocator made
//
// Nothing outside these six files includes this header.
//
// Ownership: `slab` owns all blocks, and a block that is not in use is linked into unused_blocks;
// `segments` owns segments; `pools` owns pools with their block pools, which never move.
// Errors: the provider's mark(), wait() and synchronize() may throw; blocks, indexes and counters
// are valid then. Units: bytes and nanoseconds of virtual time.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>  // lock_guard
#include <unordered_map>
#include <vector>

#include "allocator/block_pool.h"
#include "allocator/caching_allocator.h"
#include "allocator/counters.h"
#include "allocator/history.h"
#include "allocator/lock.h"

namespace npusim::alloc {

struct CachingAllocator::Impl {
  Impl(Provider& provider_in, const Config& config_in, Sharing sharing, CachingAllocator* owner_in);

  // --- caching_allocator.cpp
  void require_mappable(const Config& wanted) const;  // throws InvalidArgument
  // allocate() is malloc() after rounding: a free block or a new segment, split, booked; or null,
  // and the request's report is filled.
  Block* allocate(Request& request);
  // round() is round_request(), with kUnlimited for nothing.
  std::size_t round(std::size_t bytes) const noexcept {
    if (!plain_rounding || bytes >= kRequestLimit) [[unlikely]] {
      return round_request(config, bytes).value_or(kUnlimited);
    }
    return (bytes + config.pad_bytes + config.quantum_bytes - 1) & ~(config.quantum_bytes - 1);
  }
  Block* take_free_block(const Request& request);  // null, or a block out of its index
  Block* split(Block* block, std::size_t bytes);   // the new block is the low part
  void book_allocation(Block* block, std::size_t requested_bytes, ContextId context);
  void release_to_pool(Block* block, ContextId context);  // merge, index, book
  Block* merge(Block* block, Block* neighbour);  // the neighbour, if free, becomes part of block
  void absorb(Block* block, Block* neighbour) noexcept;  // the addresses of a merge
  // require_live() throws InvalidArgument, named by `verb`, unless the block is allocated here.
  void require_live(const Block* block, const char* verb) const {
    if (block && block->owner == owner && block->state == BlockState::allocated) [[likely]] {
      return;
    }
    refuse_dead(block, verb);
  }
  [[noreturn]] void refuse_dead(const Block* block, const char* verb) const;
  // free_live() ends a block at once, or makes it pending if other streams use it.
  void free_live(Block* block, ContextId context);
  void free_later(Block* block, ContextId context);  // pending: one mark per using stream
  void mark_uses(Block* block);
  void mark_deferred();  // of the blocks whose marks are still to be set
  bool defers() const noexcept { return config.defers_in_pool_scopes && pool_scopes > 0; }
  void book_free(const Block* block, ContextId context);
  void process_events();  // frees pending blocks whose marks are done; does not wait
  BlockPool& block_pool_of(MemoryPool& pool, StreamId stream, bool is_small) {
    if (last_pool != &pool || last_stream != stream) turn_to(pool, stream);
    return last_stream_pools->of(is_small);
  }
  void turn_to(MemoryPool& pool, StreamId stream);
  void reserve_blocks();        // so that new_block() cannot fail half-way
  Block* new_block() noexcept;  // reserve_blocks() has run since the last three
  void recycle(Block* block) noexcept;
  // block_order() is a block's place in the tie-break; `creation` counts the records of blocks.
  std::int64_t block_order(const Segment& segment, std::int64_t creation) const noexcept {
    if (config.tie_break == TieBreak::registration) [[likely]] {
      return segment.registration;
    }
    return config.tie_break == TieBreak::creation ? creation : 0;
  }
  void index_insert(Block* block);  // starts the block's age
  void record(HistoryAction action, Address address, std::size_t bytes, StreamId stream,
              ContextId context, PoolId pool);
  void record_block(HistoryAction action, const Block* block, ContextId context);

  // --- acquire_segments.cpp
  Block* acquire_or_reclaim(Request& request);  // what to try, in order
  bool limited() const noexcept { return allowed_bytes != kUnlimited; }
  void set_fraction(double fraction);  // of the provider's total; throws outside 0 to 1
  void record_retry(const Request& request);
  // buy_segment() returns a free block of new memory, in no index; null, with last_cause, if the
  // limit or the provider refuses.
  Block* buy_segment(const Request& request, bool is_retry);
  Block* buy_whole_segment(const Request& request, std::size_t bytes);
  Block* new_segment(const Request& request, Address address, std::size_t bytes);
  void book_reserved(MemoryPool& pool, bool is_small, std::int64_t net_bytes);
  void note_failure(SegmentResult&& result);      // for the report, should the request fail
  bool release_oversize(const Request& request);  // enough blocks too large to split
  void collect_garbage();
  void wait_for_pending(const MemoryPool* only = nullptr);  // waits; `only`: of this pool
  void complete_held(const MemoryPool* only);
  void release_free_memory(MemoryPool& pool);
  void release(const std::vector<Block*>& whole_segments);  // synchronises the device first
  std::vector<Block*> free_blocks(MemoryPool& pool, bool is_small);   // in best-fit order
  void fail(const Request& request, OutOfMemoryReport::Cause cause);  // books, fills the report
  std::size_t largest_free_block();

  // --- expandable.cpp
  Block* prefer_bounded(FreeIndex& index, Block* block);
  Block* grow(const Request& request);       // a block of mapped pages, out of its index
  Block* find_room(const Request& request);  // the first block of enough room, mapped or not
  Block* reserve_range(const Request& request);
  // map_pages() is false if the provider refuses; only last_cause and last_reason have changed
  // then.
  bool map_pages(Block* block, std::size_t bytes, const Request& request);
  void unmap_free_pages(const std::vector<Block*>& blocks);
  void unmap_pages(Block* block, Address begin, Address end);
  void release_range(Block* block);  // a whole range without memory

  // --- private_pools.cpp
  // pool_with_users() throws InvalidArgument, named by `verb`, for a pool that nobody retains.
  MemoryPool& pool_with_users(PoolId id, const char* verb);
  MemoryPool& add_pool(PoolId id, const PoolOptions& options);
  bool expands(const MemoryPool& pool) const noexcept;  // whether its new segments are expandable
  void record_retain(const MemoryPool& pool);
  void record_pools();                            // all there are, for a history that begins
  Block* borrow(Request& request);                // from a pool with use_on_oom
  void release_unused_pools(const PoolId* only);  // private ones without users
  std::vector<PoolInfo> pool_infos() const;
  void end_pool(MemoryPool& pool);  // has no segments, or ranges without memory

  // --- checkpoint.cpp
  void carve(const BlockInfo& info);

  // --- adopt.cpp
  void adopt(const SegmentInfo& info, const AdoptionVisitor& visit);

  // --- inspect.cpp
  void count_oversize(std::int64_t sign);
  Block* block_at(Address address) const;  // the block the address lies in, or null
  Snapshot picture();                      // a copy: valid after the lock is gone

  Provider& provider;
  CachingAllocator* const owner;
  Config config;        // changes under the lock; fit, quantum and sizes of segments never
  bool plain_rounding;  // round_request() has nothing to look up
  ContextId reclaim_context = 0;  // of what gives memory back to the provider now
  bool has_both_kinds = false;    // of segments, maybe: expandable_segments has changed

  WordLock mutex;  // guards everything below, and the fields of blocks and segments
  std::map<PoolId, MemoryPool> pools;
  MemoryPool* default_pool = nullptr;
  const MemoryPool* last_pool = nullptr;  // the cache of block_pool_of()
  StreamId last_stream = 0;
  MemoryPool::StreamPools* last_stream_pools = nullptr;
  std::map<Address, Segment> segments;
  std::int64_t next_registration = 0;
  std::int64_t next_creation = 1;

  std::vector<std::unique_ptr<std::array<Block, 256>>> slab;
  Block* unused_blocks = nullptr;  // linked through `next`
  std::size_t unused_count = 0;

  std::unordered_map<const Block*, std::vector<StreamId>> stream_uses;
  std::map<StreamId, std::deque<Pending>> pending;
  std::deque<Block*> deferred;  // pending, without marks yet: defers_in_pool_scopes
  // Of those streams, the ones recorded in a scope. As upstream, an entry outlives the allocation
  // unless mark_deferred() took it.
  std::unordered_map<const Block*, std::vector<StreamId>> scope_uses;
  std::size_t pending_count = 0;  // marks, and blocks without them
  std::size_t pool_scopes = 0;
  std::map<std::uint64_t, Block*> held;  // by free_held(): pending until told, oldest first
  std::uint64_t next_hold = 0;

  Counters counters;
  HistoryMode history_mode = HistoryMode::off;
  History history;
  double memory_fraction = 1.0;
  std::size_t allowed_bytes = kUnlimited;  // kUnlimited: no fraction is set
  OutOfMemoryReport::Cause last_cause{};   // of the last segment not bought,
  std::string last_reason;                 // with the provider's words
};

}  // namespace npusim::alloc
