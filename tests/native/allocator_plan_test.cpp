// SPDX-License-Identifier: BSD-3-Clause
// Plans, judged by plan_conflict(), and plan_conflict() itself.
#include <random>

#include "allocator/error.h"
#include "allocator/replay/plan.h"
#include "tests/native/check.h"

using namespace npusim::alloc;

TEST(every_method_gives_plans_without_conflict) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 30; ++round) {
    std::vector<Buffer> buffers(random() % 200 + 1);
    for (Buffer& buffer : buffers) {
      buffer.lower = static_cast<std::int64_t>(random() % 100);
      buffer.upper = buffer.lower + static_cast<std::int64_t>(random() % 40) + 1;
      buffer.bytes = random() % 1000 + 1;
    }
    for (const PlanMethod method : {PlanMethod::size, PlanMethod::lifetime, PlanMethod::area,
                                    PlanMethod::skyline, PlanMethod::best}) {
      const Plan found = plan(buffers, method);
      CHECK_EQ(plan_conflict(buffers, found), "");
      CHECK(found.height >= max_live_bytes(buffers));
    }
  }
}

TEST(a_conflict_is_named) {
  const std::vector<Buffer> buffers{{0, 10, 100}, {5, 15, 100}, {10, 20, 100}};
  CHECK_EQ(plan_conflict(buffers, {{0, 100, 0}, 200}), "");
  CHECK_EQ(plan_conflict(buffers, {{0, 99, 0}, 200}), "buffers 0 and 1 overlap");
  CHECK_EQ(plan_conflict(buffers, {{0, 100, 0}, 150}), "buffer 1 ends above the height");
  CHECK_EQ(plan_conflict(buffers, {{0}, 200}), "a plan for another number of buffers");
  CHECK_THROWS(plan(std::vector<Buffer>{{3, 3, 1}}, PlanMethod::best), InvalidArgument);
}

TEST(buffers_that_never_meet_share_one_place) {
  std::vector<Buffer> buffers;
  for (std::int64_t i = 0; i < 50; ++i) buffers.push_back({i, i + 1, 64});
  CHECK_EQ(plan(buffers, PlanMethod::best).height, 64);
}
