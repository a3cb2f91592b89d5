// SPDX-License-Identifier: BSD-3-Clause
// Turns a specification into factors, once per process.
#include "backend/cost_model.h"

#include <algorithm>

namespace npusim {

CostRates make_cost_rates(const DeviceSpec& spec) {
  CostRates rates;
  for (std::size_t work = 0; work < kWorkCount; ++work) {
    for (std::size_t i = 0; i < kPrecisionCount; ++i) {
      const double peak =
          spec.peak_flops_per_s[i] > 0 ? spec.peak_flops_per_s[i] : spec.peak_flops_per_s[0];
      const Shares& shares = spec.has_matrix_units(static_cast<Precision>(i))
                                 ? spec.achievable
                                 : spec.achievable_plain;
      rates.ns_per_flop[work][i] = 1e9 / (peak * shares[work]);
    }
    rates.ramp_ns[work] = spec.ramp_ns[work];
  }
  const auto set = [&](CommandKind kind, double bytes_per_s, std::int64_t floor_ns) {
    rates.ns_per_byte[static_cast<std::size_t>(kind)].fill(1e9 / bytes_per_s);
    rates.floor_ns[static_cast<std::size_t>(kind)] = floor_ns;
  };
  for (const auto kind : {CommandKind::kernel, CommandKind::copy_d2d}) {
    set(kind, spec.memory_bytes_per_s, spec.kernel_floor_ns);
    for (std::size_t work = 0; work < kWorkCount; ++work) {
      rates.ns_per_byte[static_cast<std::size_t>(kind)][work] =
          1e9 / (spec.memory_bytes_per_s * spec.achievable_bandwidth[work]);
    }
  }
  set(CommandKind::copy_h2d, spec.host_bytes_per_s, spec.copy_floor_ns);
  set(CommandKind::copy_d2h, spec.host_bytes_per_s, spec.copy_floor_ns);
  set(CommandKind::copy_h2d_pageable, spec.pageable_bytes_per_s, spec.pageable_floor_ns);
  set(CommandKind::copy_d2h_pageable, spec.pageable_bytes_per_s, spec.pageable_floor_ns);
  set(CommandKind::copy_peer, spec.peer_bytes_per_s, spec.copy_floor_ns);
  rates.multiprocessors = std::max(1, spec.multiprocessor_count);
  if (spec.narrow_flops_per_s > 0) rates.ns_per_narrow_flop = 1e9 / spec.narrow_flops_per_s;
  if (spec.cache_bytes_per_s > 0) rates.ns_per_cached_byte = 1e9 / spec.cache_bytes_per_s;
  rates.wave_loss = spec.wave_loss;
  rates.cache_bytes = spec.cache_bytes;
  rates.cache_gain = spec.cache_gain;
  rates.overlap = spec.overlap;
  rates.leaves_out = spec.leaves_out;
  rates.launch_latency_ns = spec.launch_latency_ns;
  rates.next_floor_ns = spec.next_floor_ns;
  rates.query_ns = spec.query_ns;
  rates.record_ns = spec.record_ns;
  return rates;
}

}  // namespace npusim
