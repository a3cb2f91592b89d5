// SPDX-License-Identifier: BSD-3-Clause
// Eight threads that acquire, release, copy, launch, record and wait at once: for ThreadSanitizer.
// Runs a fixed number of rounds, or for NPUSIM_STRESS_SECONDS when that is set.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

constexpr int kThreads = 8;
constexpr int kRounds = 300;
constexpr std::size_t kPattern = 4096;

std::atomic<long> wrong{0};

// One round: a private segment is written, sent around and checked; shared streams and events see
// commands of all threads.
void play(std::mt19937& random, Event& shared, long* shared_counter) {
  const int device = static_cast<int>(random() % 2);
  set_device(device);
  Stream& own = pool_stream(device, -static_cast<int>(random() % 2));
  set_current_stream(own);
  const std::size_t bytes = kPattern * (1 + random() % 600);
  const SegmentResult segment = acquire_segment(device, bytes);
  if (segment.status != SegmentResult::Status::ok) {
    wrong += segment.status != SegmentResult::Status::injected;
    return;
  }
  void* const memory = reinterpret_cast<void*>(segment.address);
  void* const pinned = pinned_allocate(kPattern);
  std::memset(pinned, static_cast<int>(random() % 256), kPattern);
  copy(memory, pinned, kPattern, own, false);
  copy(static_cast<char*>(memory) + bytes - kPattern, memory, kPattern, own, false);
  char back[kPattern];
  copy(back, static_cast<char*>(memory) + bytes - kPattern, kPattern, own, false);
  wrong += std::memcmp(back, pinned, kPattern) != 0;
  wrong += !is_pinned(pinned) || device_of(memory) != device || is_pinned(memory);
  submit(default_stream(0), {"count"}, [=] { ++*shared_counter; });
  wrong += run_now(own, {"answer"}, [] { return 42; }) != 42;
  if (device == 0) shared.record(own);
  shared.block(own);
  shared.query();
  own.query();
  synchronize_device(device);
  wrong += host_now_ns() < 0 || memory_info(device).free_bytes > memory_info(device).total_bytes;
  release_segment(device, segment.address, bytes);
  pinned_free(pinned);
}

}  // namespace

TEST(eight_threads_share_two_devices) {  // (rules S1, S5, M3)
  const char* seconds = std::getenv("NPUSIM_STRESS_SECONDS");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(seconds == nullptr ? 0 : std::atoi(seconds));
  const auto goes_on = [&](int round) {
    return seconds == nullptr ? round < kRounds : std::chrono::steady_clock::now() < end;
  };
  std::atomic<long> rounds{0};
  long shared_counter = 0;  // the default stream is its lock
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < kThreads; ++seed) {
    threads.emplace_back([&, seed] {
      initialize();  // all at once: the first thread wins
      static Event shared(0);
      std::mt19937 random(seed);
      for (int round = 0; goes_on(round); ++round) {
        // Every now and then somebody arms a fault that fails a few acquisitions.
        if (random() % 64 == 0) inject_fault({.kind = FaultKind::oom, .at = 1 + random() % 9});
        play(random, shared, &shared_counter);
        ++rounds;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  clear_faults();
  CHECK_EQ(wrong.load(), 0);
  CHECK(shared_counter > rounds / 2 && shared_counter <= rounds);
  for (const int device : {0, 1}) {
    CHECK_EQ(memory_info(device).free_bytes, memory_info(device).total_bytes);
  }
  CHECK_EQ(pinned_bytes(), 0);
  CHECK_EQ(touched_bytes(), 0);
}
