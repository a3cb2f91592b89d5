// SPDX-License-Identifier: BSD-3-Clause
// Vector clocks, and a few accesses per allocation. Three ideas keep both small:
//
//   epochs    a party's epoch grows only when another party may have learnt the last one
//             (published_): all commands between two marks share one number
//   covering  an access is dropped once a newer one stands for it: ordered after it, covering its
//             bytes, and conflicting with at least as much (a write for a read, not the reverse)
//   ghosts    freed blocks are forgotten; only their unordered accesses stay, with the pool that
//             may hand the memory out again, because which new block gets it depends on sizes
//
// A launch is ordered after everything that the host has done or waited for. host_version_ counts
// the changes of the host's clock, so that a stream merges it only when it has changed.
#include "backend/races.h"

#include <algorithm>

namespace npusim {

namespace {

constexpr std::size_t kMostRuns = 1 << 20;  // of one operand with gaps

// Not symmetric: two small numbers and the same two exchanged differ.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash * 0xD6E8FEB86659FD93ULL ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

std::uint64_t text_hash(const char* text) noexcept {
  std::uint64_t hash = 0;
  for (; text != nullptr && *text != '\0'; ++text) {
    hash = mixed(hash, static_cast<unsigned char>(*text));
  }
  return hash;
}

bool covers(Address begin, Address end, Address inner_begin, Address inner_end) noexcept {
  return begin <= inner_begin && inner_end <= end;
}

}  // namespace

RaceDetector::RaceDetector() : layouts_(1) {
  places_.push_back({});
  clocks_.push_back({1});
  host_seen_.push_back(0);
  published_.push_back(false);
}

// --- Parties and what they know -----------------------------------------------------------------

// The number of a stream's party; a new one is known to nobody and begins in epoch 1.
RaceDetector::Party RaceDetector::party_of(const Stream& stream) {
  if (recent_stream_.stream == &stream) return recent_stream_.party;
  const std::uint64_t id =
      (static_cast<std::uint64_t>(stream.device()) << 32) | static_cast<std::uint64_t>(stream.id());
  const auto found = party_ids_.find(id);
  if (found != party_ids_.end()) {
    recent_stream_ = {&stream, found->second};
    return found->second;
  }
  const auto party = static_cast<Party>(clocks_.size());
  party_ids_.emplace(id, party);
  places_.push_back({stream.device(), stream.id()});
  for (Clock& clock : clocks_) clock.push_back(0);
  clocks_.emplace_back(party + 1, 0);
  clocks_[party][party] = 1;
  host_seen_.push_back(0);
  published_.push_back(false);
  return party;
}

// What `other` had seen is over for `party` too: element-wise maximum. A clock that was copied
// before a party existed is shorter, and knows nothing of it.
void RaceDetector::learn(Party party, const Clock& other) {
  Clock& clock = clocks_[party];
  const std::size_t known = std::min(other.size(), clock.size());
  for (std::size_t i = 0; i < known; ++i) clock[i] = std::max(clock[i], other[i]);
  if (party == 0) ++host_version_;
}

std::uint64_t RaceDetector::epoch_of_access(Party party) {
  std::uint64_t& epoch = clocks_[party][party];
  if (published_[party]) {
    published_[party] = false;
    ++epoch;
    if (party == 0) ++host_version_;
  }
  return epoch;
}

// Whatever a stream is given comes after what the host has done and seen so far.
RaceDetector::Party RaceDetector::launch(const Stream& stream) {
  const Party party = party_of(stream);
  if (host_seen_[party] != host_version_) {
    learn(party, clocks_[0]);
    published_[0] = true;
    host_seen_[party] = host_version_;
  }
  return party;
}

void RaceDetector::on_order(const OrderRecord& record) noexcept {
  const std::lock_guard lock(mutex_);
  switch (record.kind) {
    case OrderKind::event_record: {
      const Party party = launch(*record.stream);
      Clock& mark = marks_[record.event];
      mark = clocks_[party];
      published_[party] = true;
      break;
    }
    case OrderKind::event_block: {
      const Party party = launch(*record.stream);
      const auto mark = marks_.find(record.event);
      if (mark != marks_.end()) learn(party, mark->second);
      break;
    }
    case OrderKind::event_wait: {
      const auto mark = marks_.find(record.event);
      if (mark != marks_.end()) learn(0, mark->second);
      break;
    }
    case OrderKind::event_end:
      marks_.erase(record.event);
      break;
    case OrderKind::stream_wait: {
      if (record.device < 0) break;
      const Party party = party_of(*record.stream);
      learn(0, clocks_[party]);
      published_[party] = true;
      break;
    }
    case OrderKind::device_wait:
      for (Party party = 1; party < places_.size(); ++party) {
        if (places_[party].device != record.device) continue;
        learn(0, clocks_[party]);
        published_[party] = true;
      }
      break;
    // The allocator waited for the device, so that freed memory is safe to reuse; but the program
    // did not wait, so that the host has learnt nothing.
    case OrderKind::allocator_wait:
      for (auto& [owner, ghosts] : ghosts_) {
        std::erase_if(ghosts, [&](const Ghost& ghost) {
          return places_[ghost.access.party].device == record.device;
        });
      }
      break;
    case OrderKind::allocator_mark:
    case OrderKind::query:
    case OrderKind::host_time:
    case OrderKind::host_layer:
      break;
  }
}

// --- Accesses -----------------------------------------------------------------------------------

void RaceDetector::on_command(const CommandRecord& record,
                              std::span<const Operand> operands) noexcept {
  const std::lock_guard lock(mutex_);
  const Party party = launch(record.stream);
  for (const Operand& operand : operands) {
    Block* block = block_at(operand.allocation, operand.first);
    if (block == nullptr) continue;
    touch(*block, access_of(operand, party, record.info.name, record.site, record.sequence));
  }
}

void RaceDetector::on_host_access(const HostAccessRecord& record,
                                  std::span<const Operand> operands) noexcept {
  const std::lock_guard lock(mutex_);
  for (const Operand& operand : operands) {
    Block* block = block_at(operand.allocation, operand.first);
    if (block == nullptr) continue;
    touch(*block, access_of(operand, /*party=*/0, record.name, record.site, record.sequence));
  }
}

bool RaceDetector::is_layout(std::uint32_t id, const Operand& operand) const noexcept {
  const Layout& layout = layouts_[id];
  return layout.type == operand.type && layout.element_bytes == operand.element_bytes &&
         std::ranges::equal(layout.sizes, operand.sizes) &&
         std::ranges::equal(layout.strides, operand.strides);
}

std::uint32_t RaceDetector::layout_of(const Operand& operand) {
  std::uint64_t hash = mixed(reinterpret_cast<std::uintptr_t>(operand.type), operand.element_bytes);
  for (const std::int64_t size : operand.sizes)
    hash = mixed(hash, static_cast<std::uint64_t>(size));
  for (const std::int64_t stride : operand.strides) {
    hash = mixed(hash, static_cast<std::uint64_t>(stride));
  }
  KnownLayout& recent = recent_layouts_[hash % recent_layouts_.size()];
  if (recent.hash == hash && is_layout(recent.id, operand)) return recent.id;
  const auto [first, last] = layout_ids_.equal_range(hash);
  for (auto known = first; known != last; ++known) {
    if (!is_layout(known->second, operand)) continue;
    recent = {hash, known->second};
    return known->second;
  }
  if (layouts_.size() >= kMostLayouts) return 0;
  const auto id = static_cast<std::uint32_t>(layouts_.size());
  layouts_.push_back({operand.type,
                      operand.element_bytes,
                      {operand.sizes.begin(), operand.sizes.end()},
                      {operand.strides.begin(), operand.strides.end()}});
  layout_ids_.emplace(hash, id);
  return id;
}

// The range [begin, end) that an operand reaches, also with negative strides, and whether it
// touches every byte of it: then the number of bytes touched equals the length of the range.
RaceDetector::Access RaceDetector::access_of(const Operand& operand, Party party, const char* name,
                                             Site site, std::uint64_t sequence) {
  std::int64_t below = 0;
  std::int64_t above = operand.element_bytes;
  std::int64_t touched = operand.element_bytes;
  for (std::size_t dim = 0; dim < operand.sizes.size(); ++dim) {
    const std::int64_t size = operand.sizes[dim];
    const std::int64_t reach = (size - 1) * operand.strides[dim];
    if (size == 0) above = touched = below = 0;
    if (size <= 1 || reach == 0) continue;
    (reach < 0 ? below : above) += reach;
    touched *= size;
  }
  return {operand.first + static_cast<Address>(below),
          operand.first + static_cast<Address>(above),
          epoch_of_access(party),
          sequence,
          name,
          site,
          party,
          layout_of(operand),
          operand.written,
          touched == above - below};
}

RaceDetector::Block* RaceDetector::block_at(Address allocation, Address first) noexcept {
  Block*& recent = recent_block(allocation);
  if (recent != nullptr && recent->address == allocation) return recent;
  const auto found = blocks_.find(allocation);
  if (found != blocks_.end()) return recent = &found->second;
  for (auto& [address, block] : blocks_) {  // an operand named by an address inside a block
    if (first - address < block.bytes) return &block;
  }
  return nullptr;
}

// Compares a new access with the remembered ones of its block, then remembers it. One pass both
// reports and compacts: `kept` is the length of the list that stays.
void RaceDetector::touch(Block& block, const Access& access) {
  if (access.begin >= access.end) return;
  if (!block.ghosts.empty()) meet_ghosts(block, access);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < block.accesses.size(); ++i) {
    const Access& old = block.accesses[i];
    const bool is_later = old.sequence > access.sequence;  // than an access as of some record
    if (!is_later && old.begin < access.end && access.begin < old.end) {
      const bool ordered = knows(access.party, old);
      if (!ordered && (old.written || access.written) && overlap(old, access)) {
        const bool host = access.party == 0;
        report(!host         ? Missing::wait_stream
               : old.written ? Missing::synchronize
                             : Missing::event,
               old, access, block, nullptr);
        // One report for one missing order: from here on the second party counts as having waited.
        std::uint64_t& known = clocks_[access.party][old.party];
        known = std::max(known, old.epoch);
        published_[old.party] = true;
        if (host) ++host_version_;
      }
      // The new access stands for the old one if every later access that is ordered after the new
      // one is ordered after the old one too, and every one that conflicts with the old one
      // conflicts with the new one.
      const bool stands_for =
          (access.written || !old.written) &&
          (access.dense
               ? covers(access.begin, access.end, old.begin, old.end)
               : access.begin == old.begin && access.layout == old.layout && access.layout != 0);
      if (stands_for && knows(access.party, old)) continue;
    }
    if (kept != i) block.accesses[kept] = old;
    ++kept;
  }
  block.accesses.resize(kept);
  remember(block, access);
}

