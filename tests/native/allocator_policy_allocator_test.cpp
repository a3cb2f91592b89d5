// SPDX-License-Identifier: BSD-3-Clause
// PolicyAllocator: what it adds to a policy, and what it refuses from one.
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "allocator/error.h"
#include "allocator/fake_provider.h"
#include "allocator/policy_allocator.h"
#include "tests/native/check.h"

using namespace npusim::alloc;

namespace {

PolicyAllocator::Maker built_in(std::string name, std::string settings = {}) {
  return [=](PlacementDevice& device) { return make_live_policy(name, settings, device); };
}

// Does what the test tells it to.
struct Script {
  std::deque<Placement> answers;
  std::vector<PlacementRequest> asked;
  std::vector<Address> freed;
  int emptied = 0;
  PlacementDevice* device = nullptr;
  std::vector<Address> release_on_free;
};

class ScriptedPolicy final : public PlacementPolicy {
 public:
  ScriptedPolicy(Script& script, PlacementDevice& device) : script_(script) {
    script_.device = &device;
  }
  Placement malloc(const PlacementRequest& request) override {
    script_.asked.push_back(request);
    if (script_.answers.empty()) return {};
    const Placement answer = script_.answers.front();
    script_.answers.pop_front();
    return answer;
  }
  void free(const Placement& placement, const PlacementRequest&) override {
    script_.freed.push_back(placement.address);
    for (const Address address : script_.release_on_free) {
      script_.device->release_segment(address, script_.device->lent().at(address));
    }
  }
  void empty_cache() override { ++script_.emptied; }

 private:
  Script& script_;
};

struct Scripted {
  FakeProvider provider{64 * kMiB};
  Script script;
  PolicyAllocator allocator{provider, "scripted", [this](PlacementDevice& device) {
                              return std::make_unique<ScriptedPolicy>(script, device);
                            }};
  Address arena = script.device->acquire_segment(kMiB).address;
};

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Segments tiled by their blocks, sums that agree with the statistics.
void check_picture(PolicyAllocator& allocator, const std::map<Address, std::size_t>& lent) {
  const Snapshot picture = allocator.inspect();
  std::size_t allocated = 0, active = 0, requested = 0;
  std::map<Address, std::size_t> segments;
  for (const SegmentInfo& segment : picture.segments) {
    segments[segment.address] = segment.total_bytes;
    Address at = segment.address;
    for (const BlockInfo& block : segment.blocks) {
      CHECK_EQ(block.address, at);
      at += block.bytes;
    }
    CHECK_EQ(at, segment.address + segment.total_bytes);
    allocated += segment.allocated_bytes;
    active += segment.active_bytes;
    requested += segment.requested_bytes;
  }
  CHECK(segments == lent);
  const auto current = [](const StatArray& stat) {
    return static_cast<std::size_t>(stat[0].current);
  };
  CHECK_EQ(current(picture.stats.allocated_bytes), allocated);
  CHECK_EQ(current(picture.stats.active_bytes), active);
  CHECK_EQ(current(picture.stats.requested_bytes), requested);
}

}  // namespace

TEST(built_in_policies_run_live) {
  for (const char* name : {"buddy", "bfc", "banked"}) {
    FakeProvider provider(256 * kMiB);
    PolicyAllocator allocator(provider, name, built_in(name));
    std::mt19937 random(7);
    std::vector<Block*> live;
    for (int step = 0; step < 4000; ++step) {
      if (live.size() < 60 && random() % 2 == 0) {
        const std::size_t bytes =
            std::size_t{1} + random() % (std::size_t{1} << (5 + random() % 17));
        OutOfMemoryReport report;
        Block* block = allocator.malloc(bytes, random() % 3, &report);
        if (!block) continue;
        CHECK(block->bytes >= bytes);
        for (const Block* other : live) {
          CHECK(block->address + block->bytes <= other->address ||
                other->address + other->bytes <= block->address);
        }
        CHECK(allocator.find(block->address) == block);
        live.push_back(block);
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        if (random() % 4 == 0) {
          provider.run(5, 100);
          allocator.record_stream(live.back(), 5);
        }
        allocator.free(live.back());
        live.pop_back();
        provider.advance(20);
      }
      if (step % 100 == 0) check_picture(allocator, provider.live_segments());
      if (step % 1000 == 999) allocator.empty_cache();
    }
    for (Block* block : live) allocator.free(block);
    allocator.empty_cache();
    check_picture(allocator, provider.live_segments());
    CHECK_EQ(allocator.stats().active_bytes[0].current, 0);
    if (std::string(name) != "banked") CHECK_EQ(provider.live_bytes(), 0);
  }
}

