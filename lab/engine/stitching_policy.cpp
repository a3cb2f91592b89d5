// SPDX-License-Identifier: BSD-3-Clause
// Stitching, after GMLake: large requests get whole 2 MiB pages, and free physical blocks that do
// not lie together serve one request through addresses of its own. Stitched ranges are kept, so
// that a request of a size seen before finds one ready. Small requests go to a caching allocator.
//
//   physical   |#####|--a--|####|---b---|##|-c-|        a, b, c are free
//   stitched   |--a--|---b---|-c-|                      one range behind new addresses
#include <algorithm>
#include <list>
#include <set>
#include <vector>

#include "allocator/caching_allocator.h"
#include "lab/engine/names.h"
#include "lab/engine/policies.h"

namespace npusim::lab {
namespace {

struct Stitched;

// A run of pages in one segment.
struct Physical {
  Address address = 0;
  std::uint64_t bytes = 0;
  Address segment = 0;
  bool is_used = false;
  std::vector<Stitched*> stitches;  // that it is a part of
};

struct Stitched {
  Address address = 0;
  std::uint64_t bytes = 0;
  std::vector<Physical*> parts;
  std::size_t used_parts = 0;
};

struct BySize {
  using is_transparent = void;  // NOLINT(readability-identifier-naming): the library's name
  bool operator()(const Physical* a, const Physical* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
  }
  bool operator()(const Physical* a, std::uint64_t bytes) const { return a->bytes < bytes; }
};

class StitchingPolicy final : public PlacementPolicy {
 public:
  StitchingPolicy(PolicySettings& settings, PlacementDevice& device)
      : device_(device),
        most_stitched_(settings.number("most_stitched", 256, 1, 1 << 20)),
        small_(device) {}

  Placement malloc(const PlacementRequest& request) override {
    if (request.bytes > kRequestLimit) return {};
    if (request.bytes < kPage) return malloc_small(request);
    const std::uint64_t bytes = (request.bytes + kPage - 1) / kPage * kPage;
    if (Physical* block = exact(bytes)) return use(block);
    if (Stitched* range = exact_stitched(bytes)) return use(range);
    if (Physical* block = larger(bytes)) return use(cut(block, bytes));
    return stitch(bytes);
  }

  void free(const Placement& placement, const PlacementRequest&) override {
    if (const auto it = small_blocks_.find(placement.address); it != small_blocks_.end()) {
      small_.free(it->second);
      small_blocks_.erase(it);
      return;
    }
    for (Physical* part : users_.at(placement.address)) set_used(part, false);
    users_.erase(placement.address);
  }

  void empty_cache() override {
    small_.empty_cache();
    while (drop_oldest_stitched()) {
    }
    std::map<Address, std::uint64_t> free_bytes;
    for (const Physical* block : free_) free_bytes[block->segment] += block->bytes;
    for (auto it = segments_.begin(); it != segments_.end();) {
      const auto [address, bytes] = *it;
      if (free_bytes[address] < bytes) {
        ++it;
        continue;
      }
      std::erase_if(free_, [&](const Physical* block) { return block->segment == address; });
      physical_.remove_if([&](const Physical& block) { return block.segment == address; });
      device_.release_segment(address, bytes);
      it = segments_.erase(it);
    }
  }

  void add_metrics(std::map<std::string, double>& metrics) const override {
    metrics["stitches"] = static_cast<double>(stitches_);
    metrics["stitches_reused"] = static_cast<double>(reuses_);
  }

 private:
  static constexpr std::uint64_t kPage = 2 * kMiB;

  Placement malloc_small(const PlacementRequest& request) {
    Block* block = small_.malloc(request.bytes, request.stream);
    if (!block) return {};
    small_blocks_[block->address] = block;
    return {block->address, block->bytes};
  }

  void set_used(Physical* block, bool is_used) {
    block->is_used = is_used;
    if (is_used) {
      free_.erase(block);
    } else {
      free_.insert(block);
    }
    for (Stitched* range : block->stitches) range->used_parts += is_used ? 1 : ~std::size_t{0};
  }

