// SPDX-License-Identifier: BSD-3-Clause
// ns per malloc or free of CachingAllocator, lock and statistics included, beside the same policy
// on std::set (upstream's structure) in the same run. Both must place every block alike, or it
// exits 1. One line per workload: the least of the rounds, and their median in brackets. CPU time,
// so that other processes disturb it less.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "allocator/allocator.h"
#include "allocator/fake_provider.h"
#include "tools/bench/set_allocator.h"

using namespace npusim::alloc;

namespace {

// BinAllocator: CachingAllocator under the names that run_trace() uses.
class BinAllocator {
 public:
  using Handle = Block*;
  explicit BinAllocator(Provider& provider) : allocator_(provider) {}
  Block* malloc(std::size_t bytes) { return allocator_.malloc(bytes, 0); }
  void free(Block* block) { allocator_.free(block); }
  static std::pair<std::int64_t, Address> place(const Block* block) {
    return {block->segment->registration, block->address - block->segment->address};
  }

 private:
  CachingAllocator allocator_;
};

struct Workload {
  const char* name;
  std::size_t live_blocks;
  std::size_t distinct_sizes;  // 0: every size is drawn anew
};

// One event replaces the block in a slot: a free and a malloc.
struct Event {
  std::size_t slot;
  std::size_t bytes;
};

// Sizes are log-uniform from 256 bytes to 16 MiB, so both pools are at work.
std::vector<Event> make_trace(const Workload& workload) {
  std::mt19937_64 random(42);
  std::uniform_real_distribution<double> log2_bytes(8.0, 24.0);
  const auto draw = [&] { return static_cast<std::size_t>(std::exp2(log2_bytes(random))); };
  std::vector<std::size_t> sizes(workload.distinct_sizes);
  for (std::size_t& bytes : sizes) bytes = draw();
  std::vector<Event> trace(workload.live_blocks + 400000);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    trace[i].slot = i < workload.live_blocks ? i : random() % workload.live_blocks;
    trace[i].bytes = sizes.empty() ? draw() : sizes[random() % sizes.size()];
  }
  return trace;
}

double cpu_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

struct Result {
  double least_ns = 0;
  double median_ns = 0;
  std::uint64_t places = 0;  // a hash of where every block went
};

template <class Allocator>
Result run_trace(const Workload& workload, const std::vector<Event>& trace) {
  constexpr std::size_t kRounds = 20;
  FakeProvider provider(std::size_t{1} << 50);
  Allocator allocator(provider);
  std::vector<typename Allocator::Handle> slots(workload.live_blocks);
  std::size_t next = 0;
  for (; next < workload.live_blocks; ++next) slots[next] = allocator.malloc(trace[next].bytes);
  const std::size_t events = (trace.size() - next) / kRounds;
  Result result;
  std::vector<double> rounds;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const double start_ns = cpu_time_ns();
    for (const std::size_t end = next + events; next < end; ++next) {
      auto& slot = slots[trace[next].slot];
      allocator.free(slot);
      slot = allocator.malloc(trace[next].bytes);
    }
    rounds.push_back((cpu_time_ns() - start_ns) / static_cast<double>(2 * events));
    for (auto handle : slots) {
      const auto [segment, offset] = Allocator::place(handle);
      result.places = (result.places * 31 + static_cast<std::uint64_t>(segment)) * 31 + offset;
    }
  }
  std::sort(rounds.begin(), rounds.end());
  result.least_ns = rounds.front();
  result.median_ns = rounds[kRounds / 2];
  return result;
}

}  // namespace

int main() {
  const Workload workloads[] = {{"500 live, 64 sizes", 500, 64},
                                {"2000 live, 256 sizes", 2000, 256},
                                {"2000 live, continuous", 2000, 0},
                                {"20000 live, continuous", 20000, 0}};
  std::thread([] {}).join();  // from here on std::mutex pays for its atomics, as in a real program
  std::printf("%-24s %20s %20s   ns per malloc or free: least (median)\n", "", "bins", "std::set");
  bool same = true;
  for (const Workload& workload : workloads) {
    const std::vector<Event> trace = make_trace(workload);
    const Result bins = run_trace<BinAllocator>(workload, trace);
    const Result sets = run_trace<SetAllocator<std::mutex, false>>(workload, trace);
    std::printf("%-24s %11.1f (%6.1f) %11.1f (%6.1f)   %.2fx\n", workload.name, bins.least_ns,
                bins.median_ns, sets.least_ns, sets.median_ns, sets.median_ns / bins.median_ns);
    same &= bins.places == sets.places;
  }
  if (!same) std::printf("the two place blocks differently\n");
  return same ? 0 : 1;
}
