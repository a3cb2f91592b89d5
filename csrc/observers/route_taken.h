// SPDX-License-Identifier: BSD-3-Clause
// Which route an operator took to its CPU kernel: told to whoever listens, one at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_npusim {

// i: the CPU's loop on a written-down iterator; ii: torch's structured class, or the typed CPU
// kernel, on host views; iii: the boxed CPU kernel on host views.
enum class Route : std::uint8_t { dense, structured, cpu_kernel, fallback };

using RouteListener = void (*)(Route) noexcept;
inline std::atomic<RouteListener> g_route_listener{nullptr};

// note_route() is called by the thread that runs the operator, within it.
inline void note_route(Route route) noexcept {
  const RouteListener listener = g_route_listener.load(std::memory_order_relaxed);
  if (listener != nullptr) [[unlikely]] {
    listener(route);
  }
}

}  // namespace torch_npusim