  Placement use(Physical* block) {
    set_used(block, true);
    users_[block->address] = {block};
    return {block->address, block->bytes};
  }

  Placement use(Stitched* range) {
    for (Physical* part : range->parts) set_used(part, true);
    users_[range->address] = range->parts;
    return {range->address, range->bytes};
  }

  Physical* larger(std::uint64_t bytes) {
    const auto it = free_.lower_bound(bytes);
    return it == free_.end() ? nullptr : *it;
  }
  Physical* exact(std::uint64_t bytes) {
    Physical* block = larger(bytes);
    return block && block->bytes == bytes ? block : nullptr;
  }
  Stitched* exact_stitched(std::uint64_t bytes) {
    for (Stitched& range : stitched_) {
      if (range.bytes != bytes || range.used_parts > 0) continue;
      ++reuses_;
      return &range;
    }
    return nullptr;
  }

  // The low part of a free block; stitched ranges go on with both parts.
  Physical* cut(Physical* block, std::uint64_t bytes) {
    if (block->bytes == bytes) return block;
    free_.erase(block);
    physical_.push_back(
        {block->address + bytes, block->bytes - bytes, block->segment, false, block->stitches});
    Physical* rest = &physical_.back();
    block->bytes = bytes;
    for (Stitched* range : block->stitches) {
      const auto at = std::find(range->parts.begin(), range->parts.end(), block);
      range->parts.insert(std::next(at), rest);
    }
    free_.insert(block);
    free_.insert(rest);
    return block;
  }

  Physical* acquire(std::uint64_t bytes) {
    const SegmentResult result = device_.acquire_segment(bytes);
    if (result.status != SegmentResult::Status::ok) return nullptr;
    segments_[result.address] = bytes;
    physical_.push_back({result.address, bytes, result.address, false, {}});
    free_.insert(&physical_.back());
    return &physical_.back();
  }

  // Free blocks, the largest first, and new memory for what they lack.
  Placement stitch(std::uint64_t bytes) {
    std::vector<Physical*> parts;
    std::uint64_t missing = bytes;
    for (auto it = free_.rbegin(); it != free_.rend() && missing > 0; ++it) {
      parts.push_back(*it);
      missing -= std::min(missing, (*it)->bytes);
    }
    if (missing > 0) {
      Physical* block = acquire(missing);
      if (!block) return {};
      parts.push_back(block);
    } else {
      std::uint64_t before = 0;
      for (const Physical* part : parts) before += part->bytes;
      Physical* last = parts.back();
      cut(last, last->bytes - (before - bytes));
    }
    if (parts.size() == 1) return use(parts.front());
    if (stitched_.size() >= most_stitched_) drop_oldest_stitched();
    std::vector<PlacementDevice::Piece> pieces;
    pieces.reserve(parts.size());
    for (const Physical* part : parts) pieces.emplace_back(part->address, part->bytes);
    stitched_.push_back({device_.stitch(pieces), bytes, parts, 0});
    ++stitches_;
    for (Physical* part : parts) part->stitches.push_back(&stitched_.back());
    return use(&stitched_.back());
  }

  bool drop_oldest_stitched() {
    const auto is_out = [this](const Stitched& range) { return users_.contains(range.address); };
    const auto it = std::find_if_not(stitched_.begin(), stitched_.end(), is_out);
    if (it == stitched_.end()) return false;
    for (Physical* part : it->parts) std::erase(part->stitches, &*it);
    device_.unstitch(it->address);
    stitched_.erase(it);
    return true;
  }

  PlacementDevice& device_;
  const std::size_t most_stitched_;
  std::map<Address, std::uint64_t> segments_;
  std::list<Physical> physical_;
  std::set<Physical*, BySize> free_;
  std::list<Stitched> stitched_;                     // oldest first
  std::map<Address, std::vector<Physical*>> users_;  // by the address given out
  CachingAllocator small_;
  std::map<Address, Block*> small_blocks_;
  std::uint64_t stitches_ = 0, reuses_ = 0;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_stitching_policy(PolicySettings& settings,
                                                       PlacementDevice& device) {
  return std::make_unique<StitchingPolicy>(settings, device);
}

}  // namespace npusim::lab
