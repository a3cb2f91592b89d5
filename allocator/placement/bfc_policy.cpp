// SPDX-License-Identifier: BSD-3-Clause
// Best fit with coalescing, as in TensorFlow: chunks are multiples of 256 bytes, free ones lie in
// 21 bins by powers of two, ordered in each by size, then address. A chunk splits when it is twice
// as large as wanted, or when more than `max_waste_mb` would be left over. Regions double in size.
#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <set>
#include <utility>

#include "allocator/config.h"
#include "allocator/placement/policies.h"

namespace npusim::alloc {
namespace {

class BfcPolicy final : public PlacementPolicy {
 public:
  BfcPolicy(PolicySettings& settings, PlacementDevice& device)
      : device_(device),
        max_waste_(settings.number("max_waste_mb", 128, 0, 1 << 20) * kMiB),
        next_region_(settings.number("region_mb", 2, 1, 1 << 20) * kMiB) {}

  Placement malloc(const PlacementRequest& request) override {
    if (request.bytes > kRequestLimit) return {};
    const std::uint64_t bytes = (request.bytes + kQuantum - 1) / kQuantum * kQuantum;
    if (const Address found = take(bytes)) return {found, chunks_.at(found).bytes};
    if (!extend(bytes)) return {};
    const Address found = take(bytes);
    return {found, chunks_.at(found).bytes};
  }

  void free(const Placement& placement, const PlacementRequest&) override {
    auto it = chunks_.find(placement.address);
    const auto next = std::next(it);
    if (next != chunks_.end() && joins(it->second, next->second)) {
      bin(next->second.bytes).erase({next->second.bytes, next->first});
      it->second.bytes += next->second.bytes;
      chunks_.erase(next);
    }
    if (it != chunks_.begin()) {
      const auto before = std::prev(it);
      if (joins(it->second, before->second)) {
        bin(before->second.bytes).erase({before->second.bytes, before->first});
        before->second.bytes += it->second.bytes;
        chunks_.erase(it);
        it = before;
      }
    }
    it->second.is_free = true;
    bin(it->second.bytes).insert({it->second.bytes, it->first});
  }

  void empty_cache() override {  // TensorFlow's garbage collection of free regions
    for (auto it = regions_.begin(); it != regions_.end();) {
      const auto [address, bytes] = *it;
      const auto chunk = chunks_.find(address);
      if (!chunk->second.is_free || chunk->second.bytes != bytes) {
        ++it;
        continue;
      }
      bin(bytes).erase({bytes, address});
      chunks_.erase(chunk);
      device_.release_segment(address, bytes);
      it = regions_.erase(it);
    }
  }

 private:
  static constexpr std::uint64_t kQuantum = 256;
  using Bin = std::set<std::pair<std::uint64_t, Address>>;  // bytes, address
  struct Chunk {
    std::uint64_t bytes = 0;
    Address region = 0;
    bool is_free = false;
  };

  static bool joins(const Chunk& chunk, const Chunk& neighbour) {
    return neighbour.is_free && neighbour.region == chunk.region;
  }
  static std::size_t bin_number(std::uint64_t bytes) {
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(bytes / kQuantum)) - 1,
                                 20);
  }
  Bin& bin(std::uint64_t bytes) { return bins_[bin_number(bytes)]; }

  Address take(std::uint64_t bytes) {
    for (std::size_t number = bin_number(bytes); number < bins_.size(); ++number) {
      const auto found = bins_[number].lower_bound({bytes, 0});
      if (found == bins_[number].end()) continue;
      const Address address = found->second;
      bins_[number].erase(found);
      Chunk& chunk = chunks_.at(address);
      chunk.is_free = false;
      const std::uint64_t rest = chunk.bytes - bytes;
      if (chunk.bytes >= 2 * bytes || (rest > 0 && rest >= max_waste_)) {
        chunk.bytes = bytes;
        chunks_[address + bytes] = {rest, chunk.region, true};
        bin(rest).insert({rest, address + bytes});
      }
      return address;
    }
    return 0;
  }

  bool extend(std::uint64_t bytes) {
    const std::uint64_t room =
        (device_.capacity_bytes() - device_.reserved_bytes()) / kQuantum * kQuantum;
    if (bytes > room) return false;
    bool has_grown = false;
    for (; next_region_ < bytes; has_grown = true) next_region_ *= 2;
    const std::uint64_t region = std::min(next_region_, room);
    const SegmentResult result = device_.acquire_segment(region);
    if (result.status != SegmentResult::Status::ok) return false;
    if (!has_grown) next_region_ *= 2;
    regions_[result.address] = region;
    chunks_[result.address] = {region, result.address, true};
    bin(region).insert({region, result.address});
    return true;
  }

  PlacementDevice& device_;
  const std::uint64_t max_waste_;
  std::uint64_t next_region_;
  std::array<Bin, 21> bins_;
  std::map<Address, Chunk> chunks_;
  std::map<Address, std::uint64_t> regions_;
};

}  // namespace

PolicyPointer make_bfc_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<BfcPolicy>(settings, device);
}

}  // namespace npusim::alloc
