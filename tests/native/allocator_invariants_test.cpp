// SPDX-License-Identifier: BSD-3-Clause
// Random traces under several configurations, judged after every event by allocator/validate.cpp;
// the same with the k-th fallible call of the provider failing, for every k.
#include <array>
#include <random>

#include "allocator/allocator.h"
#include "allocator/fake_provider.h"
#include "allocator/validate.h"
#include "tests/native/check.h"

using namespace npusim::alloc;

namespace {

void judge(const CachingAllocator& allocator, const FakeProvider& provider) {
  const auto found = violations(allocator.inspect(), &provider.live_segments());
  if (!found.empty()) check::fail(__FILE__, __LINE__, found.front());
}

struct Setup {
  const char* name;
  Config config;
  std::size_t capacity_bytes;
};

std::vector<Setup> setups() {
  std::vector<Setup> all;
  all.push_back({"npusim", preset("npusim"), 2 * kGiB});
  all.push_back({"tight", preset("npusim"), 96 * kMiB});
  all.push_back({"cuda-2.13 tight", preset("cuda-2.13"), 128 * kMiB});
  all.push_back({"cuda-2.12", preset("cuda-2.12"), 128 * kMiB});
  all.push_back({"cuda-2.11", preset("cuda-2.11"), kGiB});
  Config config = parse_config(preset("cuda-2.13"), "max_split_size_mb:24");
  all.push_back({"max_split", config, 256 * kMiB});
  config = parse_config(config,
                        "garbage_collection_threshold:0.3,per_process_memory_fraction:0.7,"
                        "max_split_size_mb:24");
  all.push_back({"collected", config, 400 * kMiB});
  config = parse_config(preset("npusim"), "roundup_power2_divisions:[1:8,4:2,>:4],pad_bytes:32");
  all.push_back({"divisions", config, 512 * kMiB});
  all.push_back({"ascend", preset("ascend"), kGiB});
  config = parse_config(preset("npusim"), "expandable_segments:True");
  all.push_back({"expandable", config, 2 * kGiB});
  all.push_back({"expandable tight", config, 84 * kMiB});
  config = parse_config(preset("cuda-2.13"), "expandable_segments:True,max_split_size_mb:24");
  all.push_back({"expandable max_split", config, 200 * kMiB});
  all.push_back({"first fit", parse_config(preset("npusim"), "fit:first"), 128 * kMiB});
  return all;
}

// Driver: one random event at a time. What the trace does depends on its seed alone.
class Driver {
 public:
  Driver(CachingAllocator& allocator, FakeProvider& provider, unsigned seed)
      : allocator_(allocator), provider_(provider), random_(seed) {}

  void step() {
    const auto choice = random_() % 100;
    const std::size_t pick = random_();
    const std::size_t bytes = size();
    const auto stream = static_cast<StreamId>(random_() % 3);
    try {
      if (choice < 50 || live_.empty()) {
        const PoolId pool{0, pick % 4};
        const bool is_private = pool.second > 0 && users_[pool.second] > 0;
        Block* block = allocator_.malloc(bytes, stream, nullptr, 0, is_private ? pool : PoolId{});
        if (block) live_.push_back(block);
      } else if (choice < 88) {
        Block*& block = live_[pick % live_.size()];
        allocator_.free(block);
        block = live_.back();
        live_.pop_back();
      } else if (choice < 95) {
        allocator_.record_stream(live_[pick % live_.size()], stream);
      } else if (choice < 98) {
        provider_.run(stream, 50);
        provider_.advance(20);
      } else if (choice == 98) {
        change_pools(pick);
      } else {
        allocator_.empty_cache({0, pick % 6 < 3 ? 0 : pick % 4});
      }
    } catch (const FakeProvider::Fault&) {
    }
  }

