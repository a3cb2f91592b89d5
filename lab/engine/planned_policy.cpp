// SPDX-License-Identifier: BSD-3-Clause
// A plan made before the run, after STAlloc: the lifetimes in the trace give every request its
// offset in one arena. Where a plan does not hold, because memory stayed in use longer than
// recorded, the request goes to a caching allocator beside the arena.
#include <iterator>
#include <vector>

#include "allocator/caching_allocator.h"
#include "lab/engine/names.h"
#include "lab/engine/plan.h"
#include "lab/engine/policies.h"

namespace npusim::lab {
namespace {

class PlannedPolicy final : public PlacementPolicy {
 public:
  PlannedPolicy(PolicySettings& settings, PlacementDevice& device, const Trace& trace)
      : device_(device), quantum_(settings.number("align_bytes", 512, 1, kMiB)), online_(device) {
    std::vector<Buffer> buffers;
    buffers.reserve(trace.mallocs());
    for (std::size_t i = 0; i < trace.mallocs(); ++i) {
      buffers.push_back(
          {trace.malloc_event()[i], trace.completed_event()[i], trace.malloc_bytes()[i]});
    }
    PlanRequest asked{.alignment = quantum_, .effort = {.steps = kSteps}};
    if (buffers.size() > kMostThorough) asked.method = PlanMethod::skyline;
    plan_ = plan(buffers, asked);
  }

  Placement malloc(const PlacementRequest& request) override {
    if (request.bytes > kRequestLimit) return {};
    if (arena_ == 0) {
      const SegmentResult result = device_.acquire_segment(plan_.height);
      if (result.status != SegmentResult::Status::ok) return malloc_online(request);
      arena_ = result.address;
    }
    const Address at = arena_ + plan_.offsets[request.number];
    const std::uint64_t bytes = (request.bytes + quantum_ - 1) / quantum_ * quantum_;
    const auto next = planned_.lower_bound(at);
    const bool hits_next = next != planned_.end() && next->first < at + bytes;
    const bool hits_before = next != planned_.begin() && std::prev(next)->second > at;
    if (hits_next || hits_before) return malloc_online(request);
    planned_.emplace_hint(next, at, at + bytes);
    return {at, bytes};
  }

  void free(const Placement& placement, const PlacementRequest&) override {
    if (planned_.erase(placement.address) > 0) return;
    const auto it = online_blocks_.find(placement.address);
    online_.free(it->second);
    online_blocks_.erase(it);
  }

  void empty_cache() override {
    online_.empty_cache();
    if (arena_ == 0 || !planned_.empty()) return;
    device_.release_segment(arena_, plan_.height);
    arena_ = 0;
  }

  void add_metrics(std::map<std::string, double>& metrics) const override {
    metrics["plan_bytes"] = static_cast<double>(plan_.height);
    metrics["unplanned_mallocs"] = static_cast<double>(unplanned_);
  }

 private:
  static constexpr std::size_t kMostThorough = 20000;   // mallocs: beyond, one heuristic only
  static constexpr std::uint64_t kSteps = 100'000'000;  // of the search: a fraction of a second

  Placement malloc_online(const PlacementRequest& request) {
    ++unplanned_;
    Block* block = online_.malloc(request.bytes, request.stream);
    if (!block) return {};
    online_blocks_[block->address] = block;
    return {block->address, block->bytes};
  }

  PlacementDevice& device_;
  const std::uint64_t quantum_;
  CachingAllocator online_;
  Plan plan_;
  Address arena_ = 0;
  std::map<Address, Address> planned_;  // live: begin -> end
  std::map<Address, Block*> online_blocks_;
  std::uint64_t unplanned_ = 0;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_planned_policy(PolicySettings& settings,
                                                     PlacementDevice& device, const Trace& trace) {
  return std::make_unique<PlannedPolicy>(settings, device, trace);
}

}  // namespace npusim::lab
