// SPDX-License-Identifier: BSD-3-Clause
// How long a command takes: floor + max(flops / peak, bytes / bandwidth), whole ns (rule C1).
// Invariant: a pure function of the spec and the command. Called once per command by executor.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "backend/spec.h"

namespace npusim {

enum class CommandKind : std::uint8_t {
  kernel,
  copy_h2d,
  copy_d2h,
  copy_d2d,
  copy_peer,
  fill,
  host
};
inline constexpr std::size_t kCommandKindCount = 7;

// What a command does to the device: operations, and bytes read plus written (or sent, for copies
// over a link). Negative or NaN counts as zero.
struct Cost {
  double flops = 0;
  double bytes = 0;
  Precision precision = Precision::f32;
};

// The spec turned into factors, so that the hot path multiplies only.
struct CostRates {
  std::array<double, kPrecisionCount> ns_per_flop{};
  std::array<double, kCommandKindCount> ns_per_byte{};
  std::array<std::int64_t, kCommandKindCount> floor_ns{};
  std::int64_t launch_latency_ns = 0;
  std::int64_t query_ns = 0;
};
CostRates make_cost_rates(const DeviceSpec& spec);

// No command takes longer than this (11 days), so clocks cannot overflow.
inline constexpr double kMaxDurationNs = 1e15;

inline std::int64_t duration_ns(const CostRates& rates, CommandKind kind,
                                const Cost& cost) noexcept {
  const double compute = cost.flops * rates.ns_per_flop[static_cast<std::size_t>(cost.precision)];
  const double traffic = cost.bytes * rates.ns_per_byte[static_cast<std::size_t>(kind)];
  // The order of the operands makes NaN lose.
  const double work = std::min(std::max(std::max(0.0, compute), traffic), kMaxDurationNs);
  return rates.floor_ns[static_cast<std::size_t>(kind)] + static_cast<std::int64_t>(work);
}

}  // namespace npusim
