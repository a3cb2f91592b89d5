// SPDX-License-Identifier: BSD-3-Clause
// The cold path: buying segments, and what is given back before a request fails. The order of the
// attempts is upstream's; the one repaired step is a switch of the Config (search_after_sync).
#include <algorithm>
#include <iterator>

#include "allocator/bytes.h"
#include "allocator/engine.h"

namespace npusim::alloc {

void CachingAllocator::Impl::set_fraction(double fraction) {
  allowed_bytes = fraction_limit(fraction, provider.memory_info().total_bytes);
  memory_fraction = fraction;
}

// Attempts in order, from cheap to expensive; each costs more of the cache than the one before:
// collection (only with a threshold), a new segment, a block of a pool that lends, oversize
// segments, everything pending, the whole cache. Only the last failure is reported.
Block* CachingAllocator::Impl::acquire_or_reclaim(Request& request) {
  reclaim_context = request.context;
  if (limited() && config.garbage_collection_threshold > 0) collect_garbage();
  if (Block* block = buy_segment(request, false)) return block;
  if (Block* block = borrow(request)) return block;
  if (release_oversize(request)) {
    if (Block* block = buy_segment(request, false)) return block;
  }
  if (defers()) {
    fail(request, last_cause);
    return nullptr;
  }
  record_retry(request);
  wait_for_pending();
  if (config.search_after_sync) {
    if (Block* block = take_free_block(request)) return block;
  }
  release_free_memory(*default_pool);
  release_unused_pools(nullptr);
  reserve_blocks();  // unmapping may have used some
  if (Block* block = buy_segment(request, true)) return block;
  fail(request, last_cause);
  return nullptr;
}

void CachingAllocator::Impl::record_retry(const Request& request) {
  record(HistoryAction::retry, 0, request.requested_bytes, request.stream, request.context,
         request.block_pool->pool->id);
}

// Null if the limit or the provider refuses; the reason stays in last_cause and last_reason.
Block* CachingAllocator::Impl::buy_segment(const Request& request, bool is_retry) {
  if (is_retry) ++counters.num_alloc_retries;
  const std::size_t bytes = segment_bytes_for(config, request.rounded_bytes);
  const auto reserved = static_cast<std::size_t>(counters.current(Counters::kReservedBytes));
  last_reason.clear();
  if (limited() && reserved + bytes > allowed_bytes) {
    last_cause = OutOfMemoryReport::Cause::over_limit;
    return nullptr;
  }
  if (bytes < request.rounded_bytes) {  // wrapped, where refuse_over_one_exabyte is off
    last_cause = OutOfMemoryReport::Cause::device_full;
    return nullptr;
  }
  return request.is_expandable ? grow(request) : buy_whole_segment(request, bytes);
}

void CachingAllocator::Impl::note_failure(SegmentResult&& result) {
  last_cause = result.status == SegmentResult::Status::ram_full
                   ? OutOfMemoryReport::Cause::ram_full
                   : OutOfMemoryReport::Cause::device_full;
  last_reason = std::move(result.reason);
}

// Private pools count their reserved bytes as well, for reserved_bytes_by_private_pools.
void CachingAllocator::Impl::book_reserved(MemoryPool& pool, bool is_small,
                                           std::int64_t net_bytes) {
  counters.change(Counters::kReservedBytes, is_small, net_bytes);
  if (pool.id.is_default()) return;
  pool.reserved[0].change(net_bytes);
  pool.reserved[is_small ? 1 : 2].change(net_bytes);
}

// A segment for the request, with one block of all of it.
Block* CachingAllocator::Impl::new_segment(const Request& request, Address address,
                                           std::size_t bytes) {
  Segment& segment = segments[address];
  Block* block = new_block();
  segment = {.address = address,
             .bytes = bytes,
             .registration = next_registration++,
             .stream = request.stream,
             .is_small = request.is_small,
             .is_expandable = false,
             .block_pool = request.block_pool,
             .first = block,
             .context = 0};
  ++request.block_pool->pool->segments;
  block->address = address;
  block->bytes = bytes;
  block->stream = segment.stream;
  block->segment = &segment;
  block->prev = block->next = nullptr;
  block->order = block_order(segment, next_creation++);
  return block;
}

Block* CachingAllocator::Impl::buy_whole_segment(const Request& request, std::size_t bytes) {
  MemoryPool& pool = *request.block_pool->pool;
  SegmentResult result = pool.provider->acquire_segment(bytes);
  if (result.status != SegmentResult::Status::ok) {
    note_failure(std::move(result));
    return nullptr;
  }
  Block* block = new_segment(request, result.address, bytes);
  Segment& segment = *block->segment;
  segment.context = history_mode == HistoryMode::off ? 0 : request.context;
  block->state = BlockState::free;
  counters.increase(Counters::kSegment, segment.is_small, 1);
  book_reserved(pool, segment.is_small, signed_bytes(bytes));
  if (bytes >= config.max_split_bytes) counters.oversize_segments.increase(1);
  ++counters.num_device_alloc;
  record(HistoryAction::segment_alloc, segment.address, bytes, segment.stream, request.context,
         pool.id);
  return block;
}

// Gives segments back to the provider. Kernels may still read their memory, so the device is
// synchronised first, once for all of them. Each block must cover its segment.
void CachingAllocator::Impl::release(const std::vector<Block*>& whole_segments) {
  if (whole_segments.empty()) return;
  provider.synchronize();
  for (Block* block : whole_segments) {
    const Segment& segment = *block->segment;
    MemoryPool& pool = *segment.block_pool->pool;
    segment.block_pool->free.erase(block);
    record(HistoryAction::segment_free, segment.address, segment.bytes, segment.stream,
           reclaim_context, pool.id);
    counters.decrease(Counters::kSegment, segment.is_small, 1);
    book_reserved(pool, segment.is_small, -signed_bytes(segment.bytes));
    if (segment.bytes >= config.max_split_bytes) counters.oversize_segments.decrease(1);
    ++counters.num_device_free;
    --pool.segments;
    pool.provider->release_segment(segment.address, segment.bytes);
    recycle(block);
    segments.erase(segment.address);
  }
}

// The order decides which segments go first, and history shows it.
std::vector<Block*> CachingAllocator::Impl::free_blocks(MemoryPool& pool, bool is_small) {
  std::vector<Block*> blocks;
  for (auto& [stream, stream_pools] : pool.streams) {
    const std::vector<Block*> of_stream = stream_pools.of(is_small).free.in_order();
    blocks.insert(blocks.end(), of_stream.begin(), of_stream.end());
  }
  return blocks;
}

// One block that is large enough, or else the largest ones until together they are.
bool CachingAllocator::Impl::release_oversize(const Request& request) {
  if (config.max_split_bytes == kUnlimited || request.is_expandable) return false;
  const std::size_t wanted = std::max(request.rounded_bytes, config.max_split_bytes);
  FreeIndex& index = request.block_pool->free;
  const auto is_whole = [](const Block* block) {
    return !block->is_split() && !block->segment->is_expandable;
  };
  if (Block* block = index.best(wanted); block && is_whole(block)) {
    release({block});
    return true;
  }
  std::vector<Block*> chosen;
  std::size_t chosen_bytes = 0;
  const std::vector<Block*> blocks = index.in_order();
  for (auto it = blocks.rbegin(); it != blocks.rend() && chosen_bytes < wanted; ++it) {
    if ((*it)->bytes < config.max_split_bytes) break;
    if (!is_whole(*it)) continue;
    chosen.push_back(*it);
    chosen_bytes += (*it)->bytes;
  }
  release(chosen);
  return chosen_bytes >= wanted;
}

// Whole large segments go, oldest first: each pass takes all that are at least as old as the
// average, until enough is reclaimed. A pass does not stop in the middle.
void CachingAllocator::Impl::collect_garbage() {
  const auto threshold = static_cast<std::size_t>(config.garbage_collection_threshold *
                                                  static_cast<double>(allowed_bytes));
  const auto reserved = static_cast<std::size_t>(counters.current(Counters::kReservedBytes));
  if (reserved <= threshold) return;
  if (default_pool->is_expandable && !has_both_kinds) return;
  const auto age = [this](const Block* block) {
    return default_pool->searches[0] - block->idle_since;
  };
  std::vector<Block*> candidates = free_blocks(*default_pool, false);
  std::erase_if(candidates, [](const Block* block) {
    return block->is_split() || block->segment->is_expandable;
  });
  std::size_t reclaimed = 0;
  while (reclaimed < reserved - threshold && !candidates.empty()) {
    std::uint64_t total_age = 0;
    for (const Block* block : candidates) total_age += age(block);
    const double average = static_cast<double>(total_age) / static_cast<double>(candidates.size());
    const auto is_old = [&](const Block* block) {
      return static_cast<double>(age(block)) >= average;
    };
    std::vector<Block*> victims;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(victims), is_old);
    std::erase_if(candidates, is_old);
    for (const Block* block : victims) reclaimed += block->bytes;
    release(victims);
  }
}

