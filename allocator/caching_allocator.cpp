// SPDX-License-Identifier: BSD-3-Clause
// The hot path. Steps and bookkeeping happen in upstream's order: peaks and history show it.
#include "allocator/caching_allocator.h"

#include <algorithm>
#include <cstdio>

#include "allocator/engine.h"
#include "allocator/error.h"

namespace npusim::alloc {

using Lock = std::lock_guard<WordLock>;

namespace {

std::int64_t signed_bytes(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

std::string hex(Address address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

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

CachingAllocator::Impl::Impl(Provider& provider_in, const Config& config_in,
                             CachingAllocator* owner_in)
    : provider(provider_in), owner(owner_in), config(validate(config_in)) {
  set_fraction(config.memory_fraction);
}

StreamPools& CachingAllocator::Impl::pools_of(StreamId stream) {
  if (!last_pools || last_stream != stream) {
    last_pools = &pools.try_emplace(stream, config).first->second;
    last_stream = stream;
  }
  return *last_pools;
}

// One malloc() makes at most two blocks: a new segment's, and the low part of a split.
void CachingAllocator::Impl::reserve_blocks() {
  if (unused_blocks && unused_blocks->next) return;
  slab.push_back(std::make_unique<std::array<Block, 256>>());
  for (Block& block : *slab.back()) {
    block.owner = owner;
    recycle(&block);
  }
}

Block* CachingAllocator::Impl::new_block() noexcept {
  Block* block = unused_blocks;
  unused_blocks = block->next;
  return block;
}

void CachingAllocator::Impl::recycle(Block* block) noexcept {
  block->state = BlockState::unused;
  block->next = unused_blocks;
  unused_blocks = block;
}

void CachingAllocator::Impl::record(HistoryAction action, Address address, std::size_t bytes,
                                    StreamId stream, ContextId context) {
  if (!history.recording()) [[likely]] {
    return;
  }
  history.add({action, address, bytes, stream, provider.now_ns(), context});
}

void CachingAllocator::Impl::index_insert(Block* block) {
  block->state = BlockState::free;
  block->requested_bytes = 0;
  block->context = 0;
  block->idle_since = searches[block->segment->is_small];
  block->segment->free_index->insert(block);
}

Block* CachingAllocator::Impl::take_free_block(const Request& request) {
  if (limited() && config.garbage_collection_threshold > 0) ++searches[request.is_small];
  FreeIndex& index = *request.free_index;
  Block* block = config.fit == Fit::best ? index.best(request.rounded_bytes)
                                         : index.first(request.rounded_bytes);
  // As upstream: when the best block is too large to use, no other is tried.
  if (!block || !may_use(config, block->bytes, request.rounded_bytes)) return nullptr;
  index.erase(block);
  return block;
}

Block* CachingAllocator::Impl::split(Block* block, std::size_t bytes) {
  Block* low = new_block();
  low->address = block->address;
  low->bytes = bytes;
  low->stream = block->stream;
  low->segment = block->segment;
  low->order = block->order;
  low->prev = block->prev;
  low->next = block;
  (low->prev ? low->prev->next : low->segment->first) = low;
  block->prev = low;
  block->address += bytes;
  block->bytes -= bytes;
  index_insert(block);
  return low;
}

Block* CachingAllocator::Impl::allocate(const Request& request) {
  reserve_blocks();
  if (pending_count > 0) process_events();
  Block* block = take_free_block(request);
  if (!block) [[unlikely]] {
    block = acquire_or_reclaim(request);
    if (!block) return nullptr;
  }
  const bool was_split = block->is_split();
  if (should_split(config, request.is_small, block->bytes, request.rounded_bytes)) {
    Block* tail = block;
    block = split(block, request.rounded_bytes);
    if (was_split) {
      ledger.decrease(Ledger::kInactiveSplitBytes, request.is_small, signed_bytes(block->bytes));
    } else {
      ledger.increase(Ledger::kInactiveSplitBytes, request.is_small, signed_bytes(tail->bytes));
      ledger.increase(Ledger::kInactiveSplit, request.is_small, 1);
    }
  } else if (was_split) {
    ledger.decrease(Ledger::kInactiveSplitBytes, request.is_small, signed_bytes(block->bytes));
    ledger.decrease(Ledger::kInactiveSplit, request.is_small, 1);
  }
  block->state = BlockState::allocated;
  block->requested_bytes = request.requested_bytes;
  block->context = history_mode == HistoryMode::off ? 0 : request.context;
  record(HistoryAction::alloc, block->address, request.requested_bytes, request.stream,
         request.context);
  ledger.increase(Ledger::kAllocation, request.is_small, 1);
  ledger.increase(Ledger::kAllocatedBytes, request.is_small, signed_bytes(block->bytes));
  ledger.increase(Ledger::kActive, request.is_small, 1);
  ledger.increase(Ledger::kActiveBytes, request.is_small, signed_bytes(block->bytes));
  ledger.increase(Ledger::kRequestedBytes, request.is_small, signed_bytes(request.requested_bytes));
  if (block->bytes >= config.max_split_bytes) ledger.oversize_allocations.increase(1);
  return block;
}

Block* CachingAllocator::Impl::merge(Block* block, Block* neighbour) {
  if (!neighbour || neighbour->state != BlockState::free) return nullptr;
  block->segment->free_index->erase(neighbour);
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
  return neighbour;
}

void CachingAllocator::Impl::release_to_pool(Block* block, ContextId context) {
  const bool is_small = block->segment->is_small;
  const std::size_t bytes = block->bytes;
  const std::size_t requested_bytes = block->requested_bytes;
  record(HistoryAction::free_completed, block->address, requested_bytes, block->stream, context);
  std::int64_t net_blocks = 0;
  std::int64_t net_bytes = 0;
  for (Block* neighbour : {block->prev, block->next}) {
    if (const Block* merged = merge(block, neighbour)) {
      net_blocks -= 1;
      net_bytes -= signed_bytes(merged->bytes);
    }
  }
  index_insert(block);
  if (block->is_split()) {
    net_blocks += 1;
    net_bytes += signed_bytes(block->bytes);
  }
  ledger.change(Ledger::kInactiveSplit, is_small, net_blocks);
  ledger.change(Ledger::kInactiveSplitBytes, is_small, net_bytes);
  ledger.decrease(Ledger::kActive, is_small, 1);
  ledger.decrease(Ledger::kActiveBytes, is_small, signed_bytes(bytes));
  ledger.decrease(Ledger::kRequestedBytes, is_small, signed_bytes(requested_bytes));
}

void CachingAllocator::Impl::require_live(const Block* block, const char* verb) const {
  if (block && block->owner == owner && block->state == BlockState::allocated) [[likely]] {
    return;
  }
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

void CachingAllocator::Impl::book_free(const Block* block, ContextId context) {
  const bool is_small = block->segment->is_small;
  record(HistoryAction::free_requested, block->address, block->requested_bytes, block->stream,
         context);
  ledger.decrease(Ledger::kAllocation, is_small, 1);
  ledger.decrease(Ledger::kAllocatedBytes, is_small, signed_bytes(block->bytes));
  if (block->bytes >= config.max_split_bytes) ledger.oversize_allocations.decrease(1);
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

void CachingAllocator::Impl::free_later(Block* block, ContextId context) {
  std::vector<Ticket> tickets;
  const std::vector<StreamId> streams = stream_uses.at(block);
  tickets.reserve(streams.size());
  for (StreamId stream : streams) tickets.push_back(provider.mark(stream));  // may throw
  book_free(block, context);
  block->state = BlockState::pending;
  block->has_stream_uses = false;
  stream_uses.erase(block);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    pending[streams[i]].push_back({tickets[i], block});
  }
  block->pending_marks = static_cast<std::uint32_t>(streams.size());
  pending_count += streams.size();
}

void CachingAllocator::Impl::process_events() {
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

CachingAllocator::CachingAllocator(Provider& provider, const Config& config)
    : impl_(std::make_unique<Impl>(provider, config, this)) {}

CachingAllocator::~CachingAllocator() = default;

Block* CachingAllocator::malloc(std::size_t bytes, StreamId stream, OutOfMemoryReport* report,
                                ContextId context) {
  if (bytes == 0) return nullptr;
  Impl& impl = *impl_;
  const std::optional<std::size_t> rounded = round_request(impl.config, bytes);
  Request request{.requested_bytes = bytes, .stream = stream, .context = context, .report = report};
  const Lock lock(impl.mutex);
  if (!rounded) {
    impl.fail(request, OutOfMemoryReport::Cause::over_one_exabyte);
    return nullptr;
  }
  request.rounded_bytes = *rounded;
  request.is_small = *rounded <= impl.config.small_limit_bytes;
  request.free_index = &impl.pools_of(stream).of(request.is_small);
  return impl.allocate(request);
}

void CachingAllocator::free(Block* block, ContextId context) {
  if (!block) return;
  const Lock lock(impl_->mutex);
  impl_->require_live(block, "free");
  impl_->free_live(block, context);
}

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
}

void CachingAllocator::process_events() {
  const Lock lock(impl_->mutex);
  impl_->process_events();
}

void CachingAllocator::empty_cache() {
  const Lock lock(impl_->mutex);
  impl_->wait_for_pending();
  impl_->release_free_segments();
}

}  // namespace npusim::alloc
