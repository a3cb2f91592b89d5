// SPDX-License-Identifier: BSD-3-Clause
// Private pools: who uses them, borrowing from them, and their end.
#include "allocator/engine.h"
#include "allocator/error.h"

namespace npusim::alloc {

using Lock = std::lock_guard<WordLock>;

namespace {

std::string name_of(PoolId id) {
  return "pool (" + std::to_string(id.first) + ", " + std::to_string(id.second) + ")";
}

}  // namespace

MemoryPool& CachingAllocator::Impl::pool_with_users(PoolId id, const char* verb) {
  const auto it = pools.find(id);
  if (it == pools.end() || it->second.users == 0) {
    throw InvalidArgument(std::string(verb) + ": " + name_of(id) +
                          " has no users; call retain_pool first");
  }
  return it->second;
}

MemoryPool& CachingAllocator::Impl::add_pool(PoolId id, const PoolOptions& options) {
  MemoryPool& pool = pools[id];
  pool.id = id;
  pool.options = options;
  pool.provider = options.provider ? options.provider : &provider;
  pool.is_expandable = expands(pool);
  return pool;
}

bool CachingAllocator::Impl::expands(const MemoryPool& pool) const noexcept {
  return config.expandable_segments && pool.provider == &provider &&
         (config.expandable_in_pools || pool.id.is_default());
}

// As upstream, from free blocks only, never from expandable segments, and the pool that is borrowed
// from decides whether they are split.
Block* CachingAllocator::Impl::borrow(Request& request) {
  if (!request.block_pool->pool->id.is_default()) return nullptr;
  for (auto& [id, pool] : pools) {
    if (!pool.options.use_on_oom || pool.users == 0 || pool.is_expandable) continue;
    Request there = request;
    there.block_pool = &block_pool_of(pool, request.stream, request.is_small);
    there.is_expandable = false;
    if (Block* block = take_free_block(there)) {
      record_retry(request);
      request = there;
      return block;
    }
  }
  return nullptr;
}

void CachingAllocator::Impl::release_unused_pools(const PoolId* only) {
  for (auto it = pools.begin(); it != pools.end();) {
    MemoryPool& pool = it->second;
    ++it;  // the pool may end
    if (pool.users > 0 || (only && pool.id != *only)) continue;
    if (only) wait_for_pending(&pool);
    release_free_memory(pool);
    end_pool(pool);
  }
}

void CachingAllocator::Impl::end_pool(MemoryPool& pool) {
  for (auto& [stream, stream_pools] : pool.streams) {
    for (BlockPool* block_pool : {&stream_pools.small, &stream_pools.large}) {
      for (auto it = block_pool->unmapped.begin(); it != block_pool->unmapped.end();) {
        Block* block = (it++)->second;
        if (!block->is_split()) release_range(block);
      }
    }
  }
  if (pool.segments > 0) return;  // blocks are live in it: the next empty_cache() tries again
  if (last_pool == &pool) last_pool = nullptr;
  pools.erase(pool.id);
}

void CachingAllocator::empty_cache(PoolId pool, ContextId context) {
  const Lock lock(impl_->mutex);
  impl_->reclaim_context = context;
  impl_->record(HistoryAction::empty_cache, 0, 0, 0, context, pool);
  if (!pool.is_default()) {
    impl_->release_unused_pools(&pool);
    return;
  }
  if (!impl_->defers()) {
    impl_->wait_for_pending();
    impl_->release_free_memory(*impl_->default_pool);
  }
  impl_->release_unused_pools(nullptr);
}

void CachingAllocator::retain_pool(PoolId id, const PoolOptions& options) {
  const Lock lock(impl_->mutex);
  if (id.is_default()) {
    throw InvalidArgument("retain_pool: (0, 0) is the default pool; expected another id");
  }
  const auto it = impl_->pools.find(id);
  if (it == impl_->pools.end()) {
    impl_->record_retain(impl_->add_pool(id, options));
    return;
  }
  MemoryPool& pool = it->second;
  if (options != PoolOptions{} && options != pool.options) {
    throw InvalidArgument("retain_pool: " + name_of(id) +
                          " exists with other options; they are given once, at its creation");
  }
  ++pool.users;
  impl_->record_retain(pool);
}

void CachingAllocator::Impl::record_retain(const MemoryPool& pool) {
  record(HistoryAction::pool_retain, 0,
         (pool.options.use_on_oom ? 1U : 0U) | (pool.options.no_split ? 2U : 0U), 0, 0, pool.id);
}

// The pools that are there when recording begins.
void CachingAllocator::Impl::record_pools() {
  if (limited())
    record(HistoryAction::memory_fraction, 0, fraction_bits(memory_fraction), 0, 0, {});
  for (const auto& [id, pool] : pools) {
    for (std::size_t user = 0; user < pool.users && !id.is_default(); ++user) record_retain(pool);
  }
}

void CachingAllocator::release_pool(PoolId id) {
  const Lock lock(impl_->mutex);
  if (id.is_default()) throw InvalidArgument("release_pool: the default pool always lives");
  MemoryPool& pool = impl_->pool_with_users(id, "release_pool");
  impl_->record(HistoryAction::pool_release, 0, 0, 0, 0, id);
  if (--pool.users == 0) impl_->end_pool(pool);
}

void CachingAllocator::enter_pool_scope() {
  const Lock lock(impl_->mutex);
  ++impl_->pool_scopes;
}

void CachingAllocator::leave_pool_scope() {
  const Lock lock(impl_->mutex);
  if (impl_->pool_scopes == 0) {
    throw InvalidArgument("leave_pool_scope: no scope is open; call enter_pool_scope first");
  }
  --impl_->pool_scopes;
}

std::vector<PoolInfo> CachingAllocator::Impl::pool_infos() const {
  std::vector<PoolInfo> out;
  for (const auto& [id, pool] : pools) {
    if (id.is_default()) continue;
    PoolInfo info{.id = id, .users = pool.users, .reserved_bytes = {}};
    for (std::size_t i = 0; i < pool.reserved.size(); ++i) {
      info.reserved_bytes[i] = pool.reserved[i].stat();
    }
    out.push_back(info);
  }
  return out;
}

std::vector<PoolInfo> CachingAllocator::pools() const {
  const Lock lock(impl_->mutex);
  return impl_->pool_infos();
}

}  // namespace npusim::alloc
