// SPDX-License-Identifier: BSD-3-Clause
// Buddy allocation: every block is a power of two and lies at a multiple of its size in its
// segment; a block splits into two halves, and two free halves of one block merge again.
//
//   segment|--------------- 32 MiB ---------------|
//          |------- 16 -------|------- 16 --------|
//          |-- 8 --|--- 8 ----|
#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <vector>

#include "allocator/placement/arenas.h"
#include "allocator/placement/policies.h"

namespace npusim::alloc {
namespace {

class BuddyPolicy final : public PlacementPolicy {
 public:
  BuddyPolicy(PolicySettings& settings, PlacementDevice& device)
      : least_(std::bit_ceil(settings.number("least_bytes", 512, 1, kMiB))),
        arenas_(settings, device),
        free_(65) {}

  Placement malloc(const PlacementRequest& request) override {
    if (request.bytes > std::uint64_t{1} << 60) return {};
    const std::uint64_t bytes = std::max(std::bit_ceil(request.bytes), least_);
    const auto wanted = static_cast<std::size_t>(std::countr_zero(bytes));
    std::size_t order = order_from(wanted);
    if (order == free_.size()) {
      if (!grow(bytes)) return {};
      order = order_from(wanted);
    }
    const Address address = *free_[order].begin();  // lowest address of the smallest order
    free_[order].erase(free_[order].begin());
    while (order > wanted) {
      --order;
      free_[order].insert(address + (std::uint64_t{1} << order));
    }
    return {address, bytes};
  }

  void free(const Placement& placement, const PlacementRequest&) override {
    give(placement.address, static_cast<std::size_t>(std::countr_zero(placement.bytes)));
  }

  void empty_cache() override {
    for (auto it = segments_.begin(); it != segments_.end();) {
      const auto [base, bytes] = *it;
      if (arenas_.is_one() || !take_all(base, bytes)) {
        ++it;
        continue;
      }
      arenas_.give_back({base, bytes});
      it = segments_.erase(it);
    }
  }

 private:
  std::size_t order_from(std::size_t order) const {
    while (order < free_.size() && free_[order].empty()) ++order;
    return order;
  }

  // Blocks lie at multiples of their size from the base of their segment; the highest two buddies
  // of a segment whose size is no power of two are of two sizes, and never merge.
  Address base_of(Address address) const {
    return std::prev(segments_.upper_bound(address))->first;
  }

  void give(Address address, std::size_t order) {
    const Address base = base_of(address);
    std::uint64_t offset = address - base;
    for (; order + 1 < free_.size(); ++order) {
      const auto buddy = free_[order].find(base + (offset ^ std::uint64_t{1} << order));
      if (buddy == free_[order].end() || base_of(*buddy) != base) break;
      free_[order].erase(buddy);
      offset &= ~(std::uint64_t{1} << order);
    }
    free_[order].insert(base + offset);
  }

  // New memory, as the largest blocks that may lie in it.
  bool grow(std::uint64_t bytes) {
    std::uint64_t more = bytes;
    if (arenas_.is_one() && arenas_.begin() != 0) {  // up to where such a block may lie
      const std::uint64_t used = arenas_.end() - arenas_.begin();
      more = (used + bytes - 1) / bytes * bytes + bytes - used;
    }
    const AddressRange range = arenas_.grow(more);
    if (range.address == 0) return false;
    const Address base = arenas_.is_one() ? arenas_.begin() : range.address;
    segments_[base] += range.bytes;
    for_each_block(range.address - base, range.bytes,
                   [&](std::uint64_t offset, std::size_t order) { give(base + offset, order); });
    return true;
  }

  // Takes all of a segment from the free blocks; false where some of it is in use.
  bool take_all(Address base, std::uint64_t bytes) {
    bool is_free = true;
    for_each_block(0, bytes, [&](std::uint64_t offset, std::size_t order) {
      is_free = is_free && free_[order].contains(base + offset);
    });
    if (!is_free) return false;
    for_each_block(0, bytes, [&](std::uint64_t offset, std::size_t order) {
      free_[order].erase(base + offset);
    });
    return true;
  }

  template <class Visit>
  static void for_each_block(std::uint64_t offset, std::uint64_t bytes, const Visit& visit) {
    while (bytes > 0) {
      const std::uint64_t fits = std::bit_floor(bytes);
      const std::uint64_t size = offset == 0 ? fits : std::min(fits, offset & (~offset + 1));
      visit(offset, static_cast<std::size_t>(std::countr_zero(size)));
      offset += size;
      bytes -= size;
    }
  }

  const std::uint64_t least_;
  Arenas arenas_;
  std::vector<std::set<Address>> free_;        // [log2 of the size]
  std::map<Address, std::uint64_t> segments_;  // base -> bytes
};

}  // namespace

PolicyPointer make_buddy_policy(PolicySettings& settings, PlacementDevice& device) {
  return std::make_unique<BuddyPolicy>(settings, device);
}

}  // namespace npusim::alloc
