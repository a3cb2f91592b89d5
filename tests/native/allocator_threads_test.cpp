// SPDX-License-Identifier: BSD-3-Clause
// Eight threads on one allocator: blocks allocated by one are freed by another, streams are
// recorded, the cache is emptied and pictures are taken meanwhile. Run under TSan this is the race
// hunt.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "allocator/allocator.h"
#include "allocator/fake_provider.h"
#include "allocator/validate.h"
#include "tests/native/check.h"

using namespace npusim::alloc;

namespace {

constexpr int kThreads = 8;
constexpr int kEvents = 20000;

// A slots of blocks that all threads swap with: what one puts there, any other may take and free.
using Slots = std::array<std::atomic<Block*>, 256>;

// goes_on() says whether to start the event; the clock is read only where seconds are asked for.
bool goes_on(int event) {
  static const char* const seconds = std::getenv("NPUSIM_STRESS_SECONDS");
  static const auto start = std::chrono::steady_clock::now();
  if (seconds == nullptr || event < kEvents) return event < kEvents;
  return std::chrono::steady_clock::now() - start < std::chrono::seconds(std::atoi(seconds));
}

void work(CachingAllocator& allocator, FakeProvider& provider, Slots& slots, unsigned seed) {
  std::mt19937_64 random(seed);
  for (int event = 0; goes_on(event); ++event) {
    const auto stream = static_cast<StreamId>(random() % 4);
    const std::size_t bytes = random() % (random() % 4 ? 16 * kKiB : 4 * kMiB) + 1;
    Block* block = allocator.malloc(bytes, stream);
    if (block && random() % 8 == 0) allocator.record_stream(block, stream + 1);
    if (block && block->requested_bytes != bytes) std::terminate();
    block = slots[random() % slots.size()].exchange(block);
    allocator.free(block);
    if (event % 64 == 0) provider.run(stream, 100);
    if (event % 32 == 0) provider.advance(60);
    if (event % 4096 == 0) allocator.empty_cache();
    if (event % 2048 == 0 && !violations(allocator.inspect()).empty()) std::terminate();
  }
}

}  // namespace

TEST(eight_threads_share_one_allocator) {
  FakeProvider provider(256 * kMiB);
  CachingAllocator allocator(provider);
  allocator.record_history(HistoryMode::all, 1000);
  Slots slots{};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { work(allocator, provider, slots, i); });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : slots) allocator.free(slot.exchange(nullptr));
  const auto found = violations(allocator.inspect(), &provider.live_segments());
  CHECK_EQ(found.empty() ? "" : found.front(), "");
  allocator.empty_cache();
  CHECK_EQ(provider.live_bytes(), 0);
  CHECK_EQ(allocator.stats().allocation[0].current, 0);
  CHECK_EQ(allocator.stats().allocation[0].allocated, allocator.stats().allocation[0].freed);
}
