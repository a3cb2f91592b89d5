// SPDX-License-Identifier: BSD-3-Clause
// Time of the host for a command beside its launch: of a layer above, which this one does not know.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "backend/slow_path.h"

namespace npusim {

namespace detail {
// Of slow_path.h: a layer is set.
inline constexpr auto kHostLayer = static_cast<SlowPath>(1U << 9);
}  // namespace detail

// set_host_layer() lets layer(name) nanoseconds pass on the host before each command that a program
// launches itself; nullptr: none do. The replay of a graph and its capture have no such time.
using HostLayer = std::int64_t (*)(const char* name);
void set_host_layer(HostLayer layer) noexcept;

// Costs of a host beside commands, in nanoseconds; 0: nothing. call: makes a tensor and launches
// nothing, as a view or memory without values. kernel: a kernel that a library launches by itself.
// input: a compiled graph takes a tensor.
enum class HostCall : std::uint8_t { call, kernel, input };
inline constexpr std::size_t kHostCallCount = 3;
void set_host_call_ns(HostCall kind, std::int64_t ns) noexcept;

namespace detail {
inline constinit std::array<std::atomic<std::int64_t>, kHostCallCount> host_call_ns{};
void pass_host_calls(HostCall kind, std::int64_t count);
}  // namespace detail

// pass_host_calls() lets the time of so many pass, unless a command or a capture is under way.
inline void pass_host_calls(HostCall kind, std::int64_t count = 1) {
  const auto& ns = detail::host_call_ns[static_cast<std::size_t>(kind)];
  if (ns.load(std::memory_order_relaxed) != 0) [[unlikely]]
    detail::pass_host_calls(kind, count);
}

}  // namespace npusim
