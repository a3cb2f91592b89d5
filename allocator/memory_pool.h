// SPDX-License-Identifier: BSD-3-Clause
// Private pools as callers see them: memory that only requests naming the pool are served from.
// A pool lives while it has users (retain_pool, release_pool); its memory outlives it for as long
// as blocks are live in it, and is given back by empty_cache() or under memory pressure.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "allocator/stats.h"

namespace npusim::alloc {

class Provider;

// PoolId names a pool as torch does: {0, 0} is the default pool, {n, 0} belongs to a graph capture,
// {0, n} to a MemPool.
struct PoolId {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  auto operator<=>(const PoolId&) const = default;
  bool is_default() const noexcept { return first == 0 && second == 0; }
};

struct PoolOptions {
  bool use_on_oom = false;       // requests for the default pool may take free blocks of this one
  bool no_split = false;         // a free block serves one request as a whole
  Provider* provider = nullptr;  // where its segments come from; null: the allocator's own
  bool operator==(const PoolOptions&) const = default;
};

struct PoolInfo {
  PoolId id;
  std::size_t users = 0;
  StatArray reserved_bytes;
};

}  // namespace npusim::alloc
