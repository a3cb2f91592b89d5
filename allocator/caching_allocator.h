// SPDX-License-Identifier: BSD-3-Clause
// CachingAllocator: the best-fit caching allocator of one device. Behaviour is that of PyTorch's
// CUDA caching allocator under the rules in its Config; addresses are a function of the calls
// alone. Invariant between any two calls: blocks tile their segments, no two neighbours are both
// free, every free block is in exactly one free index, and the identities of stats.h hold.
// Thread-safe unless told otherwise: one lock guards everything, and the provider is called with it
// held.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/live_allocator.h"

namespace npusim::alloc {

enum class Sharing : std::uint8_t {
  threads,     // any thread may call
  one_thread,  // one at a time, and the caller sees to it: nothing is locked
};

using AdoptionVisitor = std::function<void(const BlockInfo&, Block*)>;

// Functions without a comment are as live_allocator.h says.
class CachingAllocator final : public LiveAllocator {
 public:
  // The provider must outlive the allocator. Throws InvalidArgument on a bad config.
  explicit CachingAllocator(Provider& provider, const Config& config = {},
                            Sharing sharing = Sharing::threads);
  // The destructor gives nothing back to the provider: call empty_cache() first where that matters.
  ~CachingAllocator() override;
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  Block* malloc(std::size_t bytes, StreamId stream, OutOfMemoryReport* report = nullptr,
                ContextId context = 0, PoolId pool = {}) override;
  void free(Block* block, ContextId context = 0) override;
  FreeStatus free_address(Address address, std::string* why = nullptr,
                          ContextId context = 0) override;

  // free_held() is a free whose end the caller decides: the block stays pending until
  // complete_free() gets the number returned here, or until everything pending is waited for; then
  // complete_free() returns false. Streams recorded on the block are forgotten. For replay.
  std::uint64_t free_held(Block* block, ContextId context = 0);
  bool complete_free(std::uint64_t hold);
  void complete_held_frees();  // all of them, oldest first
  std::size_t held_frees();    // how many have not ended

  // adopt() takes over segments, lent already by the provider, with their blocks: what an allocator
  // was doing when a recording of it began. An expandable one is its whole range, what has no
  // memory in it being a block that is unmapped. `visit` gets every allocated block. Orders of
  // acquisition go on behind the last one given. Throws InvalidArgument for what cannot be.
  void adopt(std::vector<SegmentInfo> segments, const AdoptionVisitor& visit);

  Block* find(Address address) const override;  // walks the segment
  void record_stream(Block* block, StreamId stream) override;

  // process_events() returns pending blocks whose work is done to their pools, as malloc() does.
  void process_events();

  void empty_cache(PoolId pool = {}, ContextId context = 0) override;
  void retain_pool(PoolId pool, const PoolOptions& options = {}) override;
  void release_pool(PoolId pool) override;
  std::vector<PoolInfo> pools() const override;

  // restore_pool() gives a private pool the live blocks that its segments had in an earlier
  // picture: others are freed, and their addresses returned; missing ones are made anew. Throws
  // InvalidArgument where that memory is no longer the pool's.
  std::vector<Address> restore_pool(PoolId pool, const std::vector<SegmentInfo>& then);

  // enter_pool_scope() and leave_pool_scope() are torch's beginAllocateToPool() and
  // endAllocateToPool(), for Config::defers_in_pool_scopes alone. The live device calls neither: a
  // recording does not hold scopes, so its replay would differ.
  void enter_pool_scope();
  void leave_pool_scope();  // throws InvalidArgument where none is open

  void set_memory_fraction(double fraction) override;
  double memory_fraction() const override;

  const Config& config() const noexcept;  // the latest; memory_fraction() may have moved on
  // change_config() lets requests from now on follow other rules for sizes, splits, collection and
  // expandable segments, as torch's settings do at run time. Throws InvalidArgument where another
  // rule differs. A recording does not hold the change, so its replay would differ.
  void change_config(const Config& config);
  Stats stats() const override;
  AllocatorTotals totals() const noexcept;  // without the lock: for a caller that is alone
  void reset_peak_stats() override;
  void reset_accumulated_stats() override;
  std::size_t largest_free_block() const override;

  void record_history(HistoryMode mode, std::size_t max_entries = kUnlimited) override;
  void clear_history() override;
  Snapshot snapshot() override;
  Snapshot inspect() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npusim::alloc