// Everything pending, or what is pending of one pool.
void CachingAllocator::Impl::wait_for_pending(const MemoryPool* only) {
  if (defers()) return;
  mark_deferred();
  ++counters.num_sync_all_streams;
  for (auto it = pending.begin(); it != pending.end();) {
    std::deque<Pending>& queue = it->second;
    for (std::size_t i = 0; i < queue.size();) {
      const auto [ticket, block] = queue[i];
      if (only && block->segment->block_pool->pool != only) {
        ++i;
        continue;
      }
      provider.wait(ticket);  // may throw: the entry is still there
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
      --pending_count;
      if (--block->pending_marks == 0) release_to_pool(block, 0);
    }
    it = queue.empty() ? pending.erase(it) : std::next(it);
  }
  complete_held(only);
}

// Frees of free_held() whose end the replay has not told: they end here, oldest first.
void CachingAllocator::Impl::complete_held(const MemoryPool* only) {
  for (auto it = held.begin(); it != held.end();) {
    Block* block = it->second;
    if (only && block->segment->block_pool->pool != only) {
      ++it;
      continue;
    }
    it = held.erase(it);
    release_to_pool(block, 0);
  }
}

// Upstream's order: large before small in the default pool, small before large in private ones.
void CachingAllocator::Impl::release_free_memory(MemoryPool& pool) {
  const bool small_first = !pool.id.is_default();
  std::vector<Block*> blocks = free_blocks(pool, small_first);
  const std::vector<Block*> others = free_blocks(pool, !small_first);
  blocks.insert(blocks.end(), others.begin(), others.end());
  std::vector<Block*> whole, mapped;
  for (Block* block : blocks) {
    if (block->segment->is_expandable) {
      mapped.push_back(block);
    } else if (!block->is_split()) {
      whole.push_back(block);
    }
  }
  release(whole);
  if (!mapped.empty()) unmap_free_pages(mapped);
}

