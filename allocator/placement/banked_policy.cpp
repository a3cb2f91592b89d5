// SPDX-License-Identifier: BSD-3-Clause
// Best fit for interleaved banks. Of the few smallest free blocks that are large enough it takes
// the one where the least shift makes the request begin in a bank that the allocations before it do
// not begin in; what the shift leaves in front stays free. `aware:0` is the same without regard to
// banks.
#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <utility>

#include "allocator/config.h"
#include "allocator/placement/banks.h"
#include "allocator/placement/policies.h"

namespace npusim::alloc {
namespace {

class BankedPolicy final : public PlacementPolicy {
 public:
  BankedPolicy(PolicySettings& settings, PlacementDevice& device) : device_(device) {
    banks_.count = settings.number("banks", banks_.count, 1, 1 << 16);
    banks_.stride_bytes = settings.number("stride_bytes", banks_.stride_bytes, 32, kMiB);
    banks_.window = settings.number("window", banks_.window, 0, 64);
    is_aware_ = settings.number("aware", 1, 0, 1) == 1;
  }

  Placement malloc(const PlacementRequest& request) override {
    if (request.bytes > kRequestLimit) return {};
    const std::uint64_t bytes = (request.bytes + kQuantum - 1) / kQuantum * kQuantum;
    std::pair<std::uint64_t, Address> chosen{};
    std::uint64_t least_shift = kUnlimited;
    int looked_at = 0;
    for (auto it = free_.lower_bound({bytes, 0}); it != free_.end() && looked_at < kCandidates;
         ++it, ++looked_at) {
      const std::uint64_t shift = shift_for(it->second);
      if (shift >= least_shift || (shift > 0 && shift + bytes > it->first)) continue;
      least_shift = shift;
      chosen = *it;
      if (shift == 0) break;
    }
    if (least_shift == kUnlimited) {  // none, or none that can be shifted: new memory, or the best
      chosen = acquire(bytes);
      if (chosen.second == 0) {
        const auto best = free_.lower_bound({bytes, 0});
        if (best == free_.end()) return {};
        chosen = *best;
      }
      least_shift = shift_for(chosen.second);
      if (least_shift + bytes > chosen.first) least_shift = 0;
    }
    return take(chosen, least_shift, bytes, request);
  }

  void free(const Placement& placement, const PlacementRequest& request) override {
    std::erase_if(recent_, [&](const auto& entry) { return entry.first == request.number; });
    auto it = blocks_.find(placement.address);
    it->second.is_free = true;
    const auto next = std::next(it);
    if (next != blocks_.end() && joins(it->second, next->second)) {
      free_.erase({next->second.bytes, next->first});
      it->second.bytes += next->second.bytes;
      blocks_.erase(next);
    }
    if (it != blocks_.begin()) {
      const auto before = std::prev(it);
      if (joins(it->second, before->second)) {
        free_.erase({before->second.bytes, before->first});
        before->second.bytes += it->second.bytes;
        blocks_.erase(it);
        it = before;
      }
    }
    free_.insert({it->second.bytes, it->first});
  }

  void empty_cache() override {
    for (auto it = segments_.begin(); it != segments_.end();) {
      const auto [address, bytes] = *it;
      if (free_.erase({bytes, address}) == 0) {
        ++it;
        continue;
      }
      blocks_.erase(address);
      device_.release_segment(address, bytes);
      it = segments_.erase(it);
    }
  }

  void add_metrics(std::map<std::string, double>& metrics) const override {
    metrics["bank_pairs"] = static_cast<double>(found_.pairs);
    metrics["bank_conflicts"] = static_cast<double>(found_.conflicts);
  }

 private:
  static constexpr std::uint64_t kQuantum = 512;
  static constexpr int kCandidates = 8;
  struct Part {
    std::uint64_t bytes = 0;
    Address segment = 0;
    bool is_free = false;
  };

  static bool joins(const Part& part, const Part& neighbour) {
    return neighbour.is_free && neighbour.segment == part.segment;
  }

  // How far a request must move up from the start of a block to begin in a bank of its own.
  std::uint64_t shift_for(Address address) const {
    if (!is_aware_) return 0;
    const std::uint64_t step = std::max(banks_.stride_bytes, kQuantum);
    for (std::uint64_t shift = 0; shift < step * banks_.count; shift += step) {
      const std::uint64_t bank = banks_.of(address + shift);
      const bool is_taken = std::any_of(recent_.begin(), recent_.end(), [&](const auto& entry) {
        return banks_.of(entry.second) == bank;
      });
      if (!is_taken) return shift;
    }
    return 0;
  }

  std::pair<std::uint64_t, Address> acquire(std::uint64_t bytes) {
    const std::uint64_t segment = segment_bytes_for(rules_, bytes);
    const SegmentResult result = device_.acquire_segment(segment);
    if (result.status != SegmentResult::Status::ok) return {};
    segments_[result.address] = segment;
    blocks_[result.address] = {segment, result.address, true};
    free_.insert({segment, result.address});
    return {segment, result.address};
  }

  Placement take(const std::pair<std::uint64_t, Address>& chosen, std::uint64_t shift,
                 std::uint64_t bytes, const PlacementRequest& request) {
    free_.erase(chosen);
    const auto [room, address] = chosen;
    const Address segment = blocks_.at(address).segment;
    if (shift > 0) {
      blocks_[address] = {shift, segment, true};
      free_.insert({shift, address});
    }
    const Address at = address + shift;
    blocks_[at] = {bytes, segment, false};
    if (const std::uint64_t rest = room - shift - bytes; rest > 0) {
      blocks_[at + bytes] = {rest, segment, true};
      free_.insert({rest, at + bytes});
    }
    for (const auto& [number, other] : recent_) {
      ++found_.pairs;
      found_.conflicts += banks_.of(other) == banks_.of(at);
    }
    recent_.emplace_back(request.number, at);
    while (!recent_.empty() && recent_.front().first + banks_.window <= request.number) {
      recent_.pop_front();
    }
    return {at, bytes};
  }

  PlacementDevice& device_;
  Banks banks_;
  bool is_aware_ = true;
  const Config rules_ = preset("cuda-2.13");          // for the sizes of segments
  std::set<std::pair<std::uint64_t, Address>> free_;  // bytes, address
  std::map<Address, Part> blocks_;
  std::map<Address, std::uint64_t> segments_;
  std::deque<std::pair<std::uint64_t, Address>> recent_;  // live ones of the last `window` mallocs
  BankConflicts found_;
};

}  // namespace

PolicyPointer make_banked_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<BankedPolicy>(settings, device);
}

}  // namespace npusim::alloc
