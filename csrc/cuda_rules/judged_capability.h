// SPDX-License-Identifier: BSD-3-Clause
// The compute capability that a run is judged as, 10 * major + minor; 0: not as CUDA.
#pragma once

#include <atomic>

namespace torch_npusim {

inline std::atomic<int> g_judged_capability{0};
inline int judged_capability() noexcept {
  return g_judged_capability.load(std::memory_order_relaxed);
}
inline void set_judged_capability(int major, int minor) noexcept {
  g_judged_capability.store(10 * major + minor, std::memory_order_relaxed);
}

}  // namespace torch_npusim
