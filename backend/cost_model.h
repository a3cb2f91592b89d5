// SPDX-License-Identifier: BSD-3-Clause
// The modelled duration of a command, in whole virtual nanoseconds (rule C1): a floor, and
// one for each further kernel, + ramp + the longer of arithmetic and traffic + what does not
// overlap of the shorter. Peak and bandwidth are the shares of the spec's that the class of work
// achieves. Invariant: a pure function of the spec and the command.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
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
  double tiles = 0;  // of a product's result, kTile x kTile elements each; 0: not a product
  // Of a product: elements that one load may move, if its matrices allow less than kLoadBytes.
  double aligned = 0;
  // Operations that the units are busy for, as a share of `flops`: less where causal attention
  // leaves blocks of keys out; more where tiles are partly empty, or wait for a softmax.
  double done = 1;
  // Bytes that come from the cache where a chip has a rate for it: sectors read again.
  double cached = 0;
  double kernels = 1;  // of the chip that stands behind the command
};
inline constexpr double kTile = 128;
inline constexpr std::int64_t kLoadBytes = 16;

// tiles_of() counts those of `batch` results of rows x columns.
inline double tiles_of(double batch, double rows, double columns) {
  return batch * std::ceil(rows / kTile) * std::ceil(columns / kTile);
}

// The spec as factors, so that the hot path only multiplies. Made once per device by
// make_cost_rates(), constant afterwards but for dry runs.
struct CostRates {
  std::array<std::array<double, kPrecisionCount>, kWorkCount> ns_per_flop{};
  std::array<std::array<double, kWorkCount>, kCommandKindCount> ns_per_byte{};
  std::array<std::int64_t, kCommandKindCount> floor_ns{};
  std::array<std::int64_t, kWorkCount> ramp_ns{};
  double ns_per_narrow_flop = 0;  // of a product whose loads move one element
  double ns_per_cached_byte = 0;  // 0: the memory serves it
  double multiprocessors = 1;
  double wave_loss = 0;
  double cache_bytes = 0;
  double cache_gain = 1;
  double overlap = 1;
  double leaves_out = 0;  // 1: shares are of the operations done; 0: of all
  std::int64_t launch_latency_ns = 0;
  std::int64_t next_floor_ns = 0;  // the least of each kernel behind the first of a command
  std::int64_t query_ns = 0;
  std::int64_t record_ns = 0;
};
CostRates make_cost_rates(const DeviceSpec& spec);

// No command takes longer than this (11 days), so clocks cannot overflow.
inline constexpr double kMaxDurationNs = 1e15;

// The most of its time that a product loses to its last tiles, in times of the rest.
inline constexpr double kMostIdle = 8;

// cached_traffic_ns() is the time of the traffic where the cache has a rate: every byte passes it,
// and those that do not fit or are new come from the memory, whose time for all is `memory_ns`.
inline double cached_traffic_ns(const CostRates& rates, const Cost& cost,
                                double memory_ns) noexcept {
  const double from_cache = cost.bytes * rates.ns_per_cached_byte;
  const double distinct = cost.bytes - cost.cached;
  if (distinct <= rates.cache_bytes || !(cost.bytes > 0)) return std::min(from_cache, memory_ns);
  return std::max(memory_ns * distinct / cost.bytes, cost.cached > 0 ? from_cache : 0.0);
}

// duration_ns() applies the formula above. Every launch calls it. timeline.py repeats it in the
// same order, so that roundings are the same.
inline std::int64_t duration_ns(const CostRates& rates, CommandKind kind,
                                const Cost& cost) noexcept {
  const auto work_class = static_cast<std::size_t>(cost.work);
  double ns_per_flop = rates.ns_per_flop[work_class][static_cast<std::size_t>(cost.precision)];
  if (cost.aligned > 0)
    ns_per_flop = std::max(ns_per_flop, rates.ns_per_narrow_flop / cost.aligned);
  double compute = cost.flops * (1 - rates.leaves_out * (1 - cost.done)) * ns_per_flop;
  if (rates.wave_loss > 0 && cost.tiles > 0) {
    const double waves = cost.tiles / rates.multiprocessors;
    compute *= 1 + rates.wave_loss * std::min(std::ceil(waves) / waves - 1, kMostIdle);
  }
  const bool in_memory = kind == CommandKind::kernel || kind == CommandKind::copy_d2d;
  double traffic = cost.bytes * rates.ns_per_byte[static_cast<std::size_t>(kind)][work_class];
  if (rates.ns_per_cached_byte > 0 && in_memory) {
    traffic = cached_traffic_ns(rates, cost, traffic);
  } else if (rates.cache_bytes > 0 && in_memory) {
    const double share = cost.bytes / rates.cache_bytes;
    traffic /= 1 + (rates.cache_gain - 1) / (1 + share * share);
  }
  // The order of the operands makes NaN lose.
  compute = std::min(std::max(0.0, compute), kMaxDurationNs);
  traffic = std::min(std::max(0.0, traffic), kMaxDurationNs);
  const double shorter = (1 - rates.overlap) * std::min(compute, traffic);
  const double work = std::min(std::max(compute, traffic) + shorter, kMaxDurationNs);
  const double more = std::max(cost.kernels - 1, 0.0) * static_cast<double>(rates.next_floor_ns);
  return rates.floor_ns[static_cast<std::size_t>(kind)] + rates.ramp_ns[work_class] +
         static_cast<std::int64_t>(work + more);
}

}  // namespace npusim