// Slices that one line of a loop touches one after another become one access.
void RaceDetector::remember(Block& block, const Access& access) {
  for (Access& old : block.accesses) {
    if (old.party != access.party || old.epoch != access.epoch || old.written != access.written ||
        !old.dense || !access.dense || old.site != access.site || old.name != access.name) {
      continue;
    }
    if (old.end != access.begin && access.end != old.begin) continue;
    const Address begin = std::min(old.begin, access.begin);
    const Address end = std::max(old.end, access.end);
    old = access;
    old.begin = begin;
    old.end = end;
    return;
  }
  if (block.accesses.size() == kMostAccesses) {
    block.accesses.erase(std::ranges::min_element(block.accesses, {}, &Access::sequence));
  }
  block.accesses.push_back(access);
}

void RaceDetector::meet_ghosts(Block& block, const Access& access) {
  std::erase_if(block.ghosts, [&](const Ghost& ghost) {
    if (ghost.access.party == access.party) return false;
    if (!knows(access.party, ghost.access)) {
      report(Missing::record_stream, ghost.access, access, block, &ghost);
    }
    return true;
  });
}

// --- Operands with gaps -------------------------------------------------------------------------

// Whether two accesses whose ranges meet share a byte. Two dense ones do. Interleaved columns do
// not: their runs of bytes are merged like two sorted lists. Layout 0 is unknown (too many
// layouts), and an unknown or huge layout counts as no overlap: no report without proof.
bool RaceDetector::overlap(const Access& one, const Access& other) const {
  if (one.dense && other.dense) return true;
  if ((one.layout == 0 && !one.dense) || (other.layout == 0 && !other.dense)) return false;
  std::vector<std::pair<Address, Address>> runs, others;
  collect_runs(one, runs);
  collect_runs(other, others);
  for (std::size_t i = 0, j = 0; i < runs.size() && j < others.size();) {
    if (runs[i].first < others[j].second && others[j].first < runs[i].second) return true;
    runs[i].second < others[j].second ? ++i : ++j;
  }
  return false;
}

