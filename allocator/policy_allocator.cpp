// SPDX-License-Identifier: BSD-3-Clause
// The surroundings of a policy: the device it is lent memory by, the judgement of its answers,
// frees that wait for streams, accounts.
#include "allocator/policy_allocator.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "allocator/bytes.h"
#include "allocator/error.h"

namespace npusim::alloc {

using Lock = std::lock_guard<WordLock>;

class PolicyAllocator::Device final : public PlacementDevice {
 public:
  explicit Device(PolicyAllocator& own)
      : own_(own), total_(own.provider_.memory_info().total_bytes) {}

  std::uint64_t capacity_bytes() const noexcept override { return total_; }
  std::uint64_t reserved_bytes() const noexcept override {
    return static_cast<std::uint64_t>(own_.counters_.current(Counters::kReservedBytes));
  }
  const std::map<Address, std::size_t>& lent() const noexcept override { return lent_; }

  SegmentResult acquire_segment(std::size_t bytes) override {
    if (reserved_bytes() + bytes > allowed_bytes_ || bytes > total_) {
      cause_ = bytes > total_ ? OutOfMemoryReport::Cause::device_full
                              : OutOfMemoryReport::Cause::over_limit;
      reason_.clear();
      return {0, SegmentResult::Status::device_full, {}};
    }
    SegmentResult result = own_.provider_.acquire_segment(bytes);
    if (result.status != SegmentResult::Status::ok) {
      cause_ = result.status == SegmentResult::Status::ram_full
                   ? OutOfMemoryReport::Cause::ram_full
                   : OutOfMemoryReport::Cause::device_full;
      reason_ = result.reason;
      return result;
    }
    lent_[result.address] = bytes;
    order_[result.address] = next_order_++;
    own_.counters_.increase(Counters::kSegment, false, 1);
    own_.counters_.increase(Counters::kReservedBytes, false, signed_bytes(bytes));
    ++own_.counters_.num_device_alloc;
    own_.record(HistoryAction::segment_alloc, result.address, bytes, stream_, context_, pool_);
    return result;
  }

  void release_segment(Address address, std::size_t bytes) noexcept override {
    const auto inside = own_.entries_.lower_bound(address);
    const bool is_in_use = own_.entry_at(address) != nullptr ||
                           (inside != own_.entries_.end() && inside->first < address + bytes);
    if (is_in_use) {
      refuse("releases the memory at " + hex(address) + ", in which blocks are live");
      return;
    }
    if (!has_waited_) own_.provider_.synchronize();
    has_waited_ = true;
    own_.provider_.release_segment(address, bytes);
    lent_.erase(address);
    order_.erase(address);
    own_.counters_.decrease(Counters::kSegment, false, 1);
    own_.counters_.decrease(Counters::kReservedBytes, false, signed_bytes(bytes));
    ++own_.counters_.num_device_free;
    own_.record(HistoryAction::segment_free, address, bytes, 0, 0, {});
  }

  // Pieces of one device are at one address each: there is nothing to stitch them with.
  Address stitch(std::span<const Piece>) override {
    throw InvalidArgument("stitch: a live device keeps memory where it is; only a replay stitches");
  }
  void unstitch(Address) override { throw InvalidArgument("unstitch: nothing was stitched"); }
  std::span<const Piece> pieces_of(Address address, std::uint64_t bytes) override {
    auto lent = lent_.upper_bound(address);
    if (lent == lent_.begin()) return {};
    --lent;
    const std::uint64_t offset = address - lent->first;
    if (offset > lent->second || bytes > lent->second - offset) return {};
    piece_ = {address, bytes};
    return {&piece_, 1};
  }

  void refuse(std::string what) override {
    if (misuse_.empty()) misuse_ = std::move(what);
  }

  Ticket mark(StreamId stream) override { return own_.provider_.mark(stream); }
  bool done(Ticket ticket) const noexcept override { return own_.provider_.done(ticket); }
  void wait(Ticket ticket) override { own_.provider_.wait(ticket); }
  void synchronize() override { own_.provider_.synchronize(); }
  MemoryInfo memory_info() const override { return own_.provider_.memory_info(); }

