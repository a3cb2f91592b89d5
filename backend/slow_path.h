// SPDX-License-Identifier: BSD-3-Clause
// The bits that the hot path tests with one load: all zero means that a command may simply run.
// Bits are set and cleared by the file that owns the state behind them, under its lock.
// Invariant: a bit is set before its state can matter; a set bit only sends commands through the
// slow path, which reads the state itself. A relaxed load suffices: a thread that must see a bit
// was synchronised with the thread that set it by something else.
#pragma once

#include <atomic>

namespace npusim::detail {

enum SlowPath : unsigned {
  kBadFork = 1U << 0,         // this process is a forked child of an initialized one
  kFaultsArmed = 1U << 1,     // at least one fault is armed
  kFaultPending = 1U << 2,    // a fault has not been reported yet, or a device is lost
  kLaunchBlocking = 1U << 3,  // every command is waited for
  kObserved = 1U << 4,        // an observer is attached
  kCapturing = 1U << 5,       // a graph is being captured
  kDry = 1U << 6,             // a dry run is on
};

inline constinit std::atomic<unsigned> g_slow_path{0};

// takes_slow_path() is whether one of `bits` is set, by default any.
inline bool takes_slow_path(unsigned bits = ~0U) noexcept {
  return (g_slow_path.load(std::memory_order_relaxed) & bits) != 0;
}
inline void set_slow_path(SlowPath bit) noexcept { g_slow_path.fetch_or(bit); }
inline void clear_slow_path(SlowPath bit) noexcept {
  g_slow_path.fetch_and(~static_cast<unsigned>(bit));
}

}  // namespace npusim::detail
