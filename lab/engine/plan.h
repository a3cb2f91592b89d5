// SPDX-License-Identifier: BSD-3-Clause
// Offline placement: buffers whose lifetimes are known go to one range of addresses. The least
// height is dynamic storage allocation, which is NP-hard; plan() gives a placement and a proven
// lower bound, and where the two meet the placement is optimal. For hundreds of thousands of
// buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace npusim::lab {

struct Life {
  std::int64_t lower = 0;  // [lower, upper), in any unit of time
  std::int64_t upper = 0;
};

struct Buffer {
  std::int64_t lower = 0;  // alive in [lower, upper)
  std::int64_t upper = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;  // of its offset
  std::vector<Life> gaps = {};  // within its life, in order: here others may have its bytes
};

// for_each_life() visits when a buffer has its bytes: its life without the gaps.
template <class Visit>
void for_each_life(const Buffer& buffer, const Visit& visit) {
  std::int64_t lower = buffer.lower;
  for (const Life& gap : buffer.gaps) {
    if (gap.lower > lower) visit(lower, gap.lower);
    lower = gap.upper;
  }
  if (buffer.upper > lower) visit(lower, buffer.upper);
}

enum class PlanMethod : std::uint8_t {
  birth,     // greedy: in this order, each to the lowest place that is free during its whole life;
  size,      //   earliest first is first fit as an allocator does it, the others are largest first
  lifetime,  //
  area,      //   (bytes times lifetime)
  skyline,  // the lowest place first: there goes the longest-lived buffer that fits beneath nothing
  best,     // the lowest of these, of buffers as they are and glued (plan_reduction.h), and below
            //   that what a search finds (plan_search.h)
};

// How much to search. Steps are counted, so the same effort gives the same plan everywhere; seconds
// replace the count by a clock, and then the plan depends on the machine.
struct PlanEffort {
  std::uint64_t steps = 0;
  double seconds = 0;  // 0: count steps
};

struct PlanRequest {
  PlanMethod method = PlanMethod::best;
  std::uint64_t alignment = 1;                 // of every offset; sizes are rounded up to it
  std::optional<std::uint64_t> capacity = {};  // a plan within it is good enough
  PlanEffort effort = {};                      // of the method best
};

struct Plan {
  std::vector<std::uint64_t> offsets = {};  // per buffer
  std::uint64_t height = 0;                 // the largest offset + bytes
  std::uint64_t at_least = 0;               // proven: no plan is lower; of the method best
  std::uint64_t steps = 0;                  // searched
};

// plan() throws InvalidArgument for a buffer without bytes or lifetime, an alignment of 0, gaps
// that are not in order within the life, and for buffers that need 2^63 bytes.
Plan plan(std::span<const Buffer> buffers, const PlanRequest& request);

// max_live_bytes() throws InvalidArgument where that is 2^63 or more.
std::uint64_t max_live_bytes(std::span<const Buffer> buffers);

// heuristic_plan() is the lowest that the heuristics find; they stop at the bound.
Plan heuristic_plan(std::span<const Buffer> buffers, std::uint64_t bound);

// saturated() is a sum that stays at the largest number instead of starting anew from 0.
inline std::uint64_t saturated(std::uint64_t a, std::uint64_t b) noexcept {
  return a > ~std::uint64_t{0} - b ? ~std::uint64_t{0} : a + b;
}

}  // namespace npusim::lab