  // begin() precedes every call of the policy: whom new segments are for.
  void begin(StreamId stream, ContextId context, PoolId pool) {
    stream_ = stream;
    context_ = context;
    pool_ = pool;
    has_waited_ = false;
  }
  void allow(std::size_t bytes) { allowed_bytes_ = bytes; }
  std::size_t allowed_bytes() const { return allowed_bytes_; }
  std::int64_t order_of(Address address) const { return order_.at(address); }
  std::string take_misuse() { return std::exchange(misuse_, {}); }
  OutOfMemoryReport::Cause cause() const { return cause_; }
  const std::string& reason() const { return reason_; }

 private:
  PolicyAllocator& own_;
  const std::size_t total_;
  std::size_t allowed_bytes_ = kUnlimited;
  std::map<Address, std::size_t> lent_;
  std::map<Address, std::int64_t> order_;  // of acquisition
  std::int64_t next_order_ = 0;
  Piece piece_;
  StreamId stream_ = 0;
  ContextId context_ = 0;
  PoolId pool_;
  bool has_waited_ = false;
  std::string misuse_;
  OutOfMemoryReport::Cause cause_ = OutOfMemoryReport::Cause::device_full;  // of the last refusal
  std::string reason_;
};

PolicyAllocator::PolicyAllocator(Provider& provider, std::string name, const Maker& make)
    : provider_(provider),
      name_(std::move(name)),
      mutex_(true),
      device_(std::make_unique<Device>(*this)),
      check_(std::make_unique<PlacementCheck>(*device_)),
      policy_(make(*device_)) {}

PolicyAllocator::~PolicyAllocator() = default;

void PolicyAllocator::reject(const std::string& what) const {
  throw InvalidArgument("policy " + name_ + ": " + what);
}

void PolicyAllocator::throw_misuse() {
  if (const std::string misuse = device_->take_misuse(); !misuse.empty()) reject(misuse);
}

// --- malloc -------------------------------------------------------------------------------------

Placement PolicyAllocator::place(const PlacementRequest& request) {
  const Placement placement = policy_->malloc(request);
  throw_misuse();
  return placement;
}

void PolicyAllocator::judge(const Placement& placement, const PlacementRequest& request) {
  const std::string wrong = check_->add(placement, request);
  if (wrong.empty()) return;
  check_->remove(placement, request);
  reject(wrong);
}

Block* PolicyAllocator::malloc(std::size_t bytes, StreamId stream, OutOfMemoryReport* report,
                               ContextId context, PoolId pool) {
  if (bytes == 0) return nullptr;
  const Lock lock(mutex_);
  std::uint32_t pool_number = 0;
  if (!pool.is_default()) {
    const auto found = pools_.find(pool);
    if (found == pools_.end() || found->second.users == 0) {
      throw InvalidArgument("malloc: pool (" + std::to_string(pool.first) + ", " +
                            std::to_string(pool.second) + ") has no users; call retain_pool first");
    }
    pool_number = found->second.number;
  }
  const auto next_stream = static_cast<std::uint32_t>(stream_numbers_.size());
  const PlacementRequest request{
      .bytes = bytes,
      .stream = stream_numbers_.try_emplace(stream, next_stream).first->second,
      .pool = pool_number,
      .number = mallocs_++};
  if (bytes >= kRequestLimit) {
    fail(request, stream, pool, report, context, OutOfMemoryReport::Cause::over_one_exabyte);
    return nullptr;
  }
  if (history_mode_ == HistoryMode::off) context = 0;
  device_->begin(stream, context, pool);
  process_events();
  reserve_entry();
  Placement placement = place(request);
  if (placement.address == 0) record(HistoryAction::retry, 0, bytes, stream, context, pool);
  if (placement.address == 0 && complete_pending()) placement = place(request);
  if (placement.address == 0) {
    ++counters_.num_alloc_retries;
    policy_->empty_cache();
    throw_misuse();
    placement = place(request);
  }
  if (placement.address == 0) {
    fail(request, stream, pool, report, context, device_->cause());
    return nullptr;
  }
  judge(placement, request);
  Entry* entry = unused_.back();  // not before: what was pending may have come back meanwhile
  unused_.pop_back();
  entry->address = placement.address;
  entry->bytes = placement.bytes;
  entry->requested_bytes = bytes;
  entry->state = BlockState::allocated;
  entry->stream = stream;
  entry->context = context;
  entry->request = request;
  entry->pool = pool;
  entries_.emplace(entry->address, entry);
  record(HistoryAction::alloc, entry->address, bytes, stream, context, pool);
  counters_.increase(Counters::kAllocation, false, 1);
  counters_.increase(Counters::kAllocatedBytes, false, signed_bytes(entry->bytes));
  counters_.increase(Counters::kActive, false, 1);
  counters_.increase(Counters::kActiveBytes, false, signed_bytes(entry->bytes));
  counters_.increase(Counters::kRequestedBytes, false, signed_bytes(bytes));
  return entry;
}

// So that there is an unused one once a placement is good, when nothing may fail any more.
void PolicyAllocator::reserve_entry() {
  if (!unused_.empty()) return;
  slab_.emplace_back();
  slab_.back().owner = this;
  unused_.push_back(&slab_.back());
}

void PolicyAllocator::fail(const PlacementRequest& request, StreamId stream, PoolId pool,
                           OutOfMemoryReport* report, ContextId context,
                           OutOfMemoryReport::Cause cause) {
  const MemoryInfo memory = provider_.memory_info();
  if (cause != OutOfMemoryReport::Cause::over_one_exabyte) {
    record(HistoryAction::oom, memory.free_bytes, request.bytes, stream, context, pool);
    ++counters_.num_ooms;
  }
  if (!report) return;
  *report = {};
  report->cause = cause;
  report->requested_bytes = report->segment_bytes = request.bytes;
  report->total_bytes = memory.total_bytes;
  report->free_bytes = memory.free_bytes;
  if (device_->allowed_bytes() != kUnlimited) report->allowed_bytes = device_->allowed_bytes();
  const auto current = [this](Counters::Quantity what) {
    return static_cast<std::size_t>(counters_.current(what));
  };
  report->allocated_bytes = current(Counters::kAllocatedBytes);
  report->reserved_bytes = current(Counters::kReservedBytes);
  report->cached_bytes = report->reserved_bytes - current(Counters::kActiveBytes);
  report->pending_bytes = current(Counters::kActiveBytes) - report->allocated_bytes;
  for (const SegmentInfo& segment : segments()) {
    for (const BlockInfo& block : segment.blocks) {
      if (block.state != BlockState::free) continue;
      report->largest_free_bytes = std::max(report->largest_free_bytes, block.bytes);
    }
  }
  report->reason = cause == OutOfMemoryReport::Cause::over_one_exabyte ? "" : device_->reason();
}

// --- free ---------------------------------------------------------------------------------------

PolicyAllocator::Entry* PolicyAllocator::require_live(Block* block, const char* verb) const {
  const std::string what = std::string(verb) + ": ";
  if (!block) throw InvalidArgument(what + "no block was given; expected one of malloc()");
  if (block->owner != this) {
    throw InvalidArgument(what + "the block at " + hex(block->address) +
                          " belongs to another allocator; give it to the one that made it");
  }
  if (block->state != BlockState::allocated) {
    throw InvalidArgument(what + "the block at " + hex(block->address) +
                          " is freed already; expected a live block (double free?)");
  }
  return static_cast<Entry*>(block);
}

void PolicyAllocator::free_live(Entry* entry, ContextId context) {
  std::vector<Ticket> tickets;
  tickets.reserve(entry->uses.size());
  for (const StreamId stream : entry->uses) tickets.push_back(provider_.mark(stream));  // may throw
  record(HistoryAction::free_requested, entry->address, entry->requested_bytes, entry->stream,
         context, entry->pool);
  counters_.decrease(Counters::kAllocation, false, 1);
  counters_.decrease(Counters::kAllocatedBytes, false, signed_bytes(entry->bytes));
  entry->uses.clear();
  if (tickets.empty()) {
    complete(entry);
    return;
  }
  entry->tickets = std::move(tickets);
  entry->state = BlockState::pending;
  pending_.push_back(entry);
}

void PolicyAllocator::complete(Entry* entry) {
  record(HistoryAction::free_completed, entry->address, entry->requested_bytes, entry->stream, 0,
         entry->pool);
  counters_.decrease(Counters::kActive, false, 1);
  counters_.decrease(Counters::kActiveBytes, false, signed_bytes(entry->bytes));
  counters_.decrease(Counters::kRequestedBytes, false, signed_bytes(entry->requested_bytes));
  const Placement placement{entry->address, entry->bytes};
  check_->remove(placement, entry->request);
  entries_.erase(entry->address);
  entry->state = BlockState::unused;
  unused_.push_back(entry);
  policy_->free(placement, entry->request);
  throw_misuse();
}

void PolicyAllocator::process_events() {
  for (std::size_t i = 0; i < pending_.size();) {
    Entry* entry = pending_[i];
    const auto is_done = [this](Ticket ticket) { return provider_.done(ticket); };
    if (!std::all_of(entry->tickets.begin(), entry->tickets.end(), is_done)) {
      ++i;
      continue;
    }
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    complete(entry);
  }
}

bool PolicyAllocator::complete_pending() {
  ++counters_.num_sync_all_streams;
  const bool any = !pending_.empty();
  while (!pending_.empty()) {
    Entry* entry = pending_.front();
    for (const Ticket ticket : entry->tickets) provider_.wait(ticket);  // may throw
    pending_.pop_front();
    complete(entry);
  }
  return any;
}

void PolicyAllocator::free(Block* block, ContextId context) {
  if (!block) return;
  const Lock lock(mutex_);
  free_live(require_live(block, "free"), context);
}

const PolicyAllocator::Entry* PolicyAllocator::entry_at(Address address) const {
  auto it = entries_.upper_bound(address);
  if (it == entries_.begin()) return nullptr;
  const Entry* entry = std::prev(it)->second;
  return address - entry->address < entry->bytes ? entry : nullptr;
}

FreeStatus PolicyAllocator::free_address(Address address, std::string* why, ContextId context) {
  const Lock lock(mutex_);
  const Entry* entry = entry_at(address);
  std::string text = "free: invalid device pointer " + hex(address) + ": ";
  FreeStatus status = FreeStatus::ok;
  if (!entry || entry->state != BlockState::allocated) {
    const bool is_lent = entry || !device_->pieces_of(address, 1).empty();
    status = is_lent ? FreeStatus::double_free : FreeStatus::foreign;
    text += is_lent ? "the memory there is freed already (double free?)"
                    : "in no segment of this allocator; expected an address that malloc() returned";
  } else if (entry->address != address) {
    status = FreeStatus::interior;
    text += std::to_string(address - entry->address) + " bytes inside the block at " +
            hex(entry->address) + " of " + std::to_string(entry->bytes) + " bytes; give its start";
  } else {
    free_live(entries_.at(address), context);
    return FreeStatus::ok;
  }
  if (why) *why = std::move(text);
  return status;
}

Block* PolicyAllocator::find(Address address) const {
  const Lock lock(mutex_);
  const auto it = entries_.find(address);
  return it == entries_.end() || it->second->state != BlockState::allocated ? nullptr : it->second;
}

void PolicyAllocator::record_stream(Block* block, StreamId stream) {
  const Lock lock(mutex_);
  Entry* entry = require_live(block, "record_stream");
  std::vector<StreamId>& uses = entry->uses;
  if (stream == entry->stream || std::find(uses.begin(), uses.end(), stream) != uses.end()) return;
  uses.push_back(stream);
}

// --- Pools and limits ---------------------------------------------------------------------------

void PolicyAllocator::empty_cache(PoolId pool, ContextId context) {
  if (!pool.is_default()) return;
  const Lock lock(mutex_);
  device_->begin(0, 0, {});
  record(HistoryAction::empty_cache, 0, 0, 0, context, {});
  complete_pending();
  policy_->empty_cache();
  throw_misuse();
}

void PolicyAllocator::retain_pool(PoolId id, const PoolOptions& options) {
  const Lock lock(mutex_);
  if (id.is_default()) {
    throw InvalidArgument("retain_pool: (0, 0) is the default pool; expected another id");
  }
  if (options != PoolOptions{}) reject("pools have no options; make the pool without any");
  Pool& pool = pools_[id];
  if (pool.number == 0) pool.number = ++last_pool_number_;
  ++pool.users;
  record(HistoryAction::pool_retain, 0, 0, 0, 0, id);
}

void PolicyAllocator::release_pool(PoolId id) {
  const Lock lock(mutex_);
  const auto found = pools_.find(id);
  if (found == pools_.end() || found->second.users == 0) {
    throw InvalidArgument("release_pool: the pool has no users; call retain_pool first");
  }
  --found->second.users;
  record(HistoryAction::pool_release, 0, 0, 0, 0, id);
}

std::vector<PoolInfo> PolicyAllocator::pools() const {
  const Lock lock(mutex_);
  std::vector<PoolInfo> out;
  for (const auto& [id, pool] : pools_) {
    if (pool.users > 0) out.push_back({.id = id, .users = pool.users, .reserved_bytes = {}});
  }
  return out;
}

void PolicyAllocator::set_memory_fraction(double fraction) {
  const Lock lock(mutex_);
  device_->allow(fraction_limit(fraction, device_->capacity_bytes()));
  memory_fraction_ = fraction;
  record(HistoryAction::memory_fraction, 0, fraction_bits(fraction), 0, 0, {});
}

double PolicyAllocator::memory_fraction() const {
  const Lock lock(mutex_);
  return memory_fraction_;
}

// --- Accounts and pictures ----------------------------------------------------------------------

void PolicyAllocator::record(HistoryAction action, Address address, std::size_t bytes,
                             StreamId stream, ContextId context, PoolId pool) {
  if (!history_.recording()) return;
  history_.add({action, address, bytes, stream, provider_.now_ns(), context, pool});
}

Stats PolicyAllocator::stats() const {
  const Lock lock(mutex_);
  return counters_.stats(-1);
}

void PolicyAllocator::reset_peak_stats() {
  const Lock lock(mutex_);
  counters_.reset_peak();
}

void PolicyAllocator::reset_accumulated_stats() {
  const Lock lock(mutex_);
  counters_.reset_accumulated();
}

// What is not in use of a lent segment is free.
std::vector<SegmentInfo> PolicyAllocator::segments() const {
  std::vector<SegmentInfo> out;
  for (const auto& [address, bytes] : device_->lent()) {
    SegmentInfo info{.address = address,
                     .total_bytes = bytes,
                     .is_large = true,
                     .pool = {},
                     .registration = device_->order_of(address),
                     .blocks = {}};
    Address at = address;
    const auto add_free = [&](Address end) {
      if (at < end) info.blocks.push_back({at, end - at, 0, BlockState::free, 0});
    };
    for (auto it = entries_.lower_bound(address);
         it != entries_.end() && it->first < address + bytes; ++it) {
      const Entry& entry = *it->second;
      if (info.active_bytes == 0) {
        info.stream = entry.stream;
        info.pool = entry.pool;
      }
      add_free(entry.address);
      info.blocks.push_back(
          {entry.address, entry.bytes, entry.requested_bytes, entry.state, entry.context});
      if (entry.state == BlockState::allocated) info.allocated_bytes += entry.bytes;
      info.active_bytes += entry.bytes;
      info.requested_bytes += entry.requested_bytes;
      at = entry.address + entry.bytes;
    }
    add_free(address + bytes);
    out.push_back(std::move(info));
  }
  return out;
}

std::size_t PolicyAllocator::largest_free_block() const {
  const Lock lock(mutex_);
  std::size_t largest = 0;
  for (const SegmentInfo& segment : segments()) {
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::free) largest = std::max(largest, block.bytes);
    }
  }
  return largest;
}

