// SPDX-License-Identifier: BSD-3-Clause
// The one word that the hot path looks at: zero means that a command may simply run.
// Invariant: a bit is set before the state that it announces can matter, and any bit sends the
// command through the slow path, which looks at that state itself.
#pragma once

#include <atomic>

namespace npusim::detail {

enum Attention : unsigned {
  kBadFork = 1U << 0,         // this process is a forked child of an initialized one
  kFaultsArmed = 1U << 1,     // at least one fault rule is armed
  kFaultPending = 1U << 2,    // a fault happened and was not reported, or the device is lost
  kLaunchBlocking = 1U << 3,  // every command is waited for
  kObserved = 1U << 4,        // somebody hears what the devices do
  kCapturing = 1U << 5,       // a graph is being captured
};

inline constinit std::atomic<unsigned> g_attention{0};

inline bool needs_attention(unsigned bits = ~0U) noexcept {
  return (g_attention.load(std::memory_order_relaxed) & bits) != 0;
}
inline void set_attention(Attention bit) noexcept { g_attention.fetch_or(bit); }
inline void clear_attention(Attention bit) noexcept {
  g_attention.fetch_and(~static_cast<unsigned>(bit));
}

}  // namespace npusim::detail
