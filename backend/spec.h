// SPDX-License-Identifier: BSD-3-Clause
// Named hardware specifications: name, memory and speed of a simulated device.
// Invariant: numbers are fixed per name, because modelled times must be reproducible (rule C1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace npusim {

// The classes of arithmetic that have their own peak rate: i8 is int8, uint8 and 8-bit floats,
// `other` is bool and the wider integers, tf32 is float32 on matrix units that round it.
enum class Precision : std::uint8_t { f32, f64, f16, i8, other, tf32 };
inline constexpr std::size_t kPrecisionCount = 6;
constexpr bool on_matrix_units(Precision precision) {
  return precision == Precision::f16 || precision == Precision::i8 || precision == Precision::tf32;
}

// The classes of commands of which a device achieves different shares of its peak.
enum class Work : std::uint8_t {
  streaming,
  matmul,
  convolution,
  attention,
  batched_matmul,
  depthwise,  // a convolution whose channels are each on their own
  depthwise_backward,
  grouped,  // a convolution of groups of channels
  grouped_backward,
  attention_backward,
  normalization,  // rows or channels, in passes
  strided,        // elements with gaps between them
};
inline constexpr std::size_t kWorkCount = 12;

// Shares of a peak, by Work.
using Shares = std::array<double, kWorkCount>;
inline constexpr Shares kWhole = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

struct DeviceSpec {
  std::string name;
  std::size_t memory_bytes = 0;
  // Indexed by Precision; 0: there is no such mode, and float32 counts.
  std::array<double, kPrecisionCount> peak_flops_per_s{};
  Shares achievable = kWhole;                      // of the peaks of matrix units: f16, i8, tf32
  Shares achievable_plain = kWhole;                // of the other peaks
  Shares achievable_bandwidth = kWhole;            // of the memory's
  std::array<std::int64_t, kWorkCount> ramp_ns{};  // until the units are busy
  double narrow_flops_per_s = 0;    // of products whose loads move one element; 0: no matter
  double overlap = 1;               // of arithmetic and traffic: 1: the longer counts, 0: their sum
  double leaves_out = 0;            // 1: shares are of the operations done (Cost::done); 0: of all
  double wave_loss = 0;             // share of the time of units that the last tiles leave idle
  double cache_bytes = 0;           // a command of so many bytes gets half of what the cache gives;
  double cache_gain = 1;            // a small one finds memory so many times as fast
  double cache_bytes_per_s = 0;     // of the cache; 0: not known, and the gain counts
  double memory_bytes_per_s = 0;    // device memory, reads plus writes
  double host_bytes_per_s = 0;      // link to pinned memory of the host, each direction
  double pageable_bytes_per_s = 0;  // to memory of the host that is not pinned
  double peer_bytes_per_s = 0;      // link to another device
  std::int64_t launch_latency_ns = 0;  // what the host pays for one command
  std::int64_t kernel_floor_ns = 0;    // the least that any command takes on the device
  std::int64_t next_floor_ns = 0;      // the least of each kernel behind the first of a command
  std::int64_t copy_floor_ns = 0;      // the least that a copy over a link takes
  std::int64_t pageable_floor_ns = 0;  // the least of one to or from memory that is not pinned
  std::int64_t query_ns = 0;           // what the host pays for asking whether work is done
  std::int64_t record_ns = 0;          // what the host pays for recording an event
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessor_count = 0;

  // Whether products in a precision run on matrix units. Lanes of float64 are at most half as many
  // as those of float32: a higher peak is that of matrix units.
  bool has_matrix_units(Precision precision) const {
    const auto peak = [this](Precision of) {
      return peak_flops_per_s[static_cast<std::size_t>(of)];
    };
    if (precision == Precision::f64) return peak(precision) > 0.75 * peak(Precision::f32);
    return peak(precision) > 0 && on_matrix_units(precision);
  }
};

// named_spec() throws InvalidArgument that lists the known names.
const DeviceSpec& named_spec(const std::string& name);
// The specifications of this library.
const std::vector<DeviceSpec>& all_specs();

// define_spec() adds one that a file describes; the caller has checked the numbers. The last
// definition of a name counts.
void define_spec(const DeviceSpec& spec);

}  // namespace npusim
