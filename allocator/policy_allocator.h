// SPDX-License-Identifier: BSD-3-Clause
// PolicyAllocator: a placement policy of one's own behind a live device. The policy only says where
// a block goes; waiting for other streams, trying again before running out, statistics, history and
// pictures are done here:
//
//   malloc fails -> everything pending completes -> malloc again -> empty_cache -> malloc again
//
// Invariant: no placement reaches the caller that is not in lent memory, overlaps a live one, or is
// not aligned to 32 bytes; no memory with a live block in it goes back to the provider. A policy
// that tries either gets the call refused with an InvalidArgument that names it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/counters.h"
#include "allocator/history.h"
#include "allocator/live_allocator.h"
#include "allocator/lock.h"
#include "allocator/placement/placement_check.h"
#include "allocator/placement/placement_policy.h"

namespace npusim::alloc {

class PolicyAllocator final : public LiveAllocator {
 public:
  using Maker = std::function<std::unique_ptr<PlacementPolicy>(PlacementDevice&)>;

  // The provider must outlive the allocator. `name` is for messages and snapshots. Throws what
  // `make` throws.
  PolicyAllocator(Provider& provider, std::string name, const Maker& make);
  ~PolicyAllocator() override;
  PolicyAllocator(const PolicyAllocator&) = delete;
  PolicyAllocator& operator=(const PolicyAllocator&) = delete;

  Block* malloc(std::size_t bytes, StreamId stream, OutOfMemoryReport* report = nullptr,
                ContextId context = 0, PoolId pool = {}) override;
  void free(Block* block, ContextId context = 0) override;
  FreeStatus free_address(Address address, std::string* why = nullptr,
                          ContextId context = 0) override;
  Block* find(Address address) const override;
  void record_stream(Block* block, StreamId stream) override;

  // Of the default pool: the policy is asked to release what is free, of all pools. Of a private
  // pool: nothing happens. Pools are numbers that the policy gets with each request, and may
  // ignore; they have no options.
  void empty_cache(PoolId pool = {}, ContextId context = 0) override;
  void retain_pool(PoolId pool, const PoolOptions& options = {}) override;
  void release_pool(PoolId pool) override;
  std::vector<PoolInfo> pools() const override;

  void set_memory_fraction(double fraction) override;
  double memory_fraction() const override;
  Stats stats() const override;  // everything is in the large pool
  void reset_peak_stats() override;
  void reset_accumulated_stats() override;
  std::size_t largest_free_block() const override;
  void record_history(HistoryMode mode, std::size_t max_entries = kUnlimited) override;
  void clear_history() override;
  Snapshot snapshot() override;
  Snapshot inspect() const override;

 private:
  class Device;  // lends to the policy; keeps what must not be given back
  struct Entry : Block {
    PlacementRequest request;
    PoolId pool;
    std::vector<StreamId> uses;   // other streams, by record_stream()
    std::vector<Ticket> tickets;  // what a pending one waits for
  };
  struct Pool {
    std::size_t users = 0;
    std::uint32_t number = 0;
  };

  Placement place(const PlacementRequest& request);
  void judge(const Placement& placement, const PlacementRequest& request);
  [[noreturn]] void reject(const std::string& what) const;
  void throw_misuse();
  void reserve_entry();
  Entry* require_live(Block* block, const char* verb) const;
  void free_live(Entry* entry, ContextId context);
  void complete(Entry* entry);
  void process_events();
  bool complete_pending();  // waits; false where nothing was pending
  void record(HistoryAction action, Address address, std::size_t bytes, StreamId stream,
              ContextId context, PoolId pool);
  void record_pools();
  void fail(const PlacementRequest& request, StreamId stream, PoolId pool,
            OutOfMemoryReport* report, ContextId context, OutOfMemoryReport::Cause cause);
  std::vector<SegmentInfo> segments() const;
  Snapshot picture() const;
  const Entry* entry_at(Address address) const;  // the live or pending one around it, or null

  Provider& provider_;
  const std::string name_;

  mutable WordLock mutex_;  // guards everything below
  std::map<PoolId, Pool> pools_;
  std::uint32_t last_pool_number_ = 0;
  std::map<StreamId, std::uint32_t> stream_numbers_{{0, 0}};  // 0 is number 0, as in traces
  std::uint64_t mallocs_ = 0;

  std::deque<Entry> slab_;
  std::vector<Entry*> unused_;
  std::map<Address, Entry*> entries_;  // allocated and pending
  std::deque<Entry*> pending_;         // oldest first

  Counters counters_;
  HistoryMode history_mode_ = HistoryMode::off;
  History history_;
  double memory_fraction_ = 1.0;

  std::unique_ptr<Device> device_;
  std::unique_ptr<PlacementCheck> check_;
  std::unique_ptr<PlacementPolicy> policy_;  // goes first
};

}  // namespace npusim::alloc
