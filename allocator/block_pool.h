// SPDX-License-Identifier: BSD-3-Clause
// What a request meets on its way through CachingAllocator: pools, block pools of their streams,
// and itself. Included by engine.h only.
#pragma once

#include <array>
#include <map>

#include "allocator/block.h"
#include "allocator/config.h"
#include "allocator/counters.h"
#include "allocator/free_index.h"
#include "allocator/memory_pool.h"
#include "allocator/out_of_memory.h"

namespace npusim::alloc {

struct MemoryPool;

// What one stream has in one pool and size class: blocks of other streams, pools and classes are
// never used for it. It belongs to its pool and never moves; segments point to it.
struct BlockPool {
  BlockPool(const Config& config, MemoryPool* pool_in, bool is_small_in)
      : free(config.fit, config.quantum_bytes,
             is_small_in ? config.small_segment_bytes : kUnlimited),
        pool(pool_in),
        is_small(is_small_in) {}
  FreeIndex free;
  std::map<Address, Block*> unmapped;  // of expandable segments, by address
  MemoryPool* pool;
  bool is_small;
};

// A pool, the default one or a private one. It outlives its last user while segments are left.
struct MemoryPool {
  struct StreamPools {
    StreamPools(const Config& config, MemoryPool* pool)
        : small(config, pool, true), large(config, pool, false) {}
    BlockPool& of(bool is_small) noexcept { return is_small ? small : large; }
    BlockPool small;
    BlockPool large;
  };

  PoolId id;
  PoolOptions options;
  Provider* provider = nullptr;                 // never null once the pool is made
  bool is_expandable = false;                   // what new segments are
  std::size_t users = 1;                        // 0: no request may name the pool
  std::size_t segments = 0;                     // held, ranges of expandable ones included
  std::array<std::uint64_t, 2> searches{};      // [is_small], counted while collection is on
  std::array<Counters::Counter, 3> reserved{};  // bytes: all, small, large; private pools only
  std::map<StreamId, StreamPools> streams;
};

// A request on its way through malloc(). `rounded_bytes` is a multiple of the quantum; `report` may
// be null, and is written only if the request fails.
struct Request {
  std::size_t requested_bytes = 0;
  std::size_t rounded_bytes = 0;
  StreamId stream = 0;
  bool is_small = false;
  bool is_expandable = false;
  BlockPool* block_pool = nullptr;
  ContextId context = 0;
  OutOfMemoryReport* report = nullptr;
};

// A block that waits for a mark in a stream. A block has one entry per stream that uses it.
struct Pending {
  Ticket ticket = 0;
  Block* block = nullptr;
};

}  // namespace npusim::alloc
