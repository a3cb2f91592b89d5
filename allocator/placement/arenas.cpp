// SPDX-License-Identifier: BSD-3-Clause
// Sizes of segments, and the pages at the end of the one arena.
#include "allocator/placement/arenas.h"

#include <algorithm>

#include "allocator/error.h"

namespace npusim::alloc {
namespace {

constexpr std::uint64_t kPageBytes = 2 * kMiB;
constexpr std::uint64_t kMostReserved = std::uint64_t{1} << 46;  // addresses, which cost nothing

std::uint64_t pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

Arenas::Arenas(PolicySettings& settings, PlacementDevice& device) : device_(device) {
  const std::string rule = settings.word("arena", "cuda");
  if (rule == "cuda") return;
  if (rule == "one") {
    if (!device.can_map()) {
      throw InvalidArgument("arena:one grows by pages, which this device cannot map");
    }
    rule_ = Rule::one;
    reserved_ = kMostReserved;
    return;
  }
  rule_ = Rule::size;
  segment_ = settings.whole("arena", rule, 1, 1 << 20, "cuda, one, or a size in MiB: ") * kMiB;
}

Arenas::~Arenas() {
  if (!is_one() || begin_ == 0) return;
  if (end_ > begin_) device_.unmap(begin_, end_ - begin_);
  device_.release_range(begin_, reserved_);
}

AddressRange Arenas::grow(std::uint64_t bytes) {
  if (!is_one()) {
    const std::uint64_t segment =
        rule_ == Rule::cuda ? segment_bytes_for(cuda_, bytes) : std::max(segment_, pages(bytes));
    const SegmentResult result = device_.acquire_segment(segment);
    if (result.status != SegmentResult::Status::ok) return {};
    return {result.address, segment};
  }
  if (begin_ == 0) {
    const SegmentResult range = device_.reserve_range(reserved_);
    if (range.status != SegmentResult::Status::ok) return {};
    begin_ = end_ = range.address;
  }
  const std::uint64_t more = pages(bytes);
  if (more > reserved_ - (end_ - begin_)) return {};
  if (device_.map(end_, more).status != SegmentResult::Status::ok) return {};
  const AddressRange found{end_, more};
  end_ += more;
  return found;
}

AddressRange Arenas::give_back(AddressRange range) {
  if (!is_one()) {
    device_.release_segment(range.address, range.bytes);
    return {};
  }
  if (range.address + range.bytes != end_) return range;
  const std::uint64_t less = range.bytes / kPageBytes * kPageBytes;
  if (less == 0) return range;
  end_ -= less;
  device_.unmap(end_, less);
  return {range.address, range.bytes - less};
}

}  // namespace npusim::alloc