// Walks all blocks: for reports only.
std::size_t CachingAllocator::Impl::largest_free_block() {
  std::size_t largest = 0;
  for (const auto& [address, segment] : segments) {
    for (const Block* block = segment.first; block; block = block->next) {
      if (block->state == BlockState::free) largest = std::max(largest, block->bytes);
    }
  }
  return largest;
}

// Books the failure and fills the caller's report. A request over one exabyte is refused before
// anything is counted, as upstream does.
void CachingAllocator::Impl::fail(const Request& request, OutOfMemoryReport::Cause cause) {
  const MemoryInfo memory = provider.memory_info();
  if (cause != OutOfMemoryReport::Cause::over_one_exabyte) {
    record(HistoryAction::oom, memory.free_bytes, request.rounded_bytes, request.stream,
           request.context, request.block_pool->pool->id);
    ++counters.num_ooms;
  }
  if (!request.report) return;
  const auto current = [this](Counters::Quantity what) {
    return static_cast<std::size_t>(counters.current(what));
  };
  OutOfMemoryReport& report = *request.report;
  report.cause = cause;
  report.requested_bytes = request.requested_bytes;
  report.segment_bytes = cause == OutOfMemoryReport::Cause::over_one_exabyte
                             ? request.requested_bytes
                             : segment_bytes_for(config, request.rounded_bytes);
  report.total_bytes = memory.total_bytes;
  report.free_bytes = memory.free_bytes;
  report.allowed_bytes.reset();
  if (limited()) report.allowed_bytes = allowed_bytes;
  report.allocated_bytes = current(Counters::kAllocatedBytes);
  report.reserved_bytes = current(Counters::kReservedBytes);
  report.cached_bytes = report.reserved_bytes - current(Counters::kActiveBytes);
  report.pending_bytes = current(Counters::kActiveBytes) - report.allocated_bytes;
  report.largest_free_bytes = largest_free_block();
  report.private_cached_bytes = 0;
  for (auto& [id, pool] : pools) {
    if (id.is_default()) continue;
    for (const bool is_small : {true, false}) {
      for (const Block* block : free_blocks(pool, is_small)) {
        report.private_cached_bytes += block->bytes;
      }
    }
  }
  report.reason = cause == OutOfMemoryReport::Cause::over_one_exabyte ? "" : last_reason;
}

}  // namespace npusim::alloc
