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

#include "allocator/block.h"
#include "allocator/memory_pool.h"
#include "allocator/out_of_memory.h"
#include "allocator/policy.h"
#include "allocator/provider.h"
#include "allocator/snapshot.h"
#include "allocator/stats.h"

namespace npusim::alloc {

enum class FreeStatus : std::uint8_t {
  ok,
  double_free,  // the block, or the memory the address lies in, is free already
  interior,     // inside a live block, not at its start
  foreign,      // in no segment of this allocator
};

enum class HistoryMode : std::uint8_t {
  off,    // nothing is kept
  state,  // live blocks and segments keep their contexts
  all,    // and events go to the ring buffer
};

enum class Sharing : std::uint8_t {
  threads,     // any thread may call
  one_thread,  // one at a time, and the caller sees to it: nothing is locked
};

using AdoptionVisitor = std::function<void(const BlockInfo&, Block*)>;

class CachingAllocator {
 public:
  // The provider must outlive the allocator. Throws InvalidArgument on a bad config.
  explicit CachingAllocator(Provider& provider, const Config& config = {},
                            Sharing sharing = Sharing::threads);
  // The destructor gives nothing back to the provider: call empty_cache() first where that matters.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // malloc() returns a block of at least `bytes` for use on `stream`. nullptr means out of memory,
  // and *report (may be null) says why. bytes == 0 gives nullptr and changes nothing. Throws
  // InvalidArgument for a private pool that has no users.
  Block* malloc(std::size_t bytes, StreamId stream, OutOfMemoryReport* report = nullptr,
                ContextId context = 0, PoolId pool = {});

  // free() takes a block back. If other streams use it (record_stream) it stays pending until their
  // work is done. Throws InvalidArgument for a block that is not live here; what mark() throws, it
  // throws, and the block stays allocated. `why` of the second form gets the text for people.
  void free(Block* block, ContextId context = 0);
  FreeStatus free_address(Address address, std::string* why = nullptr, ContextId context = 0);

  // free_held() is a free whose end the caller decides: the block stays pending until
  // complete_free() gets the number returned here, or until everything pending is waited for; then
  // complete_free() returns false. Streams recorded on the block are forgotten. For replay.
  std::uint64_t free_held(Block* block, ContextId context = 0);
  bool complete_free(std::uint64_t hold);
  void complete_held_frees();  // all of them, oldest first

  // adopt() takes over whole segments, lent already by the provider, with their blocks: what an
  // allocator was doing when a recording of it began. `visit` gets every allocated block. Orders of
  // acquisition go on behind the last one given. Throws InvalidArgument for what cannot be.
  void adopt(std::vector<SegmentInfo> segments, const AdoptionVisitor& visit);

  // find() returns the live block that starts at the address, or nullptr. It walks the segment.
  Block* find(Address address) const;

  // record_stream() keeps the block from reuse, once freed, until the work queued on that stream at
  // the time of the free is done. Its own stream is ignored. Throws as free() does.
  void record_stream(Block* block, StreamId stream);

  // process_events() returns pending blocks whose work is done to their pools, as malloc() does.
  void process_events();

  // empty_cache() waits for pending frees and releases every segment, or page of an expandable one,
  // that is entirely free: of the default pool and of all private pools without users; or of one
  // private pool, if that has no users (else nothing happens, as upstream).
  void empty_cache(PoolId pool = {});

  // retain_pool() makes a private pool with one user, or adds a user to one that there is (whose
  // users are gone, but not its memory, maybe); release_pool() takes one away. The options are those
  // of the first call. Throws InvalidArgument for the default pool, options that contradict the
  // first call's, a release of a pool without users.
  void retain_pool(PoolId pool, const PoolOptions& options = {});
  void release_pool(PoolId pool);
  std::vector<PoolInfo> pools() const;  // private ones, by id

  // The fraction of the device's capacity this allocator may reserve, 0 to 1; 1 is no limit.
  void set_memory_fraction(double fraction);
  double memory_fraction() const;

  const Config& config() const noexcept;  // as constructed; memory_fraction() may have moved on
  Stats stats() const;
  AllocatorTotals totals() const noexcept;  // without the lock: for a caller that is alone
  void reset_peak_stats();
  void reset_accumulated_stats();
  std::size_t largest_free_block() const;  // in bytes, over all pools and streams

  // record_history() sets what is kept; max_entries bounds the ring buffer. Turning it off, and
  // clear_history(), drop the entries.
  void record_history(HistoryMode mode, std::size_t max_entries = kUnlimited);
  void clear_history();

  // snapshot() adds a `snapshot` entry to the history; inspect() is the same picture without one.
  Snapshot snapshot();
  Snapshot inspect() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npusim::alloc
