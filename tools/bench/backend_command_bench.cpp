// SPDX-License-Identifier: BSD-3-Clause
// Cost that the simulated machine adds to a command: best of several rounds, in ns per call.
// Invariant: bodies are trivial, so that the numbers are overhead only.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "backend/backend.h"
#include "backend/races.h"
#include "backend/timeline.h"

namespace {

struct Detector final : npusim::RaceDetector {};
Detector& detector() {
  static auto* made = new Detector;  // observers live as long as the process
  return *made;
}

struct Profile final : npusim::Timeline {};
Profile& profile() {
  static auto* made = new Profile;
  return *made;
}

template <class Call>
void measure(const char* what, int calls, Call&& call) {
  double best_ns = 1e18;
  for (int round = 0; round < 7; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call(i);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    best_ns = std::min(best_ns, spent.count() / calls);
  }
  std::printf("%-44s %9.1f ns\n", what, best_ns);
}

}  // namespace

int main() {
  using namespace npusim;
  initialize();
  Stream& stream = default_stream(0);
  const SegmentResult segment = acquire_segment(0, std::size_t{32} << 20);
  void* const device = reinterpret_cast<void*>(segment.address);
  volatile int sink = 0;
  char host[64] = {};
  Event event(0, true);
  measure("submit()", 2'000'000, [&](int i) {
    submit(stream, {"add", CommandKind::kernel, {1e3, 1e4, Precision::f32}}, [&] { sink = i; });
  });
  measure("run_now()", 2'000'000, [&](int i) {
    sink = run_now(stream, {"add", CommandKind::kernel, {1e3, 1e4, Precision::f32}},
                   [&] { return i; });
  });
  measure("current_stream(current_device())", 2'000'000,
          [&](int) { sink = current_stream(current_device()).device(); });
  measure("device_of(kernel_alias())", 2'000'000,
          [&](int) { sink = device_of(kernel_alias(device)); });
  measure("event record + block", 1'000'000, [&](int) {
    event.record(stream);
    event.block(stream);
  });
  measure("copy of 64 bytes, host to device", 500'000,
          [&](int) { copy(device, host, sizeof host, stream, false); });
  inject_fault({.kind = FaultKind::launch, .at = ~0ULL});
  measure("submit() with a fault armed", 500'000,
          [&](int i) { submit(stream, {"add"}, [&] { sink = i; }); });
  clear_faults();
  // An observed command of three operands, as a binary operator has them; without call stacks.
  const std::int64_t size = 1024, stride = 4;
  const auto add = [&](Stream& on, int i) {
    submit(on, {"add", CommandKind::kernel, {1e3, 1e4, Precision::f32}}, [&] {
      for (unsigned operand = 0; operand < 3; ++operand) {
        const Address place = segment.address + ((static_cast<unsigned>(i) + operand) % 64 << 13);
        note_operand({place, place, operand == 2, 4, "float32", {&size, 1}, {&stride, 1}});
      }
      sink = i;
    });
  };
  const auto allocate = [&](int i) {
    const Address place = segment.address + (static_cast<unsigned>(i) % 64 << 13);
    note_memory(MemoryKind::allocate, reinterpret_cast<void*>(place), 4096, &stream);
  };
  attach(detector());
  for (int i = 0; i < 64; ++i) allocate(i);
  measure("submit() under the race detector", 500'000, [&](int i) { add(stream, i); });
  measure("the same on 8 streams, 1 event each", 500'000, [&](int i) {
    Stream& on = stream_from_id(0, i % 8);
    event.block(on);
    add(on, i);
    event.record(on);
  });
  measure("an allocation and its free, observed", 500'000, [&](int i) {
    const Address place = segment.address + (static_cast<unsigned>(i) % 64 << 13);
    note_memory(MemoryKind::free, reinterpret_cast<void*>(place), 4096, nullptr);
    allocate(i);
  });
  detach(detector());
  // What torch.profiler's plugin and timeline.record() keep: a row for each command.
  profile().begin(std::size_t{1} << 20);
  measure("submit() under the profiler", 100'000, [&](int i) { add(stream, i); });
  profile().end();
  measure("the same when it is off again", 500'000, [&](int i) { add(stream, i); });
  measure("acquire + release of a 2 MiB segment", 200, [&](int) {
    const SegmentResult one = acquire_segment(0, std::size_t{2} << 20);
    release_segment(0, one.address, std::size_t{2} << 20);
  });
  release_segment(0, segment.address, std::size_t{32} << 20);
}