// The runs of bytes of an access, in the order of their addresses; none if they are too many.
void RaceDetector::collect_runs(const Access& access,
                                std::vector<std::pair<Address, Address>>& runs) const {
  if (access.dense) {
    runs.emplace_back(access.begin, access.end);
    return;
  }
  const Layout& layout = layouts_[access.layout];
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (std::size_t dim = 0; dim < layout.sizes.size(); ++dim) {
    const std::int64_t stride =
        layout.strides[dim] < 0 ? -layout.strides[dim] : layout.strides[dim];
    if (layout.sizes[dim] > 1 && stride != 0) dims.emplace_back(stride, layout.sizes[dim]);
  }
  std::ranges::sort(dims);
  std::int64_t run = layout.element_bytes;
  std::size_t inner = 0;
  while (inner < dims.size() && dims[inner].first <= run) {
    run += dims[inner].first * (dims[inner].second - 1);
    ++inner;
  }
  std::vector<Address> starts{access.begin};
  for (std::size_t dim = inner; dim < dims.size(); ++dim) {
    const std::size_t count = starts.size();
    if (count * static_cast<std::size_t>(dims[dim].second) > kMostRuns) {
      return;
    }
    for (std::int64_t index = 1; index < dims[dim].second; ++index) {
      const auto offset = static_cast<Address>(index * dims[dim].first);
      for (std::size_t i = 0; i < count; ++i) starts.push_back(starts[i] + offset);
    }
  }
  std::ranges::sort(starts);
  for (const Address start : starts) runs.emplace_back(start, start + static_cast<Address>(run));
}

