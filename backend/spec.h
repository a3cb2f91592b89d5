// SPDX-License-Identifier: BSD-3-Clause
// Named hardware specifications: what a simulated device is called, holds and how fast it is.
// Invariant: numbers are fixed per name, because modelled times must be reproducible (rule C1).
// Called by device.cpp and cost_model.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace npusim {

// The classes of arithmetic that have their own peak rate. `other` (bool, int64, ...) counts as
// one operation per element at the f32 rate unless the spec says otherwise.
enum class Precision : std::uint8_t { f32, f64, f16, i8, other };
inline constexpr std::size_t kPrecisionCount = 5;

struct DeviceSpec {
  std::string name;
  std::size_t memory_bytes = 0;
  std::array<double, kPrecisionCount> peak_flops_per_s{};  // indexed by Precision
  double memory_bytes_per_s = 0;                           // device memory, reads plus writes
  double host_bytes_per_s = 0;                             // link to the host, each direction
  double peer_bytes_per_s = 0;                             // link to another device
  std::int64_t launch_latency_ns = 0;                      // what the host pays for one command
  std::int64_t kernel_floor_ns = 0;  // the least that any command takes on the device
  std::int64_t copy_floor_ns = 0;    // the least that a copy over a link takes
  std::int64_t query_ns = 0;         // what the host pays for asking whether work is done
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessor_count = 0;
};

// named_spec() throws InvalidArgument that lists the known names.
const DeviceSpec& named_spec(const std::string& name);
const std::vector<DeviceSpec>& all_specs();

}  // namespace npusim
