// SPDX-License-Identifier: BSD-3-Clause
// Offline placement: buffers whose lifetimes are known go to one range of addresses. The least
// height is dynamic storage allocation, which is NP-hard; plan() gives good upper bounds of it,
// max_live_bytes() the lower bound. Both for hundreds of thousands of buffers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace npusim::alloc {

struct Buffer {
  std::int64_t lower = 0;  // alive in [lower, upper), in any unit of time
  std::int64_t upper = 0;
  std::uint64_t bytes = 0;
};

enum class PlanMethod : std::uint8_t {
  size,      // greedy: in this order, largest first, each to the lowest place that is free
  lifetime,  //   during its whole life
  area,      //   (bytes times lifetime)
  skyline,  // the lowest place first: there goes the longest-lived buffer that fits beneath nothing
  best,     // the lowest of these four, of buffers as they are and glued (plan_reduction.h)
};

struct Plan {
  std::vector<std::uint64_t> offsets;  // per buffer
  std::uint64_t height = 0;            // the largest offset + bytes
};

// plan() throws InvalidArgument for a buffer without bytes or lifetime, or an alignment of 0.
Plan plan(std::span<const Buffer> buffers, PlanMethod method, std::uint64_t alignment = 1);

std::uint64_t max_live_bytes(std::span<const Buffer> buffers);

// plan_conflict() names two buffers that share addresses while both live; empty where none do.
std::string plan_conflict(std::span<const Buffer> buffers, const Plan& plan);

}  // namespace npusim::alloc
