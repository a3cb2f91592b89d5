// SPDX-License-Identifier: BSD-3-Clause
// The hot path. Steps and bookkeeping happen in upstream's order: peaks and history show it.
#include "allocator/caching_allocator.h"

#include <algorithm>

#include "allocator/bytes.h"
#include "allocator/engine.h"
#include "allocator/error.h"

namespace npusim::alloc {

using Lock = std::lock_guard<WordLock>;

namespace {

const char* describe(BlockState state) {
  switch (state) {
    case BlockState::allocated:
      return "allocated";
    case BlockState::pending:
      return "freed already and waiting for other streams";
    default:
      return "freed already";
  }
}

}  // namespace

CachingAllocator::Impl::Impl(Provider& provider_in, const Config& config_in, Sharing sharing,
                             CachingAllocator* owner_in)
    : provider(provider_in),
      owner(owner_in),
      config(validate(config_in)),
      plain_rounding(rounds_plainly(config)),
      mutex(sharing == Sharing::threads) {
  require_mappable(config);
  set_fraction(config.memory_fraction);
  default_pool = &add_pool({}, {});
}

void CachingAllocator::Impl::require_mappable(const Config& wanted) const {
  if (wanted.expandable_segments && !provider.can_map()) {
    throw InvalidArgument(
        "allocator config: expandable_segments is True, but this device cannot map memory by the "
        "page; leave the key out");
  }
}

inline void CachingAllocator::Impl::record_block(HistoryAction action, const Block* block,
                                                 ContextId context) {
  if (history.recording()) [[unlikely]] {
    record(action, block->address, block->requested_bytes, block->stream, context,
           block->segment->block_pool->pool->id);
  }
}

// Runs when a call names another pool or stream than the last one, which block_pool_of() keeps.
void CachingAllocator::Impl::turn_to(MemoryPool& pool, StreamId stream) {
  last_stream_pools = &pool.streams.try_emplace(stream, config, &pool).first->second;
  last_pool = &pool;
  last_stream = stream;
}

// One malloc() makes at most three blocks: a new segment's, what remains of it unmapped, and the
// low part of a split. Unmapping the middle of one block makes two.
void CachingAllocator::Impl::reserve_blocks() {
  if (unused_count >= 3) return;
  slab.push_back(std::make_unique<std::array<Block, 256>>());
  for (Block& block : *slab.back()) {
    block.owner = owner;
    recycle(&block);
  }
}

Block* CachingAllocator::Impl::new_block() noexcept {
  Block* block = unused_blocks;
  unused_blocks = block->next;
  --unused_count;
  return block;
}

void CachingAllocator::Impl::recycle(Block* block) noexcept {
  if (!scope_uses.empty()) [[unlikely]] {
    scope_uses.erase(block);
  }
  block->state = BlockState::unused;
  block->next = unused_blocks;
  unused_blocks = block;
  ++unused_count;
}

void CachingAllocator::Impl::record(HistoryAction action, Address address, std::size_t bytes,
                                    StreamId stream, ContextId context, PoolId pool) {
  if (!history.recording()) [[likely]] {
    return;
  }
  history.add({action, address, bytes, stream, provider.now_ns(), context, pool});
}

// A block's age counts searches of its pool since it became free, not time: collect_garbage().
void CachingAllocator::Impl::index_insert(Block* block) {
  block->state = BlockState::free;
  block->requested_bytes = 0;
  block->context = 0;
  BlockPool& block_pool = *block->segment->block_pool;
  block->idle_since = block_pool.pool->searches[block_pool.is_small];
  block_pool.free.insert(block);
}

// Best fit in the block pool of the request, out of its index; or null.
Block* CachingAllocator::Impl::take_free_block(const Request& request) {
  if (limited() && config.garbage_collection_threshold > 0) {
    ++request.block_pool->pool->searches[request.is_small];
  }
  FreeIndex& index = request.block_pool->free;
  Block* block = index.find(request.rounded_bytes);
  if (has_both_kinds) [[unlikely]] {
    while (block && block->segment->is_expandable && !request.is_expandable) {
      block = index.after(block);
    }
  }
  if (!block) return nullptr;
  if (request.is_expandable) [[unlikely]] {
    if (config.fit == Fit::best) block = prefer_bounded(index, block);
  }
  // As upstream: when the best block is too large to use, no other is tried.
  const bool is_exempt = request.is_expandable && !config.oversize_rules_on_expandable;
  if (!is_exempt && !may_use(config, block->bytes, request.rounded_bytes)) return nullptr;
  index.erase(block);
  return block;
}

// The low `bytes` become a new block, which is returned; the rest keeps its record and goes to the
// index.
Block* CachingAllocator::Impl::split(Block* block, std::size_t bytes) {
  Block* low = new_block();
  low->address = block->address;
  low->bytes = bytes;
  low->stream = block->stream;
  low->segment = block->segment;
  low->order = block_order(*block->segment, next_creation++);
  low->prev = block->prev;
  low->next = block;
  (low->prev ? low->prev->next : low->segment->first) = low;
  block->prev = low;
  block->address += bytes;
  block->bytes -= bytes;
  index_insert(block);
  return low;
}

void CachingAllocator::Impl::book_allocation(Block* block, std::size_t requested_bytes,
                                             ContextId context) {
  const bool is_small = block->segment->is_small;
  block->state = BlockState::allocated;
  block->requested_bytes = requested_bytes;
  block->context = history_mode == HistoryMode::off ? 0 : context;
  record_block(HistoryAction::alloc, block, context);
  counters.increase(Counters::kAllocation, is_small, 1);
  counters.increase(Counters::kAllocatedBytes, is_small, signed_bytes(block->bytes));
  counters.increase(Counters::kActive, is_small, 1);
  counters.increase(Counters::kActiveBytes, is_small, signed_bytes(block->bytes));
  counters.increase(Counters::kRequestedBytes, is_small, signed_bytes(requested_bytes));
  if (block->bytes >= config.max_split_bytes) counters.oversize_allocations.increase(1);
}

// The statistic inactive_split counts free pieces of whole segments. Four cases: a split of a whole
// segment adds its tail; a split of a piece shrinks that piece; a piece that is used whole leaves;
// a whole segment that is used whole changes nothing.
Block* CachingAllocator::Impl::allocate(Request& request) {
  reserve_blocks();
  if (pending_count > 0) process_events();
  Block* block = take_free_block(request);
  if (!block) [[unlikely]] {
    block = acquire_or_reclaim(request);
    if (!block) return nullptr;
  }
  const MemoryPool& pool = *request.block_pool->pool;
  const bool was_split = block->is_split();
  const bool is_setting_enough = !config.expandable_in_pools && config.expandable_segments;
  const bool splits_finely = request.is_small || request.is_expandable || is_setting_enough;
  const bool has_pages = has_both_kinds ? block->segment->is_expandable : request.is_expandable;
  if (!pool.options.no_split &&
      should_split(config, splits_finely, block->bytes, request.rounded_bytes)) {
    Block* tail = block;
    block = split(block, request.rounded_bytes);
    if (has_pages) {
      // Not booked: what is free of an expandable segment can be given back by the page.
    } else if (was_split) {
      counters.decrease(Counters::kInactiveSplitBytes, request.is_small,
                        signed_bytes(block->bytes));
    } else {
      counters.increase(Counters::kInactiveSplitBytes, request.is_small, signed_bytes(tail->bytes));
      counters.increase(Counters::kInactiveSplit, request.is_small, 1);
    }
  } else if (was_split && !has_pages) {
    counters.decrease(Counters::kInactiveSplitBytes, request.is_small, signed_bytes(block->bytes));
    counters.decrease(Counters::kInactiveSplit, request.is_small, 1);
  }
  book_allocation(block, request.requested_bytes, request.context);
  return block;
}

Block* CachingAllocator::Impl::merge(Block* block, Block* neighbour) {
  if (!neighbour || neighbour->state != BlockState::free) return nullptr;
  block->segment->block_pool->free.erase(neighbour);
  absorb(block, neighbour);
  return neighbour;
}

// `block` keeps its identity and grows over its neighbour, whose record is recycled.
void CachingAllocator::Impl::absorb(Block* block, Block* neighbour) noexcept {
  block->bytes += neighbour->bytes;
  if (neighbour == block->prev) {
    block->address = neighbour->address;
    block->prev = neighbour->prev;
    (block->prev ? block->prev->next : block->segment->first) = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->prev = block;
  }
  recycle(neighbour);
}

// The end of a free: merges with free neighbours of the segment, then becomes reusable. Changes of
// inactive_split are summed before they are booked, so that a merge makes no false peak.
void CachingAllocator::Impl::release_to_pool(Block* block, ContextId context) {
  const Segment& segment = *block->segment;
  const bool is_small = segment.is_small;
  const std::size_t bytes = block->bytes;
  const std::size_t requested_bytes = block->requested_bytes;
  record_block(HistoryAction::free_completed, block, context);
  std::int64_t net_blocks = 0;
  std::int64_t net_bytes = 0;
  const auto merge_with = [&](Block* neighbour) {
    if (const Block* merged = merge(block, neighbour)) {
      net_blocks -= 1;
      net_bytes -= signed_bytes(merged->bytes);
    }
  };
  merge_with(block->prev);
  merge_with(block->next);
  index_insert(block);
  if (!segment.is_expandable) [[likely]] {
    if (block->is_split()) {
      net_blocks += 1;
      net_bytes += signed_bytes(block->bytes);
    }
    counters.change(Counters::kInactiveSplit, is_small, net_blocks);
    counters.change(Counters::kInactiveSplitBytes, is_small, net_bytes);
  }
  counters.decrease(Counters::kActive, is_small, 1);
  counters.decrease(Counters::kActiveBytes, is_small, signed_bytes(bytes));
  counters.decrease(Counters::kRequestedBytes, is_small, signed_bytes(requested_bytes));
}

void CachingAllocator::Impl::refuse_dead(const Block* block, const char* verb) const {
  const std::string what = std::string(verb) + ": ";
  if (!block)
    throw InvalidArgument(what + "no block was given; expected one that malloc() returned");
  if (block->owner != owner) {
    throw InvalidArgument(what + "the block at " + hex(block->address) +
                          " belongs to another allocator; give it to the one that made it");
  }
  throw InvalidArgument(what + "the block at " + hex(block->address) + " is " +
                        describe(block->state) + "; expected a live block (double free?)");
}

// The first half of a free, at the call of free(): the bytes count as active until the second half.
void CachingAllocator::Impl::book_free(const Block* block, ContextId context) {
  const bool is_small = block->segment->is_small;
  record_block(HistoryAction::free_requested, block, context);
  counters.decrease(Counters::kAllocation, is_small, 1);
  counters.decrease(Counters::kAllocatedBytes, is_small, signed_bytes(block->bytes));
  if (block->bytes >= config.max_split_bytes) counters.oversize_allocations.decrease(1);
}

void CachingAllocator::Impl::free_live(Block* block, ContextId context) {
  if (block->has_stream_uses) [[unlikely]] {
    free_later(block, context);
    return;
  }
  __builtin_prefetch(block->prev);  // merging looks at both soon
  __builtin_prefetch(block->next);
  book_free(block, context);
  release_to_pool(block, context);
}

// Other streams still use the block: it is pending until the last of their marks is reached.
void CachingAllocator::Impl::free_later(Block* block, ContextId context) {
  if (defers()) {
    deferred.push_back(block);
    ++pending_count;
  } else {
    mark_uses(block);
  }
  book_free(block, context);
  block->state = BlockState::pending;
  block->has_stream_uses = false;
}

// One mark per stream. mark() may throw, so nothing changes before all marks are set.
void CachingAllocator::Impl::mark_uses(Block* block) {
  std::vector<Ticket> tickets;
  const std::vector<StreamId> streams = stream_uses.at(block);
  tickets.reserve(streams.size());
  for (StreamId stream : streams) tickets.push_back(provider.mark(stream));  // may throw
  stream_uses.erase(block);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    pending[streams[i]].push_back({tickets[i], block});
  }
  block->pending_marks = static_cast<std::uint32_t>(streams.size());
  pending_count += streams.size();
}

