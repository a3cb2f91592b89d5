// SPDX-License-Identifier: BSD-3-Clause
// adopt(): an allocator that begins in the middle of a run, with segments and blocks that another
// one made. Everything is checked before anything is taken over.
#include <algorithm>
#include <string>

#include "allocator/bytes.h"
#include "allocator/engine.h"
#include "allocator/error.h"

namespace npusim::alloc {

using Lock = std::lock_guard<WordLock>;

namespace {

[[noreturn]] void reject(const SegmentInfo& segment, const std::string& why) {
  throw InvalidArgument("adopt: the segment at " + std::to_string(segment.address) + " " + why);
}

void check(const SegmentInfo& segment, const Config& config) {
  if (segment.blocks.empty()) reject(segment, "has no blocks");
  Address at = segment.address;
  BlockState before = BlockState::unused;
  for (const BlockInfo& block : segment.blocks) {
    const bool is_free = block.state == BlockState::free;
    const bool is_unmapped = segment.is_expandable && block.state == BlockState::unmapped;
    if (block.address != at) reject(segment, "is not tiled by its blocks");
    if (block.bytes == 0 || block.bytes % config.quantum_bytes != 0) {
      reject(segment, "has a block of " + std::to_string(block.bytes) +
                          " bytes; expected a multiple of quantum_bytes");
    }
    if (is_free && before == BlockState::free) {
      reject(segment, "has two free blocks side by side");
    }
    before = block.state;
    at += block.bytes;
    if (is_unmapped) continue;
    if (!is_free && block.state != BlockState::allocated) {
      reject(segment, "has a block that is neither free nor allocated");
    }
    if (!is_free && (block.requested_bytes == 0 || block.requested_bytes > block.bytes)) {
      reject(segment, "has a block of " + std::to_string(block.bytes) + " bytes for a request of " +
                          std::to_string(block.requested_bytes));
    }
  }
  if (at != segment.address + segment.total_bytes) reject(segment, "is not tiled by its blocks");
}

// mapped_bytes() is what a segment has of the device: of an expandable one not all its addresses.
std::int64_t mapped_bytes(const SegmentInfo& segment) {
  std::int64_t bytes = 0;
  for (const BlockInfo& block : segment.blocks) {
    if (block.state != BlockState::unmapped) bytes += signed_bytes(block.bytes);
  }
  return bytes;
}

}  // namespace

void CachingAllocator::Impl::adopt(const SegmentInfo& info, const AdoptionVisitor& visit) {
  MemoryPool& pool = info.pool.is_default() ? *default_pool : pool_with_users(info.pool, "adopt");
  const bool is_small = !info.is_large;
  Segment& segment = segments[info.address];
  segment = {.address = info.address,
             .bytes = info.total_bytes,
             .registration = info.registration,
             .stream = info.stream,
             .is_small = is_small,
             .is_expandable = info.is_expandable,
             .block_pool = &block_pool_of(pool, info.stream, is_small),
             .first = nullptr,
             .context = info.context};
  ++pool.segments;
  next_registration = info.registration + 1;
  if (!info.is_expandable) counters.increase(Counters::kSegment, is_small, 1);
  book_reserved(pool, is_small, mapped_bytes(info));
  if (!info.is_expandable && info.total_bytes >= config.max_split_bytes)
    counters.oversize_segments.increase(1);
  Block* before = nullptr;
  for (const BlockInfo& block_info : info.blocks) {
    reserve_blocks();
    Block* block = new_block();
    block->address = block_info.address;
    block->bytes = block_info.bytes;
    block->stream = info.stream;
    block->segment = &segment;
    block->order = block_order(segment, block_info.order);
    next_creation = std::max(next_creation, block_info.order + 1);
    block->prev = before;
    block->next = nullptr;
    (before ? before->next : segment.first) = block;
    before = block;
    const std::int64_t bytes = signed_bytes(block->bytes);
    if (block_info.state == BlockState::unmapped) {
      block->state = BlockState::unmapped;
      segment.block_pool->unmapped.emplace(block->address, block);
      continue;
    }
    if (block_info.state == BlockState::free) {
      index_insert(block);
      if (info.blocks.size() == 1 || info.is_expandable) continue;
      counters.increase(Counters::kInactiveSplit, is_small, 1);
      counters.increase(Counters::kInactiveSplitBytes, is_small, bytes);
      continue;
    }
    block->state = BlockState::allocated;
    block->requested_bytes = block_info.requested_bytes;
    block->context = block_info.context;
    counters.increase(Counters::kAllocation, is_small, 1);
    counters.increase(Counters::kAllocatedBytes, is_small, bytes);
    counters.increase(Counters::kActive, is_small, 1);
    counters.increase(Counters::kActiveBytes, is_small, bytes);
    counters.increase(Counters::kRequestedBytes, is_small,
                      signed_bytes(block_info.requested_bytes));
    if (block->bytes >= config.max_split_bytes) counters.oversize_allocations.increase(1);
    visit(block_info, block);
  }
}

void CachingAllocator::adopt(std::vector<SegmentInfo> given, const AdoptionVisitor& visit) {
  const Lock lock(impl_->mutex);
  std::sort(given.begin(), given.end(), [](const SegmentInfo& a, const SegmentInfo& b) {
    return a.registration < b.registration;
  });
  std::int64_t last = impl_->next_registration - 1;
  for (const SegmentInfo& segment : given) {
    check(segment, impl_->config);
    if (segment.registration <= last) {
      reject(segment, "has the order " + std::to_string(segment.registration) +
                          ", which another one has; give each its own");
    }
    last = segment.registration;
    if (!segment.pool.is_default()) impl_->pool_with_users(segment.pool, "adopt");
  }
  for (const SegmentInfo& segment : given) impl_->adopt(segment, visit);
}

}  // namespace npusim::alloc