TEST(policies_that_need_more_than_a_device_are_refused) {
  FakeProvider provider(64 * kMiB);
  for (const char* name : {"planned", "stitching", "best"}) {
    CHECK(!is_live_policy(name));
    const std::string error = error_of([&] { PolicyAllocator(provider, name, built_in(name)); });
    CHECK(has(error,
              "expected one of npusim, cuda-2.13, cuda-2.12, cuda-2.11, cuda-2.9, cuda-2.4, "
              "ascend, bfc, buddy, banked"));
  }
  CHECK(is_live_policy("buddy") && is_live_policy("./mine.so"));
  const std::string error =
      error_of([&] { PolicyAllocator(provider, "buddy", built_in("buddy", "arenas:1")); });
  CHECK(has(error, "\"arenas\" is not a key"));
}

TEST(wrong_placements_never_reach_the_caller) {  // (rule L5)
  Scripted test;
  const auto answer = [&](Address address, std::uint64_t bytes) {
    test.script.answers = {{address, bytes}};
    return error_of([&] { test.allocator.malloc(1000, 0); });
  };
  CHECK_EQ(answer(test.arena, 4096), "accepted");
  CHECK(has(answer(test.arena, 4096), "which is in use"));
  CHECK(has(answer(test.arena + 2048, 4096), "which overlap those of malloc "));
  CHECK(has(answer(test.arena + 8192, 999), "of 1000 bytes got 999 at"));
  CHECK(has(answer(test.arena + 8200, 1024), "not a multiple of 32"));
  CHECK(has(answer(test.arena + kMiB - 512, 1024), "not all of which are lent"));
  CHECK(has(answer(4096, 1024), "policy scripted: malloc 6 of 1000 bytes got 1024 at 0x1000"));
  CHECK_EQ(answer(test.arena + 4096, 1024), "accepted");
  CHECK_EQ(test.allocator.stats().allocation[0].current, 2);
}

TEST(memory_in_use_is_not_given_back) {
  Scripted test;
  test.script.answers = {{test.arena, 1024}, {test.arena + 1024, 1024}};
  Block* first = test.allocator.malloc(1000, 0);
  Block* second = test.allocator.malloc(1000, 0);
  test.script.release_on_free = {test.arena};
  CHECK(has(error_of([&] { test.allocator.free(first); }), "in which blocks are live"));
  CHECK_EQ(test.provider.live_bytes(), kMiB);
  test.allocator.free(second);
  CHECK_EQ(test.provider.live_bytes(), 0);
}

TEST(a_failure_is_tried_again_after_pending_frees_and_after_empty_cache) {
  Scripted test;
  test.script.answers = {{test.arena, 1024}};
  Block* block = test.allocator.malloc(1000, 0);
  test.provider.run(3, 500);
  test.allocator.record_stream(block, 3);
  test.allocator.free(block);
  CHECK(test.script.freed.empty());
  CHECK_EQ(test.allocator.stats().active[0].current, 1);
  OutOfMemoryReport report;
  CHECK(test.allocator.malloc(2000, 0, &report) == nullptr);
  CHECK_EQ(test.script.freed.size(), 1);
  CHECK_EQ(test.script.asked.size(), 1 + 3);
  CHECK_EQ(test.script.emptied, 1);
  CHECK_EQ(report.requested_bytes, 2000);
  CHECK_EQ(report.reserved_bytes, kMiB);
  CHECK_EQ(test.allocator.stats().num_ooms, 1);
  CHECK(test.allocator.malloc(std::size_t{1} << 60, 0, &report) == nullptr);
  CHECK(report.cause == OutOfMemoryReport::Cause::over_one_exabyte);
}

