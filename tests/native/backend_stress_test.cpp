// SPDX-License-Identifier: BSD-3-Clause
// Eight threads that acquire, release, copy, launch, record and wait at once: for ThreadSanitizer.
// Then the same with an observer that hears all of it, and a race detector that comes and goes.
// Each runs a fixed number of rounds, or for NPUSIM_STRESS_SECONDS when that is set.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "tests/native/backend_watched_program.h"
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
  Stream& own = next_stream(device, -static_cast<int>(random() % 2));
  set_current_stream(own);
  const std::size_t bytes = kPattern * (1 + random() % 600);
  const SegmentResult segment = acquire_segment(device, bytes);
  if (segment.status != SegmentResult::Status::ok) {
    wrong += segment.status != SegmentResult::Status::injected;
    return;
  }
  void* const memory = reinterpret_cast<void*>(segment.address);
  note_memory(MemoryKind::allocate, memory, bytes, &own);
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
  note_memory(MemoryKind::free, memory, 0, nullptr);
  release_segment(device, segment.address, bytes);
  pinned_free(pinned);
}

// Hears everything; the records are in one order whoever makes them.
class Order final : public Observer {
 public:
  void on_command(const CommandRecord& record,
                  std::span<const Operand> operands) noexcept override {
    next(record.sequence);
    wrong += record.start_ns < record.host_ns || record.end_ns < record.start_ns;
    for (const Operand& operand : operands) wrong += operand.sizes.size() > 1;
    ++commands;
  }
  void on_order(const OrderRecord& record) noexcept override { next(record.sequence); }
  void on_memory(const MemoryRecord& record) noexcept override {
    next(record.sequence);
    live += record.kind == MemoryKind::allocate;
    live -= record.kind == MemoryKind::free;
  }
  long commands = 0, live = 0;  // live: segments

 private:
  void next(std::uint64_t sequence) {
    wrong += sequence <= last_;
    last_ = sequence;
  }
  std::uint64_t last_ = 0;
};

// All threads play; returns how many rounds.
long play_all() {
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
  return shared_counter;
}

}  // namespace

TEST(eight_threads_share_two_devices) { play_all(); }  // (rules S1, S5, M3)

TEST(eight_threads_are_observed) {       // (rules V1, V3)
  static auto* const order = new Order;  // observers live as long as the process
  attach(*order);
  std::atomic<bool> done{false};
  std::thread detecting([&] {
    while (!done) {
      attach(detector());
      for (int i = 0; i < 100 && !done; ++i) {
        detector().take_races();
        std::this_thread::yield();
      }
      detach(detector());
      detector().forget();
    }
  });
  const long played = play_all();
  done = true;
  detecting.join();
  detach(*order);
  CHECK(order->commands >= 5 * played);  // of which "count" is one
  CHECK_EQ(order->live, 0);
}
