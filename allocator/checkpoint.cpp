// SPDX-License-Identifier: BSD-3-Clause
// The blocks of a private pool put back to what they were: what graph trees do between the captures
// that share a pool. A block that was live then and is live now keeps its record.
#include <algorithm>
#include <map>

#include "allocator/engine.h"
#include "allocator/error.h"

namespace npusim::alloc {

using Lock = std::lock_guard<WordLock>;

std::vector<Address> CachingAllocator::restore_pool(PoolId id,
                                                    const std::vector<SegmentInfo>& then) {
  const Lock lock(impl_->mutex);
  const auto known = impl_->pools.find(id);
  if (known == impl_->pools.end()) {
    throw InvalidArgument("restore_pool: the pool of the checkpoint is gone");
  }
  MemoryPool& pool = known->second;
  impl_->wait_for_pending(&pool);
  std::map<Address, BlockInfo> missing;
  for (const SegmentInfo& segment : then) {
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::allocated) missing.emplace(block.address, block);
    }
  }
  std::vector<Block*> extra;
  for (const auto& [address, segment] : impl_->segments) {
    if (segment.block_pool->pool != &pool) continue;
    for (Block* block = segment.first; block; block = block->next) {
      if (block->state != BlockState::allocated) continue;
      const auto wanted = missing.find(block->address);
      if (wanted != missing.end() && wanted->second.bytes == block->bytes) {
        missing.erase(wanted);
      } else {
        extra.push_back(block);
      }
    }
  }
  // Everything is checked before anything changes.
  if (!extra.empty() && impl_->defers()) {
    throw InvalidArgument("restore_pool: blocks cannot go while a scope allocates to a pool");
  }
  const auto goes = [&](const Block* block) {
    return block->state == BlockState::free ||
           (std::find(extra.begin(), extra.end(), block) != extra.end() && !block->has_stream_uses);
  };
  for (const auto& [address, info] : missing) {
    const Block* block = impl_->block_at(address);
    bool is_free = block && block->segment->block_pool->pool == &pool && goes(block);
    while (is_free && block->address + block->bytes < address + info.bytes) {
      block = block->next;
      is_free = block && goes(block);
    }
    if (!is_free) {
      throw InvalidArgument("restore_pool: the memory of a block of the checkpoint is not free");
    }
  }
  std::vector<Address> freed;
  for (Block* block : extra) {
    freed.push_back(block->address);
    impl_->free_live(block, 0);
  }
  for (const auto& [address, info] : missing) impl_->carve(info);
  return freed;
}

// An allocated block at exactly these addresses, which are free: restore_pool() has checked it.
void CachingAllocator::Impl::carve(const BlockInfo& info) {
  reserve_blocks();
  Block* block = block_at(info.address);
  Segment& segment = *block->segment;
  FreeIndex& index = segment.block_pool->free;
  const bool is_small = segment.is_small;
  index.erase(block);
  std::int64_t net_blocks = block->is_split() ? -1 : 0;
  auto net_bytes = block->is_split() ? -static_cast<std::int64_t>(block->bytes) : 0;
  const auto leave = [&](const Block* piece) {
    net_blocks += 1;
    net_bytes += static_cast<std::int64_t>(piece->bytes);
  };
  if (info.address > block->address) {
    Block* before = split(block, info.address - block->address);
    index.erase(block);
    index_insert(before);
    leave(before);
  }
  if (info.bytes < block->bytes) {
    Block* behind = block;
    block = split(block, info.bytes);
    leave(behind);
  }
  if (!segment.is_expandable) {
    counters.change(Counters::kInactiveSplit, is_small, net_blocks);
    counters.change(Counters::kInactiveSplitBytes, is_small, net_bytes);
  }
  book_allocation(block, info.requested_bytes, info.context);
}

}  // namespace npusim::alloc