// As upstream, streams recorded in a scope are forgotten: as if a graph captured their work.
void CachingAllocator::Impl::mark_deferred() {
  while (!deferred.empty()) {
    Block* block = deferred.front();
    if (const auto in_scopes = scope_uses.find(block); in_scopes != scope_uses.end()) {
      const std::vector<StreamId>& forgotten = in_scopes->second;
      std::erase_if(stream_uses.at(block), [&forgotten](StreamId stream) {
        return std::find(forgotten.begin(), forgotten.end(), stream) != forgotten.end();
      });
      scope_uses.erase(in_scopes);
    }
    mark_uses(block);
    deferred.pop_front();
    --pending_count;
    if (block->pending_marks == 0) release_to_pool(block, 0);
  }
}

// Marks of one stream complete in order: each queue is read up to the first that is not done.
void CachingAllocator::Impl::process_events() {
  if (defers()) return;
  mark_deferred();
  for (auto it = pending.begin(); it != pending.end();) {
    std::deque<Pending>& queue = it->second;
    while (!queue.empty() && provider.done(queue.front().ticket)) {
      Block* block = queue.front().block;
      queue.pop_front();
      --pending_count;
      if (--block->pending_marks == 0) release_to_pool(block, 0);
    }
    it = queue.empty() ? pending.erase(it) : std::next(it);
  }
}

