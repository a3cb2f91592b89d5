// SPDX-License-Identifier: BSD-3-Clause
// LiveAllocator: what a live device asks of its allocator. Two implement it: CachingAllocator, and
// PolicyAllocator around a placement policy of one's own. Thread-safe; the provider is called with
// the allocator's lock held.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/block.h"
#include "allocator/config.h"
#include "allocator/memory_pool.h"
#include "allocator/out_of_memory.h"
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

class LiveAllocator {
 public:
  virtual ~LiveAllocator() = default;

  // malloc() returns a block of at least `bytes` for use on `stream`. nullptr means out of memory,
  // and *report (may be null) says why. bytes == 0 gives nullptr and changes nothing. Throws
  // InvalidArgument for a private pool that has no users.
  virtual Block* malloc(std::size_t bytes, StreamId stream, OutOfMemoryReport* report = nullptr,
                        ContextId context = 0, PoolId pool = {}) = 0;

  // free() takes a block back. If other streams use it (record_stream) it stays pending until their
  // work is done. Throws InvalidArgument for a block that is not live here; what mark() throws, it
  // throws, and the block stays allocated. `why` of the second form gets the text for people.
  virtual void free(Block* block, ContextId context = 0) = 0;
  virtual FreeStatus free_address(Address address, std::string* why = nullptr,
                                  ContextId context = 0) = 0;

  // find() returns the live block that starts at the address, or nullptr.
  virtual Block* find(Address address) const = 0;

  // record_stream() keeps the block from reuse, once freed, until the work queued on that stream at
  // the time of the free is done. Its own stream is ignored. Throws as free() does.
  virtual void record_stream(Block* block, StreamId stream) = 0;

  // empty_cache() waits for pending frees and releases every segment, or page of an expandable one,
  // that is entirely free: of the default pool and of all private pools without users; or of one
  // private pool, if that has no users (else nothing happens, as upstream).
  virtual void empty_cache(PoolId pool = {}, ContextId context = 0) = 0;

  // retain_pool() makes a private pool with one user, or adds a user to one that there is (whose
  // users are gone, but not its memory, maybe); release_pool() takes one away. The options are
  // those of the first call. Throws InvalidArgument for the default pool, options that contradict
  // the first call's, a release of a pool without users.
  virtual void retain_pool(PoolId pool, const PoolOptions& options = {}) = 0;
  virtual void release_pool(PoolId pool) = 0;
  virtual std::vector<PoolInfo> pools() const = 0;  // private ones, by id

  // The fraction of the device's capacity this allocator may reserve, 0 to 1; 1 is no limit.
  virtual void set_memory_fraction(double fraction) = 0;
  virtual double memory_fraction() const = 0;

  virtual Stats stats() const = 0;
  virtual void reset_peak_stats() = 0;
  virtual void reset_accumulated_stats() = 0;
  virtual std::size_t largest_free_block() const = 0;  // in bytes, over all pools and streams

  // record_history() sets what is kept; max_entries bounds the ring buffer. Turning it off, and
  // clear_history(), drop the entries.
  virtual void record_history(HistoryMode mode, std::size_t max_entries = kUnlimited) = 0;
  virtual void clear_history() = 0;

  // snapshot() adds a `snapshot` entry to the history; inspect() is the same picture without one.
  virtual Snapshot snapshot() = 0;
  virtual Snapshot inspect() const = 0;
};

}  // namespace npusim::alloc
