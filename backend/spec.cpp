// SPDX-License-Identifier: BSD-3-Clause
// The table of specifications. The numbers are round and invented: they are in the proportions of
// current accelerators, so that what is bound by launches, by memory or by arithmetic is so here.
#include "backend/spec.h"

#include <deque>
#include <mutex>

#include "backend/error.h"

namespace npusim {

const std::vector<DeviceSpec>& all_specs() {
  static const std::vector<DeviceSpec>* const kSpecs = new std::vector<DeviceSpec>{
      {.name = "npusim-one",
       .memory_bytes = std::size_t{16} << 30,
       //                     f32    f64   f16     i8      other
       .peak_flops_per_s = {20e12, 10e12, 160e12, 320e12, 20e12},
       .memory_bytes_per_s = 1000e9,
       .host_bytes_per_s = 25e9,
       .pageable_bytes_per_s = 8e9,
       .peer_bytes_per_s = 100e9,
       .launch_latency_ns = 4000,
       .kernel_floor_ns = 2000,
       .copy_floor_ns = 5000,
       .pageable_floor_ns = 5000,
       .query_ns = 500,
       .record_ns = 1000,
       .capability_major = 1,
       .capability_minor = 0,
       .multiprocessor_count = 64},
      {.name = "npusim-mini",
       .memory_bytes = std::size_t{2} << 30,
       .peak_flops_per_s = {2e12, 0.5e12, 8e12, 16e12, 2e12},
       .memory_bytes_per_s = 100e9,
       .host_bytes_per_s = 10e9,
       .pageable_bytes_per_s = 5e9,
       .peer_bytes_per_s = 10e9,
       .launch_latency_ns = 6000,
       .kernel_floor_ns = 4000,
       .copy_floor_ns = 8000,
       .pageable_floor_ns = 8000,
       .query_ns = 500,
       .record_ns = 1000,
       .capability_major = 1,
       .capability_minor = 0,
       .multiprocessor_count = 8},
  };
  return *kSpecs;
}

namespace {

struct Defined {
  std::mutex mutex;              // guards specs
  std::deque<DeviceSpec> specs;  // newest first; references to them last
};
Defined& defined() {
  static auto* const kDefined = new Defined();
  return *kDefined;
}

}  // namespace

void define_spec(const DeviceSpec& spec) {
  const std::lock_guard lock(defined().mutex);
  defined().specs.push_front(spec);
}

const DeviceSpec& named_spec(const std::string& name) {
  {
    const std::lock_guard lock(defined().mutex);
    for (const DeviceSpec& spec : defined().specs) {
      if (spec.name == name) return spec;
    }
  }
  std::string known;
  for (const DeviceSpec& spec : all_specs()) {
    if (spec.name == name) return spec;
    known += (known.empty() ? "" : ", ") + spec.name;
  }
  throw InvalidArgument(
      detail::join("there is no device specification `", name, "`; accepted: ", known, "."));
}

}  // namespace npusim