CachingAllocator::CachingAllocator(Provider& provider, const Config& config, Sharing sharing)
    : impl_(std::make_unique<Impl>(provider, config, sharing, this)) {}

CachingAllocator::~CachingAllocator() = default;

Block* CachingAllocator::malloc(std::size_t bytes, StreamId stream, OutOfMemoryReport* report,
                                ContextId context, PoolId pool) {
  if (bytes == 0) return nullptr;
  Impl& impl = *impl_;
  Request request{.requested_bytes = bytes, .stream = stream, .context = context, .report = report};
  const Lock lock(impl.mutex);
  const std::size_t rounded = impl.round(bytes);
  MemoryPool& from = pool.is_default() ? *impl.default_pool : impl.pool_with_users(pool, "malloc");
  request.is_small = rounded <= impl.config.small_limit_bytes;
  request.is_expandable = from.is_expandable;
  request.block_pool = &impl.block_pool_of(from, stream, request.is_small);
  if (rounded == kUnlimited) [[unlikely]] {
    impl.fail(request, OutOfMemoryReport::Cause::over_one_exabyte);
    return nullptr;
  }
  request.rounded_bytes = rounded;
  return impl.allocate(request);
}

void CachingAllocator::free(Block* block, ContextId context) {
  if (!block) return;
  const Lock lock(impl_->mutex);
  impl_->require_live(block, "free");
  impl_->free_live(block, context);
}

