// SPDX-License-Identifier: BSD-3-Clause
// Ranks that enter and leave a group: threads of one process, and processes.
#include <cstring>

#include "backend/collective_board.h"
#include "tests/native/backend_child.h"
#include "tests/native/check.h"

using namespace npusim;

TEST(a_rank_that_has_left_is_still_of_its_process) {
  const auto group = CollectiveBoard::make(2);
  group->enter(0);
  group->enter(1);
  CHECK(group->same_process(0, 1));
  CHECK(group->gone(0) == nullptr);

  group->leave(0);
  CHECK(group->same_process(0, 1));
  CHECK(group->same_process(1, 0));
  CHECK_EQ(std::strcmp(group->gone(0), "has left the group"), 0);
  CHECK(group->gone(1) == nullptr);

  group->leave(0);  // twice is as once
  CHECK(group->same_process(0, 1));
  CHECK_EQ(std::strcmp(group->gone(0), "has left the group"), 0);
}

TEST(a_rank_of_another_process_is_told_from_one_that_left) {
  const auto group = CollectiveBoard::make(3);
  group->enter(0);
  CHECK(group->gone(1) == nullptr);  // it has not come yet
  CHECK(child::exited(child::run([&] { group->enter(1); })));
  CHECK(child::exited(child::run([&] {
    group->enter(2);
    group->leave(2);
  })));
  CHECK(!group->same_process(0, 1));
  CHECK(!group->same_process(0, 2));
  CHECK_EQ(std::strcmp(group->gone(1), "has ended"), 0);
  CHECK_EQ(std::strcmp(group->gone(2), "has left the group"), 0);
}
