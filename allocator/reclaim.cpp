// SPDX-License-Identifier: BSD-3-Clause
// The cold path: buying segments, and what is given back before a request fails. The order of the
// attempts is upstream's; the one repaired step is a switch of the Config (search_after_sync).
#include <algorithm>
#include <cmath>
#include <iterator>

#include "allocator/engine.h"
#include "allocator/error.h"

namespace npusim::alloc {

namespace {

std::int64_t signed_bytes(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

}  // namespace

void CachingAllocator::Impl::set_fraction(double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    throw InvalidArgument("memory fraction is " + std::to_string(fraction) + "; expected 0 to 1");
  }
  if (fraction < 1.0) {
    const auto total = static_cast<double>(provider.memory_info().total_bytes);
    allowed_bytes = static_cast<std::size_t>(std::llround(fraction * total));
  } else {
    allowed_bytes = kUnlimited;
  }
  memory_fraction = fraction;
}

Block* CachingAllocator::Impl::acquire_or_reclaim(const Request& request) {
  if (limited() && config.garbage_collection_threshold > 0) collect_garbage();
  if (Block* block = buy_segment(request, false)) return block;
  if (release_oversize(request)) {
    if (Block* block = buy_segment(request, false)) return block;
  }
  wait_for_pending();
  if (config.search_after_sync) {
    if (Block* block = take_free_block(request)) return block;
  }
  release_free_segments();
  if (Block* block = buy_segment(request, true)) return block;
  fail(request, last_cause);
  return nullptr;
}

Block* CachingAllocator::Impl::buy_segment(const Request& request, bool is_retry) {
  if (is_retry) ++ledger.num_alloc_retries;
  const std::size_t bytes = segment_bytes_for(config, request.rounded_bytes);
  const auto reserved = static_cast<std::size_t>(ledger.current(Ledger::kReservedBytes));
  last_reason.clear();
  if (limited() && reserved + bytes > allowed_bytes) {
    last_cause = OutOfMemoryReport::Cause::over_limit;
    return nullptr;
  }
  SegmentResult result = provider.acquire_segment(bytes);
  if (result.status != SegmentResult::Status::ok) {
    last_cause = result.status == SegmentResult::Status::host_full
                     ? OutOfMemoryReport::Cause::host_full
                     : OutOfMemoryReport::Cause::device_full;
    last_reason = std::move(result.reason);
    return nullptr;
  }
  Segment& segment = segments[result.address];
  Block* block = new_block();
  segment = {.address = result.address,
             .bytes = bytes,
             .registration = next_registration++,
             .stream = request.stream,
             .is_small = request.is_small,
             .free_index = request.free_index,
             .first = block,
             .context = history_mode == HistoryMode::off ? 0 : request.context};
  block->address = segment.address;
  block->bytes = bytes;
  block->stream = segment.stream;
  block->segment = &segment;
  block->prev = block->next = nullptr;
  block->order = config.tie_break == TieBreak::registration ? segment.registration : 0;
  block->state = BlockState::free;
  ledger.increase(Ledger::kSegment, segment.is_small, 1);
  ledger.increase(Ledger::kReservedBytes, segment.is_small, signed_bytes(bytes));
  if (bytes >= config.max_split_bytes) ledger.oversize_segments.increase(1);
  ++ledger.num_device_alloc;
  record(HistoryAction::segment_alloc, segment.address, bytes, segment.stream, request.context);
  return block;
}

void CachingAllocator::Impl::release(const std::vector<Block*>& whole_segments) {
  if (whole_segments.empty()) return;
  provider.synchronize();
  for (Block* block : whole_segments) {
    const Segment& segment = *block->segment;
    segment.free_index->erase(block);
    record(HistoryAction::segment_free, segment.address, segment.bytes, segment.stream, 0);
    ledger.decrease(Ledger::kSegment, segment.is_small, 1);
    ledger.decrease(Ledger::kReservedBytes, segment.is_small, signed_bytes(segment.bytes));
    if (segment.bytes >= config.max_split_bytes) ledger.oversize_segments.decrease(1);
    ++ledger.num_device_free;
    provider.release_segment(segment.address, segment.bytes);
    recycle(block);
    segments.erase(segment.address);
  }
}

std::vector<Block*> CachingAllocator::Impl::free_blocks(bool is_small) {
  std::vector<Block*> blocks;
  for (auto& [stream, pair] : pools) {
    const std::vector<Block*> of_stream = pair.of(is_small).in_order();
    blocks.insert(blocks.end(), of_stream.begin(), of_stream.end());
  }
  return blocks;
}

// One block that is large enough, or else the largest ones until together they are.
bool CachingAllocator::Impl::release_oversize(const Request& request) {
  if (config.max_split_bytes == kUnlimited) return false;
  const std::size_t wanted = std::max(request.rounded_bytes, config.max_split_bytes);
  if (Block* block = request.free_index->best(wanted); block && !block->is_split()) {
    release({block});
    return true;
  }
  std::vector<Block*> chosen;
  std::size_t chosen_bytes = 0;
  const std::vector<Block*> blocks = request.free_index->in_order();
  for (auto it = blocks.rbegin(); it != blocks.rend() && chosen_bytes < wanted; ++it) {
    if ((*it)->bytes < config.max_split_bytes) break;
    if ((*it)->is_split()) continue;
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
  const auto reserved = static_cast<std::size_t>(ledger.current(Ledger::kReservedBytes));
  if (reserved <= threshold) return;
  const auto age = [this](const Block* block) { return searches[0] - block->idle_since; };
  std::vector<Block*> candidates = free_blocks(false);
  std::erase_if(candidates, [](const Block* block) { return block->is_split(); });
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

void CachingAllocator::Impl::wait_for_pending() {
  ++ledger.num_sync_all_streams;
  while (!pending.empty()) {
    std::deque<Pending>& queue = pending.begin()->second;
    provider.wait(queue.front().ticket);  // may throw: the entry is still there
    Block* block = queue.front().block;
    queue.pop_front();
    --pending_count;
    if (queue.empty()) pending.erase(pending.begin());
    if (--block->pending_marks == 0) release_to_pool(block, 0);
  }
}

void CachingAllocator::Impl::release_free_segments() {
  std::vector<Block*> blocks = free_blocks(false);
  const std::vector<Block*> small = free_blocks(true);
  blocks.insert(blocks.end(), small.begin(), small.end());
  std::erase_if(blocks, [](const Block* block) { return block->is_split(); });
  release(blocks);
}

std::size_t CachingAllocator::Impl::largest_free_block() {
  std::size_t largest = 0;
  for (const auto& [address, segment] : segments) {
    for (const Block* block = segment.first; block; block = block->next) {
      if (block->state == BlockState::free) largest = std::max(largest, block->bytes);
    }
  }
  return largest;
}

void CachingAllocator::Impl::fail(const Request& request, OutOfMemoryReport::Cause cause) {
  const MemoryInfo memory = provider.memory_info();
  if (cause != OutOfMemoryReport::Cause::over_one_exabyte) {
    record(HistoryAction::oom, memory.free_bytes, request.rounded_bytes, request.stream,
           request.context);
    ++ledger.num_ooms;
  }
  if (!request.report) return;
  const auto current = [this](Ledger::Quantity what) {
    return static_cast<std::size_t>(ledger.current(what));
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
  report.allocated_bytes = current(Ledger::kAllocatedBytes);
  report.reserved_bytes = current(Ledger::kReservedBytes);
  report.cached_bytes = report.reserved_bytes - current(Ledger::kActiveBytes);
  report.pending_bytes = current(Ledger::kActiveBytes) - report.allocated_bytes;
  report.largest_free_bytes = largest_free_block();
  report.reason = cause == OutOfMemoryReport::Cause::over_one_exabyte ? "" : last_reason;
}

}  // namespace npusim::alloc