// The slow form of free() for an address of unknown origin: it may be foreign, dead or interior.
FreeStatus CachingAllocator::free_address(Address address, std::string* why, ContextId context) {
  const Lock lock(impl_->mutex);
  Block* block = impl_->block_at(address);
  std::string text = "free: invalid device pointer " + hex(address) + ": ";
  FreeStatus status = FreeStatus::ok;
  if (!block) {
    status = FreeStatus::foreign;
    text += "in no segment of this allocator; expected an address that malloc() returned";
  } else if (block->state != BlockState::allocated) {
    status = FreeStatus::double_free;
    text += "the memory there is " + std::string(describe(block->state)) + " (double free?)";
  } else if (block->address != address) {
    status = FreeStatus::interior;
    text += std::to_string(address - block->address) + " bytes inside the block at " +
            hex(block->address) + " of " + std::to_string(block->bytes) + " bytes; give its start";
  } else {
    impl_->free_live(block, context);
    return FreeStatus::ok;
  }
  if (why) *why = std::move(text);
  return status;
}

void CachingAllocator::record_stream(Block* block, StreamId stream) {
  const Lock lock(impl_->mutex);
  impl_->require_live(block, "record_stream");
  if (stream == block->stream) return;
  std::vector<StreamId>& uses = impl_->stream_uses[block];
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  block->has_stream_uses = true;
  if (impl_->defers()) impl_->scope_uses[block].push_back(stream);
}

void CachingAllocator::process_events() {
  const Lock lock(impl_->mutex);
  impl_->process_events();
}

std::uint64_t CachingAllocator::free_held(Block* block, ContextId context) {
  const Lock lock(impl_->mutex);
  impl_->require_live(block, "free_held");
  impl_->held.emplace_hint(impl_->held.end(), ++impl_->next_hold, block);
  impl_->book_free(block, context);
  if (block->has_stream_uses) impl_->stream_uses.erase(block);
  block->has_stream_uses = false;
  block->state = BlockState::pending;
  return impl_->next_hold;
}

void CachingAllocator::complete_held_frees() {
  const Lock lock(impl_->mutex);
  impl_->complete_held(nullptr);
}

std::size_t CachingAllocator::held_frees() {
  const Lock lock(impl_->mutex);
  return impl_->held.size();
}

bool CachingAllocator::complete_free(std::uint64_t hold) {
  const Lock lock(impl_->mutex);
  const auto it = impl_->held.find(hold);
  if (it == impl_->held.end()) return false;
  Block* block = it->second;
  impl_->held.erase(it);
  impl_->release_to_pool(block, 0);
  return true;
}

}  // namespace npusim::alloc