void PolicyAllocator::record_history(HistoryMode mode, std::size_t max_entries) {
  const Lock lock(mutex_);
  history_mode_ = mode;
  history_.set_capacity(mode == HistoryMode::all ? max_entries : 0);
  record_pools();
}

// The pools that are there when recording begins.
void PolicyAllocator::record_pools() {
  if (memory_fraction_ < 1) {
    record(HistoryAction::memory_fraction, 0, fraction_bits(memory_fraction_), 0, 0, {});
  }
  for (const auto& [id, pool] : pools_) {
    for (std::size_t user = 0; user < pool.users; ++user)
      record(HistoryAction::pool_retain, 0, 0, 0, 0, id);
  }
}

void PolicyAllocator::clear_history() {
  const Lock lock(mutex_);
  history_.clear();
  record_pools();
}

Snapshot PolicyAllocator::picture() const {
  Snapshot out;
  out.segments = segments();
  out.history = history_.entries();
  out.history_dropped = history_.dropped();
  out.stats = counters_.stats(-1);
  out.policy = name_;
  return out;
}

Snapshot PolicyAllocator::snapshot() {
  const Lock lock(mutex_);
  record(HistoryAction::snapshot, 0,
         static_cast<std::size_t>(counters_.current(Counters::kActiveBytes)), 0, 0, {});
  return picture();
}

Snapshot PolicyAllocator::inspect() const {
  const Lock lock(mutex_);
  return picture();
}

}  // namespace npusim::alloc
