// SPDX-License-Identifier: BSD-3-Clause
// The cost model: whole nanoseconds, a pure function of specification and command.
#include <cmath>
#include <limits>

#include "backend/backend.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

// One operation per ns in f32, one byte per ns everywhere; floors 7 (kernels) and 9 (links).
CostRates unit_rates() {
  DeviceSpec spec = named_spec("npusim-one");
  spec.peak_flops_per_s = {1e9, 0.5e9, 4e9, 8e9, 1e9, 0};
  spec.memory_bytes_per_s = spec.host_bytes_per_s = 1e9;
  spec.pageable_bytes_per_s = 0.5e9;
  spec.peer_bytes_per_s = 0.25e9;
  spec.kernel_floor_ns = 7;
  spec.copy_floor_ns = 9;
  spec.pageable_floor_ns = 9;
  return make_cost_rates(spec);
}

}  // namespace

TEST(a_kernel_is_bound_by_operations_or_by_bytes) {  // (rule C1)
  const CostRates rates = unit_rates();
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {100, 40, Precision::f32}), 107);
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {40, 100, Precision::f32}), 107);
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {0, 0, Precision::f32}), 7);
}

TEST(precision_and_kind_choose_the_rate) {  // (rule C1)
  const CostRates rates = unit_rates();
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {100, 0, Precision::f64}), 207);
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {100, 0, Precision::f16}), 32);
  CHECK_EQ(duration_ns(rates, CommandKind::copy_h2d, {0, 100, Precision::other}), 109);
  CHECK_EQ(duration_ns(rates, CommandKind::copy_d2h_pageable, {0, 100, Precision::other}), 209);
  CHECK_EQ(duration_ns(rates, CommandKind::copy_peer, {0, 100, Precision::other}), 409);
}

TEST(classes_of_work_have_their_share_and_their_ramp) {  // (rule C1)
  DeviceSpec spec = named_spec("npusim-one");
  spec.peak_flops_per_s = {1e9, 1e9, 4e9, 1e9, 1e9, 2e9};
  spec.memory_bytes_per_s = 2e9;
  spec.achievable = spec.achievable_plain = {1, 0.5, 0.25};
  spec.ramp_ns = {0, 30};
  spec.achievable_bandwidth.fill(0.5);
  spec.kernel_floor_ns = 7;
  const CostRates rates = make_cost_rates(spec);
  const auto duration = [&](double flops, double bytes, Precision precision, Work work) {
    return duration_ns(rates, CommandKind::kernel, {flops, bytes, precision, work});
  };
  CHECK_EQ(duration(100, 0, Precision::f32, Work::streaming), 107);
  CHECK_EQ(duration(100, 0, Precision::f32, Work::matmul), 237);
  CHECK_EQ(duration(100, 0, Precision::tf32, Work::matmul), 137);
  CHECK_EQ(duration(100, 0, Precision::f16, Work::convolution), 107);
  CHECK_EQ(duration(0, 100, Precision::f32, Work::streaming), 107);
}

TEST(arithmetic_traffic_tiles_and_the_cache_make_a_duration) {  // (rule C1)
  DeviceSpec spec = named_spec("npusim-one");
  spec.peak_flops_per_s = {1e9, 1e9, 4e9, 1e9, 1e9, 2e9};
  spec.memory_bytes_per_s = 1e9;
  spec.kernel_floor_ns = 7;
  spec.multiprocessor_count = 4;
  spec.overlap = 0.5;
  const auto duration = [&](const Cost& cost) {
    return duration_ns(make_cost_rates(spec), CommandKind::kernel, cost);
  };
  const Cost product = {1000, 400, Precision::f32, Work::matmul, tiles_of(1, 640, 128)};
  CHECK_EQ(product.tiles, 5);
  CHECK_EQ(duration(product), 7 + 1000 + 200);
  spec.wave_loss = 1;  // five tiles on four units take two waves
  CHECK_EQ(duration(product), 7 + 1600 + 200);
  spec.cache_bytes = 400;  // half of what the cache gives
  spec.cache_gain = 3;
  CHECK_EQ(duration(product), 7 + 1600 + 100);
}

TEST(each_further_kernel_has_a_floor_of_its_own) {  // (rule C1)
  DeviceSpec spec = named_spec("npusim-one");
  spec.kernel_floor_ns = 7;
  spec.next_floor_ns = 5;
  const auto duration = [&](double kernels) {
    Cost cost;
    cost.kernels = kernels;
    return duration_ns(make_cost_rates(spec), CommandKind::kernel, cost);
  };
  CHECK_EQ(duration(0), 7);
  CHECK_EQ(duration(1), 7);
  CHECK_EQ(duration(4), 7 + 15);
}