// --- Memory -------------------------------------------------------------------------------------

std::vector<RaceDetector::Ghost>& RaceDetector::ghosts_of(Party owner, std::uint64_t pool) {
  return ghosts_[{owner, pool}];
}

void RaceDetector::on_memory(const MemoryRecord& record) noexcept {
  const std::lock_guard lock(mutex_);
  switch (record.kind) {
    case MemoryKind::allocate:
    case MemoryKind::pinned_allocate:
      add_block(record);
      break;
    case MemoryKind::free:
    case MemoryKind::pinned_free:
      drop_block(record);
      break;
    case MemoryKind::record_stream: {
      const auto found = blocks_.find(record.address);
      if (found == blocks_.end()) break;
      const Party user = party_of(*record.stream);
      std::vector<Party>& users = found->second.users;
      if (std::ranges::find(users, user) == users.end()) users.push_back(user);
      break;
    }
  }
}

void RaceDetector::add_block(const MemoryRecord& record) {
  Block* block;
  const auto known = blocks_.find(record.address);  // nobody told of its end
  if (known != blocks_.end()) {
    block = &known->second;
  } else if (spare_.empty()) {
    block = &blocks_[record.address];
  } else {
    Blocks::node_type node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = record.address;
    block = &blocks_.insert(std::move(node)).position->second;
  }
  block->address = record.address;
  block->bytes = record.bytes;
  block->pool = record.pool;
  block->site = record.site;
  block->accesses.clear();
  block->users.clear();
  block->ghosts.clear();
  block->owner = record.stream == nullptr ? 0 : launch(*record.stream);
  if (block->owner == 0) return;
  // What was freed too early may lie in any block that its stream gets next: which one is a matter
  // of sizes, and so of luck.
  std::vector<Ghost>& ghosts = ghosts_of(block->owner, block->pool);
  if (ghosts.empty()) return;
  std::erase_if(ghosts, [&](const Ghost& ghost) { return knows(block->owner, ghost.access); });
  block->ghosts = ghosts;
}

