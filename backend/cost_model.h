// SPDX-License-Identifier: BSD-3-Clause
// The modelled duration of a command: floor + ramp + max(flops / peak, bytes / bandwidth), in whole
// virtual nanoseconds (rule C1). Peak and bandwidth are the achievable shares of the spec's.
// Invariant: a pure function of the spec and the command.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "backend/spec.h"

namespace npusim {

enum class CommandKind : std::uint8_t {
  kernel,
  copy_h2d,  // from and to pinned memory
  copy_d2h,
  copy_h2d_pageable,  // the driver copies to or from pinned memory of its own besides
  copy_d2h_pageable,
  copy_d2d,
  copy_peer,
  collective,  // its time is the fabric's
};
inline constexpr std::size_t kCommandKindCount = 8;

// The work of a command: floating point operations, and bytes read plus written (or sent, for
// copies over a link). Negative or NaN counts as zero.
struct Cost {
  double flops = 0;
  double bytes = 0;
  Precision precision = Precision::f32;
  Work work = Work::streaming;
};

// The spec as factors, so that the hot path only multiplies. Made once per device by
// make_cost_rates(), constant afterwards but for dry runs.
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

// duration_ns() applies the formula above. Every launch calls it; it has no branch on the work.
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
