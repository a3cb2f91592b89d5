// SPDX-License-Identifier: BSD-3-Clause
// What the simulated machine adds to a command: best of several rounds, in ns per call.
// Invariant: bodies are trivial, so that the numbers are overhead only.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "backend/backend.h"

namespace {

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
  measure("device_of(host_alias())", 2'000'000, [&](int) { sink = device_of(host_alias(device)); });
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
  measure("acquire + release of a 2 MiB segment", 200, [&](int) {
    const SegmentResult one = acquire_segment(0, std::size_t{2} << 20);
    release_segment(0, one.address, std::size_t{2} << 20);
  });
  release_segment(0, segment.address, std::size_t{32} << 20);
}
