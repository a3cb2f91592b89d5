// SPDX-License-Identifier: BSD-3-Clause
// Expandable segments. A segment is a range of addresses larger than the device; its pages get
// memory when a request needs them and lose it when they are free and memory is short:
//
//   range  |== live ==|-- free --|== live ==|-- free --|........ unmapped ........|
//                                               `--- grows to the right by whole pages
//
// Blocks tile the range as they tile any segment. Pages are as large as the segments that the size
// class would have bought otherwise.
#include <algorithm>
#include <set>
#include <utility>

#include "allocator/bytes.h"
#include "allocator/engine.h"

namespace npusim::alloc {

namespace {

bool is_unmapped(const Block* block) { return block && block->state == BlockState::unmapped; }

bool has_room(const Block* block) {
  return block && (block->state == BlockState::free || block->state == BlockState::unmapped);
}

// reach() is how large a free block can become: itself and the unmapped addresses behind it.
std::size_t reach(const Block* block) {
  return block->bytes + (is_unmapped(block->next) ? block->next->bytes : 0);
}

std::size_t page_bytes(const Config& config, bool is_small) {
  return is_small ? config.small_segment_bytes : config.large_segment_bytes;
}

}  // namespace

// The block that could grow furthest is the last choice: a hole of fixed size comes first, even if
// it is larger. As upstream, the walk stops at the first neighbour in order that is no better.
Block* CachingAllocator::Impl::prefer_bounded(FreeIndex& index, Block* block) {
  while (is_unmapped(block->next)) {
    Block* after = index.after(block);
    if (!after || reach(after) >= reach(block)) break;
    block = after;
  }
  return block;
}

Block* CachingAllocator::Impl::grow(const Request& request) {
  const std::size_t wanted = request.rounded_bytes;
  Block* block = find_room(request);
  if (!block) return nullptr;
  if (is_unmapped(block) && !map_pages(block, std::min(block->bytes, wanted), request)) {
    return nullptr;
  }
  // What is mapped before a failure stays, as cached memory.
  while (block->bytes < wanted) {
    Block* next = block->next;
    if (!map_pages(next, std::min(wanted - block->bytes, next->bytes), request)) return nullptr;
    block = next;
  }
  request.block_pool->free.erase(block);
  return block;
}

// The lowest addresses with enough room, mapped or not; a new range where there are none.
Block* CachingAllocator::Impl::find_room(const Request& request) {
  for (const auto& [address, unmapped] : request.block_pool->unmapped) {
    Block* first = has_room(unmapped->prev) ? unmapped->prev : unmapped;
    std::size_t room = 0;
    for (const Block* at = first; room < request.rounded_bytes && has_room(at); at = at->next) {
      room += at->bytes;
    }
    if (room >= request.rounded_bytes) return first;
  }
  return reserve_range(request);
}

// A range of 9/8 of the device: pages given back in its middle can come again at its end.
Block* CachingAllocator::Impl::reserve_range(const Request& request) {
  const std::size_t total = provider.memory_info().total_bytes;
  const std::size_t bytes = round_up(total + total / 8, page_bytes(config, request.is_small));
  if (request.rounded_bytes > bytes) {
    note_failure({0, SegmentResult::Status::device_full, {}});
    return nullptr;
  }
  SegmentResult result = provider.reserve_range(bytes);
  if (result.status != SegmentResult::Status::ok) {
    note_failure(std::move(result));
    return nullptr;
  }
  record(HistoryAction::segment_reserve, result.address, bytes, request.stream, request.context,
         request.block_pool->pool->id);
  Block* block = new_segment(request, result.address, bytes);
  block->segment->is_expandable = true;
  block->requested_bytes = 0;
  block->state = BlockState::unmapped;
  block->context = 0;
  request.block_pool->unmapped.emplace(block->address, block);
  return block;
}

// Maps whole pages from the start of an unmapped block on; it becomes a free block, merged with its
// neighbours, and what was not mapped a block of its own.
bool CachingAllocator::Impl::map_pages(Block* block, std::size_t bytes, const Request& request) {
  BlockPool& block_pool = *request.block_pool;
  bytes = round_up(bytes, page_bytes(config, block_pool.is_small));
  const Address address = block->address;
  SegmentResult result = provider.map(address, bytes);
  if (result.status != SegmentResult::Status::ok) {
    note_failure(std::move(result));
    return false;
  }
  block_pool.unmapped.erase(address);
  if (bytes < block->bytes) {
    Block* rest = new_block();
    rest->address = address + bytes;
    rest->bytes = block->bytes - bytes;
    rest->requested_bytes = 0;
    rest->stream = block->stream;
    rest->segment = block->segment;
    rest->order = block_order(*block->segment, next_creation++);
    rest->state = BlockState::unmapped;
    rest->context = 0;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next) rest->next->prev = rest;
    block->next = rest;
    block->bytes = bytes;
    block_pool.unmapped.emplace(rest->address, rest);
  }
  merge(block, block->prev);
  merge(block, block->next);
  index_insert(block);
  book_reserved(*block_pool.pool, block_pool.is_small, signed_bytes(bytes));
  ++counters.num_device_alloc;
  record(HistoryAction::segment_map, address, bytes, block->stream, request.context,
         block_pool.pool->id);
  if (!block->prev && block->segment->context == 0 && history_mode != HistoryMode::off) {
    block->segment->context = request.context;
  }
  return true;
}