// Whether nothing keeps the memory of a block that is freed from being used before an access to it
// is over.
bool RaceDetector::leaves_ghost(const Block& block, const Access& access) const noexcept {
  if (block.owner == 0 || knows(block.owner, access) || knows(/*the host*/ 0, access)) return false;
  // The allocator waits for what each user was given until now, and so for what came before that.
  return std::ranges::none_of(
      block.users, [&](Party user) { return user == access.party || knows(user, access); });
}

// The last access of a stream stands for those before it: one record_stream() is missing for all.
bool RaceDetector::is_last_of_its_party(const Block& block, const Access& access) noexcept {
  return std::ranges::none_of(block.accesses, [&](const Access& other) {
    return other.party == access.party && other.sequence > access.sequence;
  });
}

bool RaceDetector::wants_site_of_free(Address address) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  const Block& block = found->second;
  return std::ranges::any_of(block.accesses,
                             [&](const Access& access) { return leaves_ghost(block, access); });
}

// The map's node of the freed block is kept for the next allocation: in a training loop blocks come
// and go at every step, and observers must not allocate in the long run.
void RaceDetector::drop_block(const MemoryRecord& record) {
  const auto found = blocks_.find(record.address);
  if (found == blocks_.end()) return;
  const Block& block = found->second;
  for (const Access& access : block.accesses) {
    if (!leaves_ghost(block, access) || !is_last_of_its_party(block, access)) continue;
    std::vector<Ghost>& ghosts = ghosts_of(block.owner, block.pool);
    if (ghosts.size() == kMostGhosts) ghosts.erase(ghosts.begin());
    ghosts.push_back({access, block.address, block.bytes, block.site, record.site});
  }
  if (Block*& recent = recent_block(record.address); recent == &block) recent = nullptr;
  spare_.push_back(blocks_.extract(found));
}

// --- Reports ------------------------------------------------------------------------------------

RacingAccess RaceDetector::describe(const Access& access) const {
  const Layout& layout = layouts_[access.layout];
  const Place& place = places_[access.party];
  return {access.name,
          place.device,
          place.stream,
          access.written,
          layout.type == nullptr ? "" : layout.type,
          layout.sizes,
          access.site,
          access.sequence};
}

// Reports a pair of places once: loops would repeat it at every step. With a ghost the place is the
// freed block's, because the second access is whatever got the memory.
void RaceDetector::report(Missing missing, const Access& first, const Access& second,
                          const Block& block, const Ghost* ghost) {
  std::uint64_t key = mixed(static_cast<std::uint64_t>(missing) + 1, first.site);
  key = mixed(key, text_hash(first.name));
  key = mixed(key, ghost != nullptr ? ghost->site : second.site);
  if (ghost == nullptr) key = mixed(key, text_hash(second.name));
  if (reported_.size() == kMostRaces || !reported_.insert(key).second) return;
  Race race{missing, describe(first), describe(second)};
  race.allocation_bytes = ghost != nullptr ? ghost->bytes : block.bytes;
  race.allocation_device = places_[block.owner].device;
  race.allocation_stream = places_[block.owner].stream;
  race.allocation_site = ghost != nullptr ? ghost->site : block.site;
  race.free_site = ghost != nullptr ? ghost->free_site : 0;
  race.same_place = ghost == nullptr || (first.begin < second.end && second.begin < first.end);
  races_.push_back(std::move(race));
  waiting_.store(races_.size(), std::memory_order_release);
}

std::vector<Race> RaceDetector::take_races() {
  const std::lock_guard lock(mutex_);
  std::vector<Race> taken;
  taken.swap(races_);
  waiting_.store(0, std::memory_order_release);
  return taken;
}

void RaceDetector::report_again() {
  const std::lock_guard lock(mutex_);
  reported_.clear();
}

void RaceDetector::forget() {
  const std::lock_guard lock(mutex_);
  blocks_.clear();
  recent_blocks_.fill(nullptr);
  ghosts_.clear();
  marks_.clear();
  races_.clear();
  reported_.clear();
  waiting_.store(0, std::memory_order_release);
}

}  // namespace npusim
