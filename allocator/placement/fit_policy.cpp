// SPDX-License-Identifier: BSD-3-Clause
// The fits of the textbooks, on one structure: free ranges that merge with their neighbours. They
// differ in which free range a request gets:
//
//   best-fit    the smallest that is large enough, the lowest of these
//   first-fit   the lowest
//   next-fit    the next one after the last request's, then from the lowest
//   tlsf        one of the next class of sizes, 32 classes to a doubling, the one freed last: all
//   that
//               are in it are large enough, so nothing is searched (two-level segregated fit)
//   bins        one of exactly its class, four classes to a doubling, and what is carved for a
//   class
//               stays in it: nothing splits or merges (segregated free lists)
#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <utility>

#include "allocator/placement/arenas.h"
#include "allocator/placement/policies.h"

namespace npusim::alloc {
namespace {

enum class Rule : std::uint8_t { best, first, next, tlsf };

// The class of a size: `split` to a doubling.
std::uint64_t class_of(std::uint64_t bytes, std::uint64_t split) {
  const auto log = static_cast<std::uint64_t>(std::bit_width(bytes)) - 1;
  const std::uint64_t within = log >= 63 ? 0 : (bytes - (std::uint64_t{1} << log)) * split >> log;
  return log * split + within;
}

// The least size of the class above, or the size itself where it is the least of its own.
std::uint64_t round_to_class(std::uint64_t bytes, std::uint64_t split) {
  const auto log = static_cast<unsigned>(std::bit_width(bytes)) - 1;
  const std::uint64_t step = std::max<std::uint64_t>((std::uint64_t{1} << log) / split, 1);
  return (bytes + step - 1) / step * step;
}

class FitPolicy final : public PlacementPolicy {
 public:
  FitPolicy(PolicySettings& settings, PlacementDevice& device, Rule rule)
      : rule_(rule),
        quantum_(settings.number("quantum_bytes", 512, 1, kMiB)),
        arenas_(settings, device) {}

  Placement malloc(const PlacementRequest& request) override {
    if (request.bytes > kRequestLimit) return {};
    const std::uint64_t bytes = (request.bytes + quantum_ - 1) / quantum_ * quantum_;
    auto block = find(bytes);
    if (block == blocks_.end()) {
      if (!grow(bytes)) return {};
      block = find(bytes);
      if (block == blocks_.end()) return {};
    }
    take(block, bytes);
    if (rule_ == Rule::next) cursor_ = block->first + bytes;
    return {block->first, bytes};
  }

  void free(const Placement& placement, const PlacementRequest&) override {
    add(join(blocks_.find(placement.address)));
  }

  void empty_cache() override {
    for (auto it = blocks_.begin(); it != blocks_.end();) {
      const auto block = it++;
      if (!block->second.is_free) continue;
      const bool is_whole = arenas_.is_one() || block->second.bytes == block->second.segment_bytes;
      if (!is_whole) continue;
      const AddressRange given{block->first, block->second.bytes};
      remove(block);
      const AddressRange left = arenas_.give_back(given);
      if (left.bytes == 0) {
        blocks_.erase(block);
      } else {
        block->second.bytes = left.bytes;
        add(block);
      }
    }
  }

 private:
  struct Block {
    std::uint64_t bytes = 0;
    Address segment = 0;
    std::uint64_t segment_bytes = 0;
    bool is_free = false;
    std::uint64_t freed = 0;  // when, counted down: the last one comes first
  };
  using Blocks = std::map<Address, Block>;
  static constexpr std::uint64_t kSplit = 32;

  // The key by which a free block is found: its size, or class and time.
  std::pair<std::uint64_t, std::uint64_t> key(Blocks::const_iterator block) const {
    if (rule_ != Rule::tlsf) return {block->second.bytes, block->first};
    return {class_of(block->second.bytes, kSplit), block->second.freed};
  }

  void add(Blocks::iterator block) {
    block->second.is_free = true;
    block->second.freed = --clock_;
    if (rule_ == Rule::best || rule_ == Rule::tlsf)
      sized_.emplace(key(block), block->first);
    else
      placed_.insert(block->first);
  }
  void remove(Blocks::iterator block) {
    block->second.is_free = false;
    if (rule_ == Rule::best || rule_ == Rule::tlsf)
      sized_.erase(key(block));
    else
      placed_.erase(block->first);
  }

  Blocks::iterator find(std::uint64_t bytes) {
    if (rule_ == Rule::best || rule_ == Rule::tlsf) {
      std::pair<std::uint64_t, std::uint64_t> least{bytes, 0};
      if (rule_ == Rule::tlsf) least = {class_of(round_to_class(bytes, kSplit), kSplit), 0};
      const auto found = sized_.lower_bound(least);
      return found == sized_.end() ? blocks_.end() : blocks_.find(found->second);
    }
    const Address from = rule_ == Rule::next ? cursor_ : 0;
    const auto start = placed_.lower_bound(from);
    for (auto it = start; it != placed_.end(); ++it) {
      if (const auto block = blocks_.find(*it); block->second.bytes >= bytes) return block;
    }
    for (auto it = placed_.begin(); it != start; ++it) {
      if (const auto block = blocks_.find(*it); block->second.bytes >= bytes) return block;
    }
    return blocks_.end();
  }

