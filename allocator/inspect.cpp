// SPDX-License-Identifier: BSD-3-Clause
// Reading the allocator: statistics, history, address lookup and the snapshot.
#include <cmath>

#include "allocator/engine.h"
#include "allocator/error.h"

namespace npusim::alloc {

using Lock = std::lock_guard<WordLock>;

const char* action_name(HistoryAction action) noexcept {
  constexpr const char* names[] = {
      "alloc",        "free_requested", "free_completed",  "segment_alloc",
      "segment_free", "segment_map",    "segment_unmap",   "oom",
      "snapshot",     "empty_cache",    "segment_reserve", "retry",
      "pool_retain",  "pool_release",   "memory_fraction"};
  return names[static_cast<std::size_t>(action)];
}

std::size_t fraction_bits(double fraction) noexcept {
  return static_cast<std::size_t>(std::ceil(std::ldexp(fraction, 32)));
}

const char* state_name(BlockState state) noexcept {
  switch (state) {
    case BlockState::allocated:
      return "active_allocated";
    case BlockState::pending:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

Block* CachingAllocator::Impl::block_at(Address address) const {
  auto it = segments.upper_bound(address);
  if (it == segments.begin()) return nullptr;
  const Segment& segment = std::prev(it)->second;
  if (address - segment.address >= segment.bytes) return nullptr;
  Block* block = segment.first;
  while (address - block->address >= block->bytes) block = block->next;
  return block;
}

namespace {

void add_block(SegmentInfo& info, const Block& block) {
  info.blocks.push_back(
      {block.address, block.bytes, block.requested_bytes, block.state, block.context, block.order});
  info.total_bytes += block.bytes;
  if (block.state == BlockState::allocated) info.allocated_bytes += block.bytes;
  if (block.state == BlockState::free) return;
  info.active_bytes += block.bytes;
  info.requested_bytes += block.requested_bytes;
}

}  // namespace

Snapshot CachingAllocator::Impl::picture() {
  Snapshot out;
  for (const auto& [address, segment] : segments) {
    bool in_run = false;  // of mapped blocks: one SegmentInfo each
    for (const Block* block = segment.first; block; block = block->next) {
      const bool is_mapped = block->state != BlockState::unmapped;
      if (is_mapped && !in_run) {
        out.segments.push_back({.address = block->address,
                                .stream = segment.stream,
                                .is_large = !segment.is_small,
                                .is_expandable = segment.is_expandable,
                                .pool = segment.block_pool->pool->id,
                                .registration = segment.registration,
                                .context = segment.context,
                                .blocks = {}});
      }
      in_run = is_mapped;
      if (is_mapped) add_block(out.segments.back(), *block);
    }
  }
  for (auto& [id, pool] : pools) {
    for (const bool is_small : {true, false}) {
      for (const Block* block : free_blocks(pool, is_small)) {
        out.free_order.push_back(block->address);
      }
    }
  }
  out.pools = pool_infos();
  out.history = history.entries();
  out.history_dropped = history.dropped();
  const bool unlimited = config.max_split_bytes == kUnlimited;
  out.stats = counters.stats(unlimited ? -1 : static_cast<std::int64_t>(config.max_split_bytes));
  out.config = config;
  return out;
}

Snapshot CachingAllocator::snapshot() {
  const Lock lock(impl_->mutex);
  impl_->record(HistoryAction::snapshot, 0,
                static_cast<std::size_t>(impl_->counters.current(Counters::kActiveBytes)), 0, 0,
                {});
  return impl_->picture();
}

Snapshot CachingAllocator::inspect() const {
  const Lock lock(impl_->mutex);
  return impl_->picture();
}

Block* CachingAllocator::find(Address address) const {
  const Lock lock(impl_->mutex);
  Block* block = impl_->block_at(address);
  const bool live = block && block->address == address && block->state == BlockState::allocated;
  return live ? block : nullptr;
}

void CachingAllocator::set_memory_fraction(double fraction) {
  const Lock lock(impl_->mutex);
  impl_->set_fraction(fraction);
  impl_->record(HistoryAction::memory_fraction, 0, fraction_bits(fraction), 0, 0, {});
}

double CachingAllocator::memory_fraction() const {
  const Lock lock(impl_->mutex);
  return impl_->memory_fraction;
}

const Config& CachingAllocator::config() const noexcept { return impl_->config; }

// Takes what there is out of the counters of oversize blocks (sign: -1), or puts it in.
void CachingAllocator::Impl::count_oversize(std::int64_t sign) {
  for (const auto& [address, segment] : segments) {
    const bool is_large = segment.bytes >= config.max_split_bytes && !segment.is_expandable;
    counters.oversize_segments.change(is_large ? sign : 0);
    for (const Block* block = segment.first; block; block = block->next) {
      const bool counts = block->state == BlockState::allocated;
      const bool is_oversize = counts && block->bytes >= config.max_split_bytes;
      counters.oversize_allocations.change(is_oversize ? sign : 0);
    }
  }
}

void CachingAllocator::change_config(const Config& config) {
  const Lock lock(impl_->mutex);
  Impl& impl = *impl_;
  Config next = impl.config;
  next.roundup_power2_divisions = config.roundup_power2_divisions;
  next.max_split_bytes = config.max_split_bytes;
  next.max_non_split_rounding_bytes = config.max_non_split_rounding_bytes;
  next.garbage_collection_threshold = config.garbage_collection_threshold;
  next.expandable_segments = config.expandable_segments;
  if (next != config) {
    throw InvalidArgument(
        "allocator config: the allocator is in use already; only roundup_power2_divisions, "
        "max_split_size_mb, max_non_split_rounding_mb, garbage_collection_threshold and "
        "expandable_segments change then");
  }
  impl.require_mappable(validate(next));
  impl.count_oversize(-1);
  impl.has_both_kinds |= next.expandable_segments != impl.config.expandable_segments;
  impl.config = next;
  impl.plain_rounding = rounds_plainly(next);
  impl.count_oversize(1);
  for (auto& [id, pool] : impl.pools) pool.is_expandable = impl.expands(pool);
}

Stats CachingAllocator::stats() const {
  const Lock lock(impl_->mutex);
  const std::size_t limit = impl_->config.max_split_bytes;
  return impl_->counters.stats(limit == kUnlimited ? -1 : static_cast<std::int64_t>(limit));
}

AllocatorTotals CachingAllocator::totals() const noexcept {
  const Counters& counters = impl_->counters;
  return {counters.current(Counters::kReservedBytes), counters.current(Counters::kActiveBytes),
          counters.current(Counters::kAllocatedBytes), counters.current(Counters::kRequestedBytes)};
}

void CachingAllocator::reset_peak_stats() {
  const Lock lock(impl_->mutex);
  impl_->counters.reset_peak();
}

void CachingAllocator::reset_accumulated_stats() {
  const Lock lock(impl_->mutex);
  impl_->counters.reset_accumulated();
}

std::size_t CachingAllocator::largest_free_block() const {
  const Lock lock(impl_->mutex);
  return impl_->largest_free_block();
}

void CachingAllocator::record_history(HistoryMode mode, std::size_t max_entries) {
  const Lock lock(impl_->mutex);
  impl_->history_mode = mode;
  impl_->history.set_capacity(mode == HistoryMode::all ? max_entries : 0);
  impl_->record_pools();
}

void CachingAllocator::clear_history() {
  const Lock lock(impl_->mutex);
  impl_->history.clear();
  impl_->record_pools();
}

}  // namespace npusim::alloc
