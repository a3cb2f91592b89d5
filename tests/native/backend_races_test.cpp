// SPDX-License-Identifier: BSD-3-Clause
// The race detector: what it reports, and orders that no program of Python asks for. Random
// programs beside a slow reference are tests/search/streams.py.
#include "tests/native/backend_watched_program.h"

using namespace npusim;

namespace {

struct TwoStreams : Watched {
  Stream& main = default_stream(0);
  Stream& side = next_stream(0, 0);
  Address x = address(0);
  TwoStreams() { allocate(x, 4096, main); }
  void wait(Stream& waiter, Stream& awaited) {
    Event event(awaited.device());
    event.record(awaited);
    event.block(waiter);
  }
};

}  // namespace

TEST(a_read_on_another_stream_without_an_order_is_a_race) {  // (rule V4)
  TwoStreams program;
  program.write(program.main, program.x);
  program.read(program.side, program.x);
  const std::vector<Race> races = program.races();
  CHECK_EQ(races.size(), 1);
  CHECK_EQ(races[0].missing, Missing::wait_stream);
  CHECK_EQ(races[0].first.name, "write");
  CHECK_EQ(races[0].first.stream, 0);
  CHECK(races[0].first.written);
  CHECK_EQ(races[0].second.name, "read");
  CHECK_EQ(races[0].second.stream, program.side.id());
  CHECK_EQ(races[0].allocation_bytes, 4096);
}

TEST(a_query_that_is_answered_no_orders_nothing) {  // (rule V5)
  TwoStreams program;
  submit(program.main, {"long", CommandKind::kernel, {0, 1e12}}, [] {});
  program.write(program.main, program.x);
  CHECK(!program.main.query());
  program.read(program.side, program.x);
  CHECK_EQ(program.races().size(), 1);
}

TEST(launch_blocking_is_an_order) {  // (rules V5, F6)
  TwoStreams program;
  set_launch_blocking(true);
  program.write(program.main, program.x);
  program.read(program.side, program.x);
  set_launch_blocking(false);
  CHECK(program.races().empty());
}

TEST(one_missing_order_is_one_report) {  // (rule V8)
  TwoStreams program;
  for (int step = 0; step < 10; ++step) {
    program.write(program.main, program.x);
    program.read(program.side, program.x);
  }
  const std::vector<Race> races = program.races();
  // The read after the write, and the next write after that read.
  CHECK_EQ(races.size(), 2);
  CHECK(races[0].first.written);
  CHECK(!races[1].first.written);
}

TEST(a_block_freed_in_use_races_with_what_its_stream_gets_next) {  // (rule V6)
  for (const bool recorded : {false, true}) {
    for (const std::size_t offset : {0, 1 << 20}) {  // whether or not it is the same place
      TwoStreams program;
      program.write(program.main, program.x);
      program.wait(program.side, program.main);
      program.read(program.side, program.x);
      if (recorded) program.record_stream(program.x, program.side);
      program.free(program.x);
      const Address y = Watched::address(offset);
      program.allocate(y, 64, program.main);
      program.write(program.main, y);
      const std::vector<Race> races = program.races();
      CHECK_EQ(races.size(), recorded ? 0 : 1);
      if (recorded) continue;
      CHECK_EQ(races[0].missing, Missing::record_stream);
      CHECK_EQ(races[0].first.stream, program.side.id());
      CHECK_EQ(races[0].allocation_bytes, 4096);
      CHECK_EQ(races[0].same_place, offset == 0);
    }
  }
}

TEST(an_allocator_that_waits_for_the_device_may_reuse_everything) {  // (rule V6)
  TwoStreams program;
  program.read(program.side, program.x);
  program.free(program.x);
  note_order(OrderKind::allocator_wait, 0, nullptr);
  program.allocate(program.x, 64, program.main);
  program.write(program.main, program.x);
  CHECK(program.races().empty());
}

TEST(what_is_forgotten_for_lack_of_room_is_not_reported) {  // (rule V9)
  TwoStreams program;
  constexpr std::size_t kPieces = RaceDetector::kMostAccesses + 1;
  program.allocate(program.x, 1 << 20, program.main);
  for (std::size_t i = 0; i < kPieces; ++i) {  // with gaps, so that they stay apart
    program.run(program.main, "piece", program.x, true, 128 * i, 64);
  }
  program.run(program.side, "first", program.x, false, 0, 64);
  CHECK(program.races().empty());
  program.run(program.side, "last", program.x, false, 128 * (kPieces - 1), 64);
  CHECK_EQ(program.races().size(), 1);
}