  void take(Blocks::iterator block, std::uint64_t bytes) {
    remove(block);
    Block rest = block->second;
    if (rest.bytes == bytes) return;
    rest.bytes -= bytes;
    block->second.bytes = bytes;
    add(blocks_.emplace(block->first + bytes, rest).first);
  }

  bool grow(std::uint64_t bytes) {
    if (rule_ == Rule::tlsf) bytes = round_to_class(bytes, kSplit);
    std::uint64_t more = bytes;
    if (arenas_.is_one() && !blocks_.empty() && blocks_.rbegin()->second.is_free) {
      more -= std::min(bytes - 1, blocks_.rbegin()->second.bytes);
    }
    const AddressRange range = arenas_.grow(more);
    if (range.address == 0) return false;
    const Address segment = arenas_.is_one() ? arenas_.begin() : range.address;
    const auto block =
        blocks_
            .emplace(range.address,
                     Block{.bytes = range.bytes, .segment = segment, .segment_bytes = range.bytes})
            .first;
    add(join(block));
    return true;
  }

  // A block with the free ones beside it; these are not free any more.
  Blocks::iterator join(Blocks::iterator block) {
    const auto joins = [&](Blocks::iterator other) {
      return other != blocks_.end() && other->second.is_free &&
             other->second.segment == block->second.segment;
    };
    if (const auto next = std::next(block); joins(next)) {
      remove(next);
      block->second.bytes += next->second.bytes;
      blocks_.erase(next);
    }
    if (block == blocks_.begin()) return block;
    const auto before = std::prev(block);
    if (!joins(before)) return block;
    remove(before);
    before->second.bytes += block->second.bytes;
    blocks_.erase(block);
    return before;
  }

  const Rule rule_;
  const std::uint64_t quantum_;
  Arenas arenas_;
  Blocks blocks_;                                                     // all of them
  std::map<std::pair<std::uint64_t, std::uint64_t>, Address> sized_;  // free, by key()
  std::set<Address> placed_;                                          // free
  std::uint64_t clock_ = ~std::uint64_t{0};
  Address cursor_ = 0;
};

class BinsPolicy final : public PlacementPolicy {
 public:
  BinsPolicy(PolicySettings& settings, PlacementDevice& device)
      : quantum_(settings.number("quantum_bytes", 512, 1, kMiB)), arenas_(settings, device) {}

  Placement malloc(const PlacementRequest& request) override {
    if (request.bytes > kRequestLimit) return {};
    const std::uint64_t least = (request.bytes + quantum_ - 1) / quantum_ * quantum_;
    const std::uint64_t sized = round_to_class(least, kSplit);
    const std::uint64_t bytes = (sized + quantum_ - 1) / quantum_ * quantum_;
    std::vector<Address>& bin = bins_[bytes];
    if (bin.empty() && !carve(bytes)) return {};
    const Address address = bin.back();
    bin.pop_back();
    ++segments_.at(segment_of(address)).live;
    return {address, bytes};
  }

  void free(const Placement& placement, const PlacementRequest&) override {
    bins_[placement.bytes].push_back(placement.address);
    --segments_.at(segment_of(placement.address)).live;
  }

  void empty_cache() override {
    for (auto it = segments_.begin(); it != segments_.end();) {
      const auto [address, segment] = *it;
      if (segment.live > 0 || arenas_.is_one()) {
        ++it;
        continue;
      }
      for (auto& [bytes, bin] : bins_) {
        std::erase_if(bin, [&](Address at) { return at - address < segment.bytes; });
      }
      if (next_ - address <= segment.bytes) next_ = end_ = 0;
      arenas_.give_back({address, segment.bytes});
      it = segments_.erase(it);
    }
  }

 private:
  struct Segment {
    std::uint64_t bytes = 0;
    std::uint64_t live = 0;  // blocks
  };
  static constexpr std::uint64_t kSplit = 4;

  Address segment_of(Address address) const {
    return std::prev(segments_.upper_bound(address))->first;
  }

  // A new block of a class, from where the last one ended, or from a new segment.
  bool carve(std::uint64_t bytes) {
    if (end_ - next_ < bytes) {
      const bool is_longer = arenas_.is_one() && next_ != 0;
      const AddressRange range = arenas_.grow(is_longer ? bytes - (end_ - next_) : bytes);
      if (range.address == 0) return false;
      if (!is_longer) next_ = range.address;
      end_ = range.address + range.bytes;
      segments_[is_longer ? arenas_.begin() : range.address].bytes += range.bytes;
    }
    bins_[bytes].push_back(next_);
    next_ += bytes;
    return true;
  }

  const std::uint64_t quantum_;
  Arenas arenas_;
  std::map<std::uint64_t, std::vector<Address>> bins_;  // free, by size
  std::map<Address, Segment> segments_;
  Address next_ = 0, end_ = 0;  // what is not carved yet
};

}  // namespace

PolicyPointer make_best_fit_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<FitPolicy>(settings, device, Rule::best);
}
PolicyPointer make_first_fit_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<FitPolicy>(settings, device, Rule::first);
}
PolicyPointer make_next_fit_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<FitPolicy>(settings, device, Rule::next);
}
PolicyPointer make_tlsf_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<FitPolicy>(settings, device, Rule::tlsf);
}
PolicyPointer make_bins_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<BinsPolicy>(settings, device);
}

}  // namespace npusim::alloc