  void finish() {
    for (Block* block : live_) allocator_.free(block);
    live_.clear();
    for (std::uint64_t pool = 1; pool < 4; ++pool) {
      while (users_[pool]-- > 0) allocator_.release_pool({0, pool});
    }
    allocator_.empty_cache();
    CHECK(allocator_.pools().empty());
    CHECK_EQ(provider_.live_bytes(), 0);
    CHECK_EQ(allocator_.stats().reserved_bytes[PoolKind::all].current, 0);
  }

 private:
  void change_pools(std::size_t pick) {
    const std::uint64_t pool = pick % 3 + 1;
    if (pick % 2 == 0 && users_[pool] > 0) {
      allocator_.release_pool({0, pool});
      --users_[pool];
    } else if (users_[pool] > 0) {
      allocator_.retain_pool({0, pool});
      ++users_[pool];
    } else if (!known(pool)) {  // one that still holds memory cannot be had back
      allocator_.retain_pool({0, pool}, {.use_on_oom = pool == 1, .no_split = pool == 2});
      ++users_[pool];
    }
  }

  bool known(std::uint64_t pool) const {
    for (const PoolInfo& info : allocator_.pools()) {
      if (info.id == PoolId{0, pool}) return true;
    }
    return false;
  }

  std::size_t size() {
    constexpr std::size_t scales[] = {100, 4 * kKiB, kMiB, 8 * kMiB, 48 * kMiB};
    return random_() % scales[random_() % 5] + 1;
  }

  CachingAllocator& allocator_;
  FakeProvider& provider_;
  std::mt19937_64 random_;
  std::vector<Block*> live_;
  std::array<int, 4> users_{};  // of private pools 1 to 3
};

}  // namespace

TEST(invariants_hold_after_every_event) {
  for (const Setup& setup : setups()) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      FakeProvider provider(setup.capacity_bytes);
      CachingAllocator allocator(provider, setup.config);
      Driver driver(allocator, provider, seed);
      for (int event = 0; event < 1000; ++event) {
        driver.step();
        judge(allocator, provider);
      }
      driver.finish();
      judge(allocator, provider);
    }
  }
}

TEST(every_failing_device_call_leaves_the_allocator_usable) {
  for (const Setup& setup : setups()) {
    bool has_failed = true;
    for (std::uint64_t k = 1; has_failed; ++k) {
      FakeProvider provider(setup.capacity_bytes);
      CachingAllocator allocator(provider, setup.config);
      Driver driver(allocator, provider, 7);
      provider.fail_call(k);
      bool judged = false;
      for (int event = 0; event < 250; ++event) {
        driver.step();
        if (provider.has_failed() && !judged) judge(allocator, provider);
        judged = provider.has_failed();
      }
      judge(allocator, provider);
      has_failed = provider.has_failed();
      provider.fail_call(0);
      driver.finish();
      judge(allocator, provider);
    }
  }
}

TEST(placement_under_registration_order_ignores_addresses) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    FakeProvider ascending(4 * kGiB), scattered(4 * kGiB);
    scattered.scatter(seed);
    CachingAllocator a(ascending, preset("cuda-2.13")), b(scattered, preset("cuda-2.13"));
    std::mt19937_64 random(seed);
    std::vector<std::pair<Block*, Block*>> live;
    for (int event = 0; event < 4000; ++event) {
      if (live.empty() || random() % 100 < 55) {
        const std::size_t bytes = random() % (random() % 2 ? 8 * kKiB : 6 * kMiB) + 1;
        const auto stream = static_cast<StreamId>(random() % 2);
        live.emplace_back(a.malloc(bytes, stream), b.malloc(bytes, stream));
        const auto [x, y] = live.back();
        CHECK_EQ(x->segment->registration, y->segment->registration);
        CHECK_EQ(x->address - x->segment->address, y->address - y->segment->address);
      } else {
        std::swap(live[random() % live.size()], live.back());
        a.free(live.back().first);
        b.free(live.back().second);
        live.pop_back();
      }
    }
  }
}
