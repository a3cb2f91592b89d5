// SPDX-License-Identifier: BSD-3-Clause
// Millions of events per second of replay(), recording off, beside replays of the same events on
// std::set in the same run; neither takes a lock that others could hold. Both must place every
// block alike, or it exits 1. CPU time, the best of five rounds.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <random>
#include <vector>

#include "lab/engine/recorder.h"
#include "lab/engine/replay.h"
#include "tools/bench/set_allocator.h"

using namespace npusim::lab;

namespace {

struct NoMutex {
  void lock() {}
  void unlock() {}
};

struct Columns {
  std::vector<std::uint8_t> op;
  std::vector<std::uint64_t> id, bytes;
};

// Log-uniform sizes from 256 bytes to 16 MiB; mallocs until so many live, then frees and mallocs.
Columns make_events(std::size_t count, std::size_t live_blocks, std::size_t distinct_sizes) {
  std::mt19937_64 random(42);
  std::uniform_real_distribution<double> log2_bytes(8.0, 24.0);
  const auto draw = [&] { return static_cast<std::uint64_t>(std::exp2(log2_bytes(random))); };
  std::vector<std::uint64_t> sizes(distinct_sizes), live;
  for (std::uint64_t& bytes : sizes) bytes = draw();
  Columns out;
  for (std::uint64_t id = 0; out.op.size() < count;) {
    const bool is_malloc = live.size() < live_blocks;
    out.op.push_back(static_cast<std::uint8_t>(is_malloc ? Op::malloc : Op::free));
    out.bytes.push_back(!is_malloc ? 0 : sizes.empty() ? draw() : sizes[random() % sizes.size()]);
    if (is_malloc) {
      live.push_back(id++);
      out.id.push_back(live.back());
    } else {
      std::swap(live[random() % live.size()], live.back());
      out.id.push_back(live.back());
      live.pop_back();
    }
  }
  return out;
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The same loop on std::set, with the same results.
template <bool kSecondSet>
ReplayResult replay_on_sets(const Trace& trace, const ReplayOptions& options) {
  using Sets = SetAllocator<NoMutex, kSecondSet>;
  ReplayResult result;
  Recorder recorder(trace, options, result);
  ReplayDevice device(trace, {});
  Sets allocator(device);
  std::vector<typename Sets::Handle> blocks(trace.slots());
  std::size_t number = 0;
  std::int64_t i = 0;
  const double start = cpu_seconds();
  for (const auto count = static_cast<std::int64_t>(trace.size()); i < count; ++i) {
    const Trace::Event event = trace.event(static_cast<std::size_t>(i));
    device.go_to(i);
    if (event.op == Op::malloc) {
      const typename Sets::Node* block = blocks[event.slot] = allocator.malloc(event.bytes);
      recorder.place(number++, block->address, block->order, block->base, block->bytes);
      const Counters& counters = allocator.counters();
      recorder.after_malloc(
          i, {counters.current(Counters::kReservedBytes), counters.current(Counters::kActiveBytes),
              counters.current(Counters::kAllocatedBytes),
              counters.current(Counters::kRequestedBytes)});
    } else {
      allocator.free(blocks[event.slot]);
    }
  }
  result.seconds = cpu_seconds() - start;
  return result;
}

bool compare(const char* name, std::size_t live_blocks, std::size_t distinct_sizes) {
  constexpr std::size_t kEvents = 1000000;
  const Columns columns = make_events(kEvents, live_blocks, distinct_sizes);
  const Trace trace({columns.op, columns.id, columns.bytes, {}, {}, {}, {}});
  double bins = 1e9, one_set = 1e9, two_sets = 1e9;
  bool same = true;
  for (int round = 0; round < 5; ++round) {
    const ReplayResult result = replay(trace, Config{}, ReplayOptions{});
    const ReplayResult expected = replay_on_sets<false>(trace, ReplayOptions{});
    one_set = std::min(one_set, expected.seconds);
    two_sets = std::min(two_sets, replay_on_sets<true>(trace, ReplayOptions{}).seconds);
    bins = std::min(bins, result.seconds);
    same &= result.offset == expected.offset && result.segment == expected.segment &&
            result.peak_active.event == expected.peak_active.event;
  }
  const double million = static_cast<double>(kEvents) / 1e6;
  std::printf("%-24s %8.1f %14.1f (%.2fx) %14.1f (%.2fx)\n", name, million / bins,
              million / one_set, one_set / bins, million / two_sets, two_sets / bins);
  return same;
}

}  // namespace

int main() {
  std::printf("%-24s %8s %22s %22s   million events per second\n", "", "replay", "one std::set",
              "two, as torch 2.13");
  bool same = compare("500 live, 64 sizes", 500, 64);
  same &= compare("2000 live, 256 sizes", 2000, 256);
  same &= compare("2000 live, continuous", 2000, 0);
  same &= compare("20000 live, continuous", 20000, 0);
  if (!same) std::printf("the two place blocks differently\n");
  return same ? 0 : 1;
}
