// SPDX-License-Identifier: BSD-3-Clause
// Fallback policy and the counter of copied results.
#include "csrc/launch/fallback_stats.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>

namespace torch_npusim {

namespace {

std::atomic<FallbackPolicy> g_policy{FallbackPolicy::silent};

struct CopiedResults {
  std::mutex mutex;  // guards by_op
  std::map<std::string, std::int64_t> by_op;
};

CopiedResults& copied_results() {
  static auto* results = new CopiedResults;  // never destroyed, as the fallback's own table
  return *results;
}

}  // namespace

FallbackPolicy fallback_policy() noexcept { return g_policy.load(std::memory_order_relaxed); }

void set_fallback_policy(FallbackPolicy policy) noexcept {
  g_policy.store(policy, std::memory_order_relaxed);
}

void note_fallback(const char* op, std::atomic<std::int64_t>& counter) {
  const std::int64_t earlier_calls = counter.fetch_add(1, std::memory_order_relaxed);
  const FallbackPolicy policy = fallback_policy();
  if (C10_LIKELY(policy == FallbackPolicy::silent)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(policy != FallbackPolicy::error, op,
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
  TORCH_CHECK_NOT_IMPLEMENTED(fallback_policy() != FallbackPolicy::error, op,
                              " returned host memory that was not allocated on the device; "
                              "NPUSIM_FALLBACK=error forbids copying it.");
  CopiedResults& results = copied_results();
  const std::lock_guard<std::mutex> lock(results.mutex);
  ++results.by_op[op];
}

void reset_copied_results() {
  CopiedResults& results = copied_results();
  const std::lock_guard<std::mutex> lock(results.mutex);
  results.by_op.clear();
}

std::vector<FallbackCount> copied_result_counts() {
  CopiedResults& results = copied_results();
  const std::lock_guard<std::mutex> lock(results.mutex);
  std::vector<FallbackCount> all;
  for (const auto& [op, calls] : results.by_op) all.push_back({op, calls});
  return all;
}

}  // namespace torch_npusim
