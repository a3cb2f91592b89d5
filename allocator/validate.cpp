// SPDX-License-Identifier: BSD-3-Clause
// Sums and walks over the picture, compared with what the allocator claims.
#include "allocator/validate.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <tuple>

namespace npusim::alloc {
namespace {

// What the counters of one pool must read, recomputed from the blocks.
struct Totals {
  std::int64_t segments = 0, reserved = 0, allocations = 0, allocated = 0, active_blocks = 0;
  std::int64_t active = 0, requested = 0, free = 0, inactive_blocks = 0, inactive = 0;
};

class Judge {
 public:
  explicit Judge(const Snapshot& picture) : picture_(picture) {}

  std::vector<std::string> judge(const std::map<Address, std::size_t>* lent) {
    Address end = 0;
    for (const SegmentInfo& segment : picture_.segments) {
      if (segment.address < end) say("segments overlap or are out of order at ", segment.address);
      end = segment.address + segment.total_bytes;
      check_segment(segment);
      for (Totals* totals : {&totals_[0], &totals_[segment.is_large ? 2 : 1]}) {
        add(*totals, segment);
      }
    }
    for (std::size_t pool = 0; pool < 3; ++pool) check_stats(pool);
    check_free_order();
    check_oversize();
    check_pools();
    if (lent) check_lent(*lent);
    return std::move(found_);
  }

 private:
  template <class... Parts>
  void say(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    found_.push_back(text.str());
  }

  void check_segment(const SegmentInfo& segment) {
    Address at = segment.address;
    bool after_free = false;
    for (const BlockInfo& block : segment.blocks) {
      if (block.address != at) say("block at ", block.address, " should start at ", at);
      if (block.bytes == 0) say("empty block at ", block.address);
      if (block.bytes % picture_.config.quantum_bytes != 0) {
        say("block at ", block.address, " has ", block.bytes, " bytes, no multiple of the quantum");
      }
      if (block.state == BlockState::unused || block.state == BlockState::unmapped) {
        say("block without memory at ", block.address);
      }
      const bool is_free = block.state == BlockState::free;
      if (is_free && after_free) say("two free neighbours at ", block.address);
      if (!is_free && (block.requested_bytes == 0 || block.requested_bytes > block.bytes)) {
        say("block at ", block.address, " of ", block.bytes, " bytes serves a request of ",
            block.requested_bytes);
      }
      after_free = is_free;
      at += block.bytes;
    }
    if (at != segment.address + segment.total_bytes) {
      say("blocks of the segment at ", segment.address, " end at ", at);
    }
  }

  static void add(Totals& totals, const SegmentInfo& segment) {
    totals.segments += !segment.is_expandable;
    totals.reserved += static_cast<std::int64_t>(segment.total_bytes);
    for (const BlockInfo& block : segment.blocks) {
      const auto bytes = static_cast<std::int64_t>(block.bytes);
      if (block.state == BlockState::free) {
        totals.free += bytes;
        if (segment.blocks.size() > 1 && !segment.is_expandable) {
          totals.inactive_blocks += 1;
          totals.inactive += bytes;
        }
        continue;
      }
      totals.active_blocks += 1;
      totals.active += bytes;
      totals.requested += static_cast<std::int64_t>(block.requested_bytes);
      if (block.state != BlockState::allocated) continue;
      totals.allocations += 1;
      totals.allocated += bytes;
    }
  }

  void check(const char* name, std::size_t pool, const Stat& stat, std::int64_t expected) {
    if (stat.current != expected) {
      say(name, " of pool ", pool, " is ", stat.current, ", the blocks say ", expected);
    }
    if (stat.peak < stat.current || stat.current < 0) {
      say(name, " of pool ", pool, ": current ", stat.current, ", peak ", stat.peak);
    }
  }

