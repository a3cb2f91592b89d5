// SPDX-License-Identifier: BSD-3-Clause
// The mode of the fallback and the counter of copied results.
#include "csrc/routes/fallback_stats.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>

#include "csrc/launch/op_traits.h"

namespace torch_npusim {

namespace {

std::atomic<FallbackMode> g_mode{FallbackMode::silent};

struct CopiedResults {
  std::mutex mutex;  // guards by_op
  std::map<std::string, std::int64_t> by_op;
};

CopiedResults& copied_results() {
  static auto* results = new CopiedResults;  // never destroyed, as the fallback's own table
  return *results;
}

std::vector<FallbackCount> listed(const std::map<std::string, std::int64_t>& by_op) {
  std::vector<FallbackCount> all;
  for (const auto& [op, calls] : by_op) all.push_back({op, calls});
  return all;
}

}  // namespace

FallbackMode fallback_mode() noexcept { return g_mode.load(std::memory_order_relaxed); }

void set_fallback_mode(FallbackMode mode) noexcept {
  g_mode.store(mode, std::memory_order_relaxed);
}

void count_fallback(const char* op, std::atomic<std::int64_t>& counter) {
  const std::int64_t earlier_calls = counter.fetch_add(1, std::memory_order_relaxed);
  const FallbackMode mode = fallback_mode();
  if (C10_LIKELY(mode == FallbackMode::silent)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(mode != FallbackMode::error, op,
                              " has no npusim kernel of its own and NPUSIM_FALLBACK=error forbids "
                              "running the CPU kernel on host views. Set NPUSIM_FALLBACK=silent "
                              "to allow it.");
  if (earlier_calls == 0) {
    TORCH_WARN(op,
               " has no npusim kernel of its own: the CPU kernel runs on host views of its "
               "operands (no copy is made). NPUSIM_FALLBACK=silent hides this warning, "
               "NPUSIM_FALLBACK=error makes it an error.");
  }
}

void count_copied_result(const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(fallback_mode() != FallbackMode::error, op,
                              " returned host memory that was not allocated on the device; "
                              "NPUSIM_FALLBACK=error forbids copying it.");
  CopiedResults& results = copied_results();
  const std::lock_guard<std::mutex> lock(results.mutex);
  ++results.by_op[op];
}

std::vector<FallbackCount> fallback_counts() {
  std::map<std::string, std::int64_t> by_name;
  for_each_op([&](const OpTraits& traits) {
    const std::int64_t calls = traits.calls.load(std::memory_order_relaxed);
    if (calls > 0) by_name[traits.name] += calls;
  });
  return listed(by_name);
}

void reset_fallback_counts() {
  for_each_op([](OpTraits& traits) { traits.calls = 0; });
}

void reset_copied_results() {
  CopiedResults& results = copied_results();
  const std::lock_guard<std::mutex> lock(results.mutex);
  results.by_op.clear();
}

std::vector<FallbackCount> copied_result_counts() {
  CopiedResults& results = copied_results();
  const std::lock_guard<std::mutex> lock(results.mutex);
  return listed(results.by_op);
}

}  // namespace torch_npusim