TEST(streams_and_pools_are_small_numbers_for_the_policy) {
  Scripted test;
  for (int i = 0; i < 4; ++i) {
    test.script.answers.push_back({test.arena + 1024 * static_cast<Address>(i), 1024});
  }
  test.allocator.retain_pool({0, 17});
  test.allocator.malloc(1, -7);
  test.allocator.malloc(1, 1000);
  test.allocator.malloc(1, -7, nullptr, 0, {0, 17});
  CHECK_EQ(test.script.asked[0].stream, 1);  // 0 is the default stream
  CHECK_EQ(test.script.asked[1].stream, 2);
  CHECK_EQ(test.script.asked[2].stream, 1);
  CHECK_EQ(test.script.asked[2].pool, 1);
  CHECK_EQ(test.script.asked[2].number, 2);
  test.allocator.release_pool({0, 17});
  CHECK(has(error_of([&] { test.allocator.malloc(1, 0, nullptr, 0, {0, 17}); }), "has no users"));
  CHECK(has(error_of([&] { test.allocator.retain_pool({0, 18}, {.use_on_oom = true}); }),
            "pools have no options"));
}

TEST(wrong_frees_are_named) {
  Scripted test;
  test.script.answers = {{test.arena, 1024}};
  Block* block = test.allocator.malloc(1000, 0);
  std::string why;
  CHECK(test.allocator.free_address(block->address + 8, &why) == FreeStatus::interior);
  CHECK(has(why, "8 bytes inside the block"));
  CHECK(test.allocator.free_address(42, &why) == FreeStatus::foreign);
  CHECK(test.allocator.free_address(test.arena) == FreeStatus::ok);
  CHECK(test.allocator.free_address(test.arena, &why) == FreeStatus::double_free);
  CHECK(has(error_of([&] { test.allocator.free(block); }), "freed already"));
  FakeProvider other(kMiB);
  PolicyAllocator stranger(other, "buddy", built_in("buddy"));
  CHECK(has(error_of([&] { stranger.free(block); }), "belongs to another allocator"));
}

TEST(a_fraction_limits_what_a_policy_is_lent) {
  FakeProvider provider(64 * kMiB);
  PolicyAllocator allocator(provider, "buddy", built_in("buddy", "arena:8"));
  allocator.set_memory_fraction(0.125);
  CHECK(allocator.malloc(kMiB, 0) != nullptr);
  OutOfMemoryReport report;
  CHECK(allocator.malloc(8 * kMiB, 0, &report) == nullptr);
  CHECK(report.cause == OutOfMemoryReport::Cause::over_limit);
  CHECK_EQ(*report.allowed_bytes, 8 * kMiB);
  allocator.set_memory_fraction(1.0);
  CHECK(allocator.malloc(8 * kMiB, 0) != nullptr);
  CHECK_THROWS(allocator.set_memory_fraction(1.5), InvalidArgument);
}

TEST(a_block_is_not_the_record_of_one_that_came_back_while_it_was_placed) {
  FakeProvider provider(4 * kMiB);
  PolicyAllocator allocator(provider, "buddy", built_in("buddy", "arena:4"));
  for (Block* pending : {allocator.malloc(2 * kMiB, 0), allocator.malloc(2 * kMiB, 0)}) {
    allocator.record_stream(pending, 1);
    provider.run(1, 1000);
    allocator.free(pending);
  }
  Block* block = allocator.malloc(2 * kMiB, 0);  // waits for the pending one
  Block* other = allocator.malloc(2 * kMiB, 0);
  CHECK(block != other);
  CHECK(block->address != other->address);
  allocator.free(block);
  allocator.free(other);
  CHECK_EQ(allocator.stats().allocation[PoolKind::all].current, 0);
}

TEST(history_has_the_events_of_torch) {
  FakeProvider provider(64 * kMiB);
  PolicyAllocator allocator(provider, "bfc", built_in("bfc"));
  allocator.record_history(HistoryMode::all);
  allocator.free(allocator.malloc(100, 0, nullptr, 11));
  allocator.empty_cache();
  const Snapshot snapshot = allocator.snapshot();
  CHECK_EQ(snapshot.policy, "bfc");
  std::vector<HistoryAction> actions;
  for (const HistoryEntry& entry : snapshot.history) actions.push_back(entry.action);
  using Action = HistoryAction;
  CHECK(actions ==
        (std::vector<Action>{Action::segment_alloc, Action::alloc, Action::free_requested,
                             Action::free_completed, Action::empty_cache, Action::segment_free,
                             Action::snapshot}));
  CHECK(!is_torchs(Action::empty_cache));
  CHECK_EQ(snapshot.history[1].context, 11);
}
