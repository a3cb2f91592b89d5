// SPDX-License-Identifier: BSD-3-Clause
// How long a command takes: floor + ramp + max(flops / peak, bytes / bandwidth), whole ns (rule
// C1), where of peak and bandwidth the achievable shares count. Invariant: a pure function of the
// spec and the command.
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
  collective,  // its time is the fabric's
};
inline constexpr std::size_t kCommandKindCount = 6;

// What a command does to the device: operations, and bytes read plus written (or sent, for copies
// over a link). Negative or NaN counts as zero.
struct Cost {
  double flops = 0;
  double bytes = 0;
  Precision precision = Precision::f32;
  Work work = Work::streaming;
};

// The spec turned into factors, so that the hot path multiplies only.
struct CostRates {
  std::array<std::array<double, kPrecisionCount>, kWorkCount> ns_per_flop{};
  std::array<double, kCommandKindCount> ns_per_byte{};
  std::array<std::int64_t, kCommandKindCount> floor_ns{};
  std::array<std::int64_t, kWorkCount> ramp_ns{};
  std::int64_t launch_latency_ns = 0;
  std::int64_t query_ns = 0;
  std::int64_t record_ns = 0;
};
CostRates make_cost_rates(const DeviceSpec& spec);

// No command takes longer than this (11 days), so clocks cannot overflow.
inline constexpr double kMaxDurationNs = 1e15;

inline std::int64_t duration_ns(const CostRates& rates, CommandKind kind,
                                const Cost& cost) noexcept {
  const auto work_class = static_cast<std::size_t>(cost.work);
  const double compute =
      cost.flops * rates.ns_per_flop[work_class][static_cast<std::size_t>(cost.precision)];
  const double traffic = cost.bytes * rates.ns_per_byte[static_cast<std::size_t>(kind)];
  // The order of the operands makes NaN lose.
  const double work = std::min(std::max(std::max(0.0, compute), traffic), kMaxDurationNs);
  return rates.floor_ns[static_cast<std::size_t>(kind)] + rates.ramp_ns[work_class] +
         static_cast<std::int64_t>(work);
}

}  // namespace npusim
