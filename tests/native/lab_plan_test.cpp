// SPDX-License-Identifier: BSD-3-Clause
// Plans, judged by conflict(), and conflict() itself.
#include <algorithm>
#include <random>

#include "allocator/error.h"
#include "lab/engine/names.h"
#include "lab/engine/plan.h"
#include "lab/engine/plan_reduction.h"
#include "lab/engine/valley_search.h"
#include "tests/native/check.h"

using namespace npusim::lab;

namespace {

bool live_together(const Buffer& a, const Buffer& b) {
  bool together = false;
  for_each_life(a, [&](std::int64_t lower, std::int64_t upper) {
    for_each_life(b, [&](std::int64_t other_lower, std::int64_t other_upper) {
      together |= lower < other_upper && other_lower < upper;
    });
  });
  return together;
}

// conflict() compares all pairs: two buffers that share addresses while both live; "" for none.
std::string conflict(std::span<const Buffer> buffers, const Plan& plan) {
  if (plan.offsets.size() != buffers.size()) return "a plan for another number of buffers";
  const auto end = [&](std::size_t i) { return plan.offsets[i] + buffers[i].bytes; };
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::string name = "buffer " + std::to_string(i);
    if (plan.offsets[i] % buffers[i].alignment != 0) return name + " is not aligned";
    if (end(i) > plan.height) return name + " ends above the height";
    for (std::size_t other = 0; other < i; ++other) {
      if (plan.offsets[i] < end(other) && plan.offsets[other] < end(i) &&
          live_together(buffers[i], buffers[other])) {
        return "buffers " + std::to_string(other) + " and " + std::to_string(i) + " overlap";
      }
    }
  }
  return "";
}

}  // namespace

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
                                    PlanMethod::birth, PlanMethod::skyline, PlanMethod::best}) {
      const Plan found = plan(buffers, {.method = method});
      CHECK_EQ(conflict(buffers, found), "");
      CHECK(found.height >= max_live_bytes(buffers));
    }
  }
}

TEST(a_conflict_is_named) {
  const std::vector<Buffer> buffers{{0, 10, 100}, {5, 15, 100}, {10, 20, 100}};
  CHECK_EQ(conflict(buffers, {{0, 100, 0}, 200}), "");
  CHECK_EQ(conflict(buffers, {{0, 99, 0}, 200}), "buffers 0 and 1 overlap");
  CHECK_EQ(conflict(buffers, {{0, 100, 0}, 150}), "buffer 1 ends above the height");
  CHECK_EQ(conflict(buffers, {{0}, 200}), "a plan for another number of buffers");
  CHECK_THROWS(plan(std::vector<Buffer>{{3, 3, 1}}, {}), InvalidArgument);
}

TEST(buffers_that_never_meet_share_one_place) {
  std::vector<Buffer> buffers;
  for (std::int64_t i = 0; i < 50; ++i) buffers.push_back({i, i + 1, 64});
  CHECK_EQ(plan(buffers, {}).height, 64);
}

// Each mode takes another way through the same tree, so all must come to the same answer, and with
// noise, too; the lowest capacity that they find is where they stop saying "impossible".
TEST(every_mode_of_the_search_gives_the_same_answer) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<Buffer> buffers(random() % 9 + 1);
    for (Buffer& buffer : buffers) {
      buffer.lower = static_cast<std::int64_t>(random() % 8);
      buffer.upper = buffer.lower + static_cast<std::int64_t>(random() % 6) + 1;
      buffer.bytes = random() % 9 + 1;
      if (round % 2 == 1 && buffer.upper - buffer.lower > 2 && random() % 2 == 0) {
        buffer.gaps = {{buffer.lower + 1, buffer.upper - 1}};
      }
    }
    const std::vector<Buffer> compact = compact_lives(buffers);
    const std::uint64_t bound = max_live_bytes(buffers);
    CHECK_EQ(max_live_bytes(compact), bound);
    const Plan best = plan(buffers, {.effort = {.steps = 10'000'000}});
    CHECK_EQ(best.height, best.at_least);
    ValleySearch search(compact);
    SearchBudget budget({.steps = 1'000'000'000});
    for (std::uint64_t capacity = bound - 1; capacity <= best.height; ++capacity) {
      const auto expected =
          capacity < best.height ? ValleySearch::Outcome::impossible : ValleySearch::Outcome::found;
      for (unsigned mode = 0; mode < ValleySearch::kModes; ++mode) {
        CHECK(search.run(capacity, mode, 1'000'000'000, mode * 0.1, budget) == expected);
        if (expected != ValleySearch::Outcome::found) continue;
        CHECK_EQ(conflict(buffers, {.offsets = search.offsets(), .height = capacity}), "");
      }
    }
  }
}

TEST(a_search_without_budget_knows_nothing) {
  const std::vector<Buffer> buffers{{0, 2, 3}, {1, 3, 2}, {2, 4, 3}};
  ValleySearch search(buffers);
  SearchBudget none({.steps = 0});
  CHECK(search.run(5, 0, 1000, 0, none) == ValleySearch::Outcome::unknown);
  SearchBudget some({.steps = 1000});
  CHECK(search.run(5, 0, 1000, 0, some) == ValleySearch::Outcome::found);
  CHECK(search.run(4, 0, 1000, 0, some) == ValleySearch::Outcome::impossible);
}

TEST(gaps_and_alignments_are_judged) {
  const std::vector<Buffer> buffers{{0, 9, 4, 1, {{2, 4}}}, {2, 4, 4}, {4, 5, 2, 4}};
  CHECK_EQ(conflict(buffers, {{0, 0, 4}, 6}), "");
  CHECK_EQ(conflict(buffers, {{0, 0, 3}, 6}), "buffer 2 is not aligned");
  CHECK_EQ(conflict(buffers, {{0, 0, 0}, 6}), "buffers 0 and 2 overlap");
  CHECK_EQ(plan(buffers, {}).height, 6);
}
