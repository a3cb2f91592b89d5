// SPDX-License-Identifier: BSD-3-Clause
// Counters of the boxed fallback (route iii), and the mode NPUSIM_FALLBACK. All thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace torch_npusim {

using npusim::FallbackMode;

FallbackMode fallback_mode() noexcept;
void set_fallback_mode(FallbackMode mode) noexcept;

struct FallbackCount {
  std::string op;  // "aten::cumsum"
  std::int64_t calls = 0;
};

// count_fallback() counts one call in `counter`, which belongs to the operator. It warns at the
// first call or raises, as the mode says.
void count_fallback(const char* op, std::atomic<std::int64_t>& counter);

// count_copied_result() records that `op` returned host memory, which then had to be copied to the
// device; raises when the policy is `error`.
void count_copied_result(const char* op);

// fallback_counts() lists the operators that ran on host views; copied_result_counts() those whose
// results were copied. Order: by name.
std::vector<FallbackCount> fallback_counts();
std::vector<FallbackCount> copied_result_counts();
void reset_fallback_counts();
void reset_copied_results();

}  // namespace torch_npusim