TEST(a_cache_with_a_rate_serves_what_fits_and_what_is_read_again) {  // (rule C1)
  DeviceSpec spec = named_spec("npusim-one");
  spec.memory_bytes_per_s = 1e9;
  spec.kernel_floor_ns = 0;
  spec.cache_bytes = 400;
  spec.cache_bytes_per_s = 4e9;
  const auto duration = [&](double bytes, double cached) {
    Cost cost = {0, bytes, Precision::f32, Work::streaming};
    cost.cached = cached;
    return duration_ns(make_cost_rates(spec), CommandKind::kernel, cost);
  };
  CHECK_EQ(duration(400, 0), 100);
  CHECK_EQ(duration(401, 0), 401);       // does not fit
  CHECK_EQ(duration(1000, 600), 250);    // 400 bytes, some of them often
  CHECK_EQ(duration(8000, 7000), 2000);  // the cache is slower than the memory of the rest
  CHECK_EQ(duration(2000, 500), 1500);
}

TEST(what_attention_leaves_out_takes_no_time_where_its_share_says_so) {  // (rule C1)
  DeviceSpec spec = named_spec("npusim-one");
  spec.peak_flops_per_s = {1e9, 1e9, 4e9, 1e9, 1e9, 2e9};
  spec.kernel_floor_ns = 0;
  Cost cost = {1000, 0, Precision::f32, Work::attention};
  cost.done = 0.5;
  CHECK_EQ(duration_ns(make_cost_rates(spec), CommandKind::kernel, cost), 1000);
  spec.leaves_out = 1;
  CHECK_EQ(duration_ns(make_cost_rates(spec), CommandKind::kernel, cost), 500);
}

TEST(float64_beyond_half_of_float32_has_matrix_units) {  // (rule C1)
  DeviceSpec spec = named_spec("npusim-one");
  spec.kernel_floor_ns = 0;
  spec.achievable[static_cast<std::size_t>(Work::matmul)] = 0.5;
  const auto duration = [&](double peak) {
    spec.peak_flops_per_s = {2e9, peak, 4e9, 1e9, 1e9, 2e9};
    const Cost cost = {1000, 0, Precision::f64, Work::matmul};
    return duration_ns(make_cost_rates(spec), CommandKind::kernel, cost);
  };
  CHECK_EQ(duration(1e9), 1000);
  CHECK_EQ(duration(2e9), 1000);  // half of twice as much
}

TEST(loads_of_few_elements_bound_a_product) {  // (rule C1)
  DeviceSpec spec = named_spec("npusim-one");
  spec.peak_flops_per_s = {1e9, 1e9, 4e9, 1e9, 1e9, 2e9};
  spec.kernel_floor_ns = 0;
  const auto duration = [&](double aligned) {
    Cost cost = {4000, 0, Precision::f16, Work::matmul};
    cost.aligned = aligned;
    return duration_ns(make_cost_rates(spec), CommandKind::kernel, cost);
  };
  CHECK_EQ(duration(1), 1000);  // no rate is stated
  spec.narrow_flops_per_s = 1e9;
  CHECK_EQ(duration(0), 1000);
  CHECK_EQ(duration(1), 4000);
  CHECK_EQ(duration(2), 2000);
  CHECK_EQ(duration(4), 1000);
}

TEST(float32_stands_in_for_a_mode_that_a_device_has_not) {  // (rule C1)
  const CostRates rates = unit_rates();
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {100, 0, Precision::tf32}), 107);
}

TEST(a_defined_specification_is_found_by_name) {
  DeviceSpec spec = named_spec("npusim-mini");
  spec.name = "defined-here";
  define_spec(spec);
  CHECK_EQ(named_spec("defined-here").memory_bytes, spec.memory_bytes);
}

TEST(impossible_costs_are_harmless) {  // (rule C1)
  const CostRates rates = unit_rates();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {nan, nan, Precision::f32}), 7);
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {nan, 50, Precision::f32}), 57);
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {-5, -9, Precision::f32}), 7);
  CHECK_EQ(duration_ns(rates, CommandKind::kernel, {inf, 0, Precision::f32}),
           7 + static_cast<std::int64_t>(kMaxDurationNs));
}

TEST(every_specification_is_complete) {
  for (const DeviceSpec& spec : all_specs()) {
    CHECK(spec.memory_bytes > 0 && spec.multiprocessor_count > 0 && spec.query_ns > 0);
    CHECK(spec.record_ns > 0);
    for (const auto& rates : make_cost_rates(spec).ns_per_flop) {
      for (const double rate : rates) CHECK(std::isfinite(rate));
    }
  }
  CHECK_THROWS(named_spec("npusim-two"), InvalidArgument);
}

TEST(the_host_clock_never_goes_back) {  // (rule C2)
  const std::int64_t start = host_now_ns();
  advance_host_ns(5);
  CHECK_EQ(host_now_ns(), start + 5);
  wait_until_ns(start);
  CHECK_EQ(host_now_ns(), start + 5);
  wait_until_ns(start + 100);
  CHECK_EQ(host_now_ns(), start + 100);
}
