// SPDX-License-Identifier: BSD-3-Clause
// Rules that change while the allocator is in use, and pools put back to an earlier picture.
#include <random>

#include "allocator/allocator.h"
#include "allocator/fake_provider.h"
#include "allocator/validate.h"
#include "tests/native/check.h"

using namespace npusim::alloc;

namespace {

std::string first_violation(const CachingAllocator& allocator) {
  const auto found = violations(allocator.inspect());
  return found.empty() ? "" : found.front();
}

// Address, bytes and state of every block of a pool.
using Picture = std::vector<std::tuple<Address, std::size_t, BlockState>>;
std::vector<SegmentInfo> segments_of(const CachingAllocator& allocator, PoolId pool) {
  std::vector<SegmentInfo> segments = allocator.inspect().segments;
  std::erase_if(segments, [&](const SegmentInfo& segment) { return segment.pool != pool; });
  return segments;
}
Picture picture_of(const std::vector<SegmentInfo>& segments) {
  Picture out;
  for (const SegmentInfo& segment : segments) {
    for (const BlockInfo& block : segment.blocks) {
      out.emplace_back(block.address, block.bytes, block.state);
    }
  }
  return out;
}

}  // namespace

TEST(later_settings_switch_off_what_they_do_not_name) {
  const std::string first = "roundup_power2_divisions:[64:8, >:4],expandable_segments:True";
  CHECK_EQ(parse_config({}, first).roundup_power2_divisions[0], 8);
  const std::string second = followed_by(first, "max_split_size_mb:64");
  CHECK_EQ(second, "expandable_segments:True,max_split_size_mb:64");
  CHECK_EQ(followed_by(second, ""), "expandable_segments:True");
  CHECK_EQ(followed_by("garbage_collection_threshold:0.5", ""), "");
}

TEST(requests_follow_the_rules_of_their_time) {
  FakeProvider device(kGiB);
  CachingAllocator allocator(device);
  Block* plain = allocator.malloc(22 * kMiB, 0);
  allocator.change_config(parse_config({}, "roundup_power2_divisions:4"));
  Block* rounded = allocator.malloc(22 * kMiB, 0);
  CHECK_EQ(plain->bytes, 22 * kMiB);
  CHECK_EQ(rounded->bytes, 24 * kMiB);
  allocator.change_config(parse_config({}, "max_split_size_mb:23"));
  CHECK_EQ(allocator.stats().oversize_allocations.current, 1);
  CHECK_EQ(first_violation(allocator), "");
  allocator.free(plain);
  allocator.free(rounded);
  CHECK_EQ(allocator.stats().oversize_allocations.current, 0);
  CHECK_EQ(first_violation(allocator), "");
}

TEST(rules_of_structure_never_change) {
  FakeProvider device(kGiB);
  CachingAllocator allocator(device);
  for (const char* keys : {"quantum_bytes:64", "fit:first", "large_segment_size_mb:40"}) {
    CHECK_THROWS(allocator.change_config(parse_config(allocator.config(), keys)), InvalidArgument);
  }
  CHECK(allocator.config() == Config{});
}

TEST(expandable_segments_switched_off_are_not_taken_and_switched_on_again_serve) {
  FakeProvider device(kGiB);
  CachingAllocator allocator(device, parse_config({}, "expandable_segments:True"));
  Block* pages = allocator.malloc(30 * kMiB, 0);
  const Address of_pages = pages->address;
  allocator.free(pages);
  allocator.change_config(parse_config(allocator.config(), "expandable_segments:False"));
  Block* plain = allocator.malloc(30 * kMiB, 0);
  CHECK(plain->address != of_pages);
  CHECK(!plain->segment->is_expandable);
  allocator.change_config(parse_config(allocator.config(), "expandable_segments:True"));
  Block* again = allocator.malloc(30 * kMiB, 0);
  CHECK_EQ(again->address, of_pages);
  CHECK_EQ(first_violation(allocator), "");
  allocator.free(plain);
  allocator.free(again);
  CHECK_EQ(first_violation(allocator), "");
  allocator.empty_cache();
  CHECK_EQ(device.live_bytes(), 0);
}