// Gives back every whole page inside the free blocks. Waits for the streams of these blocks first,
// as upstream does: what other streams did with a block was over before it became free.
void CachingAllocator::Impl::unmap_free_pages(const std::vector<Block*>& blocks) {
  const auto whole_pages = [this](const Block& block) {
    const Segment& segment = *block.segment;
    const std::size_t page = page_bytes(config, segment.is_small);
    const std::size_t offset = block.address - segment.address;
    return std::pair(segment.address + round_up(offset, page),
                     segment.address + (offset + block.bytes) / page * page);
  };
  std::set<StreamId> streams;
  for (const Block* block : blocks) {
    const auto [begin, end] = whole_pages(*block);
    if (begin < end) streams.insert(block->stream);
  }
  for (StreamId stream : streams) provider.wait(provider.mark(stream));
  for (Block* block : blocks) {
    const auto [begin, end] = whole_pages(*block);
    if (begin >= end) continue;
    reserve_blocks();
    unmap_pages(block, begin, end);
  }
}

void CachingAllocator::Impl::unmap_pages(Block* block, Address begin, Address end) {
  const Segment& segment = *block->segment;
  BlockPool& block_pool = *segment.block_pool;
  block_pool.free.erase(block);
  // What is left of the block before and behind the pages stays free.
  const auto cut = [&](Address from, Address to, Block* before, Block* behind) {
    if (from == to) return;
    Block* part = new_block();
    part->address = from;
    part->bytes = to - from;
    part->stream = block->stream;
    part->segment = block->segment;
    part->order = block_order(segment, next_creation++);
    part->prev = before;
    part->next = behind;
    (before ? before->next : block->segment->first) = part;
    if (behind) behind->prev = part;
    index_insert(part);
  };
  cut(block->address, begin, block->prev, block);
  cut(end, block->address + block->bytes, block, block->next);
  block->address = begin;
  block->bytes = end - begin;
  block->state = BlockState::unmapped;
  for (Block* neighbour : {block->prev, block->next}) {
    if (!is_unmapped(neighbour)) continue;
    block_pool.unmapped.erase(neighbour->address);
    absorb(block, neighbour);
  }
  block_pool.unmapped.emplace(block->address, block);
  book_reserved(*block_pool.pool, block_pool.is_small, -signed_bytes(end - begin));
  ++counters.num_device_free;
  record(HistoryAction::segment_unmap, begin, end - begin, block->stream, reclaim_context,
         block_pool.pool->id);
  provider.unmap(begin, end - begin);
  if (!block->is_split()) release_range(block);
}

void CachingAllocator::Impl::release_range(Block* block) {
  const Segment& segment = *block->segment;
  segment.block_pool->unmapped.erase(block->address);
  --segment.block_pool->pool->segments;
  provider.release_range(segment.address, segment.bytes);
  segments.erase(segment.address);
  recycle(block);
}

}  // namespace npusim::alloc