  void check_stats(std::size_t pool) {
    const Stats& s = picture_.stats;
    const Totals& t = totals_[pool];
    check("segment", pool, s.segment[pool], t.segments);
    check("reserved_bytes", pool, s.reserved_bytes[pool], t.reserved);
    check("allocation", pool, s.allocation[pool], t.allocations);
    check("allocated_bytes", pool, s.allocated_bytes[pool], t.allocated);
    check("active", pool, s.active[pool], t.active_blocks);
    check("active_bytes", pool, s.active_bytes[pool], t.active);
    check("requested_bytes", pool, s.requested_bytes[pool], t.requested);
    check("inactive_split", pool, s.inactive_split[pool], t.inactive_blocks);
    check("inactive_split_bytes", pool, s.inactive_split_bytes[pool], t.inactive);
    if (t.reserved != t.active + t.free) say("reserved is not active + free in pool ", pool);
  }

  // The search order must be: by pool, small blocks first, then by stream, size and tie-break.
  void check_free_order() {
    using Key = std::tuple<PoolId, bool, StreamId, std::size_t, std::int64_t, Address>;
    std::vector<Key> keys;
    const auto order = [this](const SegmentInfo& segment, const BlockInfo& block) {
      switch (picture_.config.tie_break) {
        case TieBreak::address:
          return std::int64_t{0};
        case TieBreak::creation:
          return block.order;
        default:
          return segment.registration;
      }
    };
    for (const SegmentInfo& segment : picture_.segments) {
      for (const BlockInfo& block : segment.blocks) {
        if (block.state != BlockState::free) continue;
        keys.emplace_back(segment.pool, segment.is_large, segment.stream, block.bytes,
                          order(segment, block), block.address);
      }
    }
    std::sort(keys.begin(), keys.end());
    std::vector<Address> expected;
    expected.reserve(keys.size());
    for (const Key& key : keys) expected.push_back(std::get<5>(key));
    if (expected != picture_.free_order) {
      say("the free index holds ", picture_.free_order.size(),
          " blocks in its order, the segments ", expected.size(), " free blocks in theirs");
    }
  }

  void check_oversize() {
    std::int64_t blocks = 0, segments = 0;
    const std::size_t limit = picture_.config.max_split_bytes;
    for (const SegmentInfo& segment : picture_.segments) {
      segments += segment.total_bytes >= limit && !segment.is_expandable;
      for (const BlockInfo& block : segment.blocks) {
        blocks += block.state == BlockState::allocated && block.bytes >= limit;
      }
    }
    check("oversize_allocations", 0, picture_.stats.oversize_allocations, blocks);
    check("oversize_segments", 0, picture_.stats.oversize_segments, segments);
  }

  // What each private pool claims to hold, and that only pools it knows hold anything.
  void check_pools() {
    std::map<PoolId, std::array<std::int64_t, 3>> held;
    for (const SegmentInfo& segment : picture_.segments) {
      if (segment.pool.is_default()) continue;
      for (const std::size_t kind : {std::size_t{0}, std::size_t{segment.is_large ? 2u : 1u}}) {
        held[segment.pool][kind] += static_cast<std::int64_t>(segment.total_bytes);
      }
    }
    for (const PoolInfo& pool : picture_.pools) {
      for (std::size_t kind = 0; kind < 3; ++kind) {
        check("private reserved_bytes", kind, pool.reserved_bytes[kind], held[pool.id][kind]);
      }
      held.erase(pool.id);
    }
    for (const auto& [id, bytes] : held) {
      say("pool (", id.first, ", ", id.second, ") holds ", bytes[0], " bytes and does not exist");
    }
  }

  void check_lent(const std::map<Address, std::size_t>& lent) {
    std::map<Address, std::size_t> held;
    for (const SegmentInfo& segment : picture_.segments)
      held[segment.address] = segment.total_bytes;
    if (held != lent) {
      say("the provider lent ", lent.size(), " segments, the allocator holds ", held.size());
    }
  }

  const Snapshot& picture_;
  std::array<Totals, 3> totals_{};  // all, small, large
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> violations(const Snapshot& picture,
                                    const std::map<Address, std::size_t>* lent) {
  return Judge(picture).judge(lent);
}

}  // namespace npusim::alloc