// Any switches among any requests leave a state that the judge accepts.
TEST(random_switches_keep_the_identities) {
  FakeProvider device(8 * kGiB);
  CachingAllocator allocator(device);
  std::mt19937 random(7);
  std::string settings;
  std::vector<Block*> live;
  for (int step = 0; step < 3000; ++step) {
    if (step % 97 == 0) {
      const char* keys[] = {"expandable_segments:True", "expandable_segments:False",
                            "max_split_size_mb:32", "roundup_power2_divisions:8", ""};
      settings = followed_by(settings, keys[random() % 5]);
      allocator.change_config(parse_config({}, settings));
    }
    if (step % 211 == 0) allocator.empty_cache();
    if (live.size() < 40 && random() % 2 == 0) {
      const std::size_t unit = random() % 3 == 0 ? kMiB : kKiB;
      live.push_back(allocator.malloc((1 + random() % 64) * unit, random() % 2));
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      allocator.free(live.back());
      live.pop_back();
    }
    if (step % 10 == 0) CHECK_EQ(first_violation(allocator), "");
  }
  for (Block* block : live) allocator.free(block);
  allocator.empty_cache();
  CHECK_EQ(device.live_bytes(), 0);
}

TEST(a_pool_gets_its_earlier_blocks_back) {
  const PoolId pool{0, 1};
  for (const char* keys : {"", "expandable_segments:True"}) {
    FakeProvider device(8 * kGiB);
    CachingAllocator allocator(device, parse_config({}, keys));
    allocator.retain_pool(pool);
    std::mt19937 random(11);
    std::vector<Block*> live;
    const auto run = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        if (live.size() < 20 && random() % 2 == 0) {
          const std::size_t unit = random() % 2 == 0 ? kMiB : kKiB;
          live.push_back(allocator.malloc((1 + random() % 24) * unit, 0, nullptr, 0, pool));
        } else if (!live.empty()) {
          std::swap(live[random() % live.size()], live.back());
          allocator.free(live.back());
          live.pop_back();
        }
      }
    };
    run(100);
    const std::vector<SegmentInfo> then = segments_of(allocator, pool);
    run(300);
    Block* stays = live.front();
    const Address address = stays->address;
    const std::vector<Address> freed = allocator.restore_pool(pool, then);
    CHECK_EQ(first_violation(allocator), "");
    Picture now = picture_of(segments_of(allocator, pool));
    for (const auto& block : picture_of(then)) {
      if (std::get<2>(block) == BlockState::allocated) {
        CHECK(std::find(now.begin(), now.end(), block) != now.end());
      }
    }
    const bool was_freed = std::find(freed.begin(), freed.end(), address) != freed.end();
    CHECK_EQ(was_freed, allocator.find(address) != stays);
    CHECK(allocator.restore_pool(pool, then).empty());  // there is nothing left to do
    CHECK_THROWS(allocator.restore_pool({0, 2}, then), InvalidArgument);
  }
}

TEST(a_pool_that_cannot_go_back_stays_as_it_is) {
  const PoolId pool{0, 1};
  FakeProvider device(8 * kGiB);
  CachingAllocator allocator(device);
  allocator.retain_pool(pool);
  Block* early = allocator.malloc(4 * kMiB, 0, nullptr, 0, pool);
  const std::vector<SegmentInfo> then = segments_of(allocator, pool);
  allocator.free(early);
  // Half of the memory is lent again, and another stream may still use it when it is freed.
  Block* used = allocator.malloc(2 * kMiB, 0, nullptr, 0, pool);
  Block* other = allocator.malloc(3 * kMiB, 0, nullptr, 0, pool);
  allocator.record_stream(used, 1);
  const Picture before = picture_of(segments_of(allocator, pool));
  CHECK_THROWS(allocator.restore_pool(pool, then), InvalidArgument);
  CHECK(picture_of(segments_of(allocator, pool)) == before);
  CHECK_EQ(first_violation(allocator), "");
  allocator.free(used);
  allocator.free(other);
}
