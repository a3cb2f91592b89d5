// SPDX-License-Identifier: BSD-3-Clause
// The virtual clock of the host: nanoseconds that pass only because of modelled work (rule C2).
// Invariant: it never goes back and never reads wall time. One clock per process, lock-free.
#pragma once

#include <atomic>
#include <cstdint>

namespace npusim {

namespace detail {
inline constinit std::atomic<std::int64_t> g_host_ns{0};
}  // namespace detail

// host_now_ns() is the host's virtual time since the start of the process.
inline std::int64_t host_now_ns() noexcept {
  return detail::g_host_ns.load(std::memory_order_relaxed);
}

// pass_host_ns() lets `duration_ns` >= 0 pass and returns the new time. Unchecked: hot path.
inline std::int64_t pass_host_ns(std::int64_t duration_ns) noexcept {
  return detail::g_host_ns.fetch_add(duration_ns, std::memory_order_relaxed) + duration_ns;
}

// wait_until_ns() moves the host clock to `time_ns` if it is not there yet: what waiting costs.
void wait_until_ns(std::int64_t time_ns) noexcept;

// advance_host_ns() lets time pass, of the program or of a layer of the framework; observers are
// told which. Throws InvalidArgument when `duration_ns` is negative.
enum class HostWork : std::uint8_t { program, layer };
void advance_host_ns(std::int64_t duration_ns, HostWork work = HostWork::program);

}  // namespace npusim
