// SPDX-License-Identifier: BSD-3-Clause
// The race detector: what it reports, what orders two accesses, and random programs against a slow
// reference that follows every edge of the order.
#include <algorithm>
#include <bitset>
#include <deque>
#include <random>

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

TEST(a_write_after_a_read_is_a_race_too_and_two_reads_are_none) {  // (rule V4)
  TwoStreams program;
  program.read(program.main, program.x);
  program.read(program.side, program.x);
  CHECK(program.races().empty());
  program.write(program.side, program.x);
  CHECK_EQ(program.races().size(), 1);
}

TEST(an_event_orders_what_was_given_before_its_record_only) {  // (rules V5, E1)
  TwoStreams program;
  Event event(0);
  program.write(program.main, program.x);
  event.record(program.main);
  program.run(program.main, "later", program.x, true, 1024);
  event.block(program.side);
  program.read(program.side, program.x);
  CHECK(program.races().empty());
  program.run(program.side, "too_early", program.x, false, 1024);
  CHECK_EQ(program.races().size(), 1);
}

TEST(recording_again_does_not_order_whoever_waited_before) {  // (rules V5, E4)
  TwoStreams program;
  Event event(0);
  event.record(program.main);
  event.block(program.side);
  program.write(program.main, program.x);
  event.record(program.main);
  program.read(program.side, program.x);
  CHECK_EQ(program.races().size(), 1);
}

TEST(orders_are_transitive_and_cross_devices) {  // (rule V5)
  TwoStreams program;
  Stream& peer = next_stream(1, 0);
  program.write(program.main, program.x);
  program.wait(peer, program.main);
  program.wait(program.side, peer);
  program.read(program.side, program.x);
  CHECK(program.races().empty());
}

TEST(what_the_host_waited_for_is_known_to_all_that_is_launched_later) {  // (rule V5)
  for (const int way : {0, 1, 2, 3}) {
    TwoStreams program;
    Event event(0);
    program.write(program.main, program.x);
    event.record(program.main);
    if (way == 0) program.main.synchronize();
    if (way == 1) event.synchronize();
    if (way == 2) synchronize_device(0);
    if (way == 3)
      while (!event.query()) advance_host_ns(1000);
    program.write(program.side, program.x);
    CHECK(program.races().empty());
  }
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

TEST(parts_that_do_not_overlap_do_not_race) {  // (rule V4)
  TwoStreams program;
  program.run(program.main, "left", program.x, true, 0, 128);
  program.run(program.side, "right", program.x, true, 128, 128);
  CHECK(program.races().empty());
  program.run(program.side, "both", program.x, true, 127, 2);
  CHECK_EQ(program.races().size(), 1);
}

TEST(columns_that_interleave_do_not_race) {  // (rule V4)
  TwoStreams program;
  program.write_columns(program.main, program.x, 0, 8);
  program.write_columns(program.side, program.x, 8, 8);
  CHECK(program.races().empty());
  program.write_columns(program.side, program.x, 7, 8);
  CHECK_EQ(program.races().size(), 1);
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

TEST(a_stream_that_waits_before_it_uses_new_memory_may_have_freed_early) {  // (rule V6)
  TwoStreams program;
  program.read(program.side, program.x);
  program.free(program.x);
  program.allocate(program.x, 64, program.main);
  program.wait(program.main, program.side);
  program.write(program.main, program.x);
  CHECK(program.races().empty());
}

TEST(blocks_of_other_streams_and_pools_do_not_get_the_memory) {  // (rule V6)
  TwoStreams program;
  program.read(program.side, program.x);
  program.free(program.x);
  Stream& third = next_stream(0, 0);
  program.allocate(Watched::address(8192), 64, third);
  program.write(third, Watched::address(8192));
  for (Stream* stream : {&program.main, &third}) {
    for (std::uint64_t pool = 1; pool < 16; ++pool) {
      program.allocate(Watched::address(16384), 64, *stream, pool);
      program.write(*stream, Watched::address(16384));
      program.free(Watched::address(16384));
    }
  }
  CHECK(program.races().empty());
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

TEST(the_host_races_with_copies_of_pinned_memory) {  // (rule V7)
  Watched program;
  Stream& stream = default_stream(0);
  const std::size_t bytes = 64;
  void* pinned = pinned_allocate(bytes);
  const auto address = reinterpret_cast<Address>(pinned);
  note_memory(MemoryKind::pinned_allocate, pinned, bytes, nullptr);
  for (const bool lands : {false, true}) {
    program.host("prepare", address, true);
    CHECK(program.races().empty());
    program.run(stream, lands ? "copy_d2h" : "copy_h2d", address, lands);
    program.host("read", address, false);
    std::vector<Race> races = program.races();
    CHECK_EQ(races.size(), lands ? 1 : 0);
    if (lands) CHECK_EQ(races[0].missing, Missing::synchronize);
    if (!lands) {
      program.host("refill", address, true);
      races = program.races();
      CHECK_EQ(races.size(), 1);
      CHECK_EQ(races[0].missing, Missing::event);
      CHECK_EQ(races[0].second.device, -1);
    }
    stream.synchronize();
    program.host("refill", address, true);
    CHECK(program.races().empty());
  }
  note_memory(MemoryKind::pinned_free, pinned, bytes, nullptr);
  pinned_free(pinned);
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

TEST(memory_given_out_again_has_no_history) {
  TwoStreams program;
  program.write(program.main, program.x);
  program.free(program.x);
  program.allocate(program.x, 4096, program.side);
  program.write(program.side, program.x);
  CHECK(program.races().empty());
}

// --- Random programs ----------------------------------------------------------------------------

namespace {

constexpr std::size_t kMostSteps = 256;
using Set = std::bitset<kMostSteps>;

// Every step has the set of all steps that come before it in the order; nothing is ever forgotten.
class Reference {
 public:
  static constexpr int kHost = 3;
  struct Step {
    Set before;
    int party = kHost;
    int block = -1;
    std::size_t begin = 0, end = 0;
    bool written = false;
  };

  // A step of a party; a stream's also follows all that the host has done.
  std::size_t step(int party) {
    Step next;
    next.party = party;
    next.before = tail_[party];
    if (party != kHost) next.before |= tail_[kHost];
    steps_.push_back(next);
    const std::size_t index = steps_.size() - 1;
    tail_[party] = next.before;
    tail_[party].set(index);
    return index;
  }
  bool access(int party, int block, std::size_t begin, std::size_t end, bool written) {
    const std::size_t index = step(party);
    Step& now = steps_[index];
    now.block = block;
    now.begin = begin;
    now.end = end;
    now.written = written;
    bool race = false;
    for (std::size_t i = 0; i < index; ++i) {
      const Step& old = steps_[i];
      race |= old.block == block && old.party != party && (old.written || written) &&
              old.begin < end && begin < old.end && !now.before[i];
    }
    for (const std::size_t ghost : blocks_[block].ghosts) {
      race |= steps_[ghost].party != party && !now.before[ghost];
    }
    return race;
  }
  void record(int party, int event) {
    step(party);
    marks_[event] = tail_[party];
  }
  void block(int party, int event) {
    step(party);
    tail_[party] |= marks_[event];
  }
  void wait_event(int event) { tail_[kHost] |= marks_[event]; }
  void wait_stream(int party) { tail_[kHost] |= tail_[party]; }
  void record_stream(int block, int party) { blocks_[block].users.push_back(party); }
  // The block is freed and its place is given to `next`.
  void replace(int block, int next) {
    Block& old = blocks_[block];
    const Set known = tail_[old.owner] | tail_[kHost];
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      const bool told =
          std::find(old.users.begin(), old.users.end(), step.party) != old.users.end();
      if (step.block == block && step.party != old.owner && step.party != kHost && !told &&
          !known[i]) {
        freed_[old.owner].push_back(i);
      }
    }
    allocate(next, old.owner);
  }
  void allocate(int block, int owner) {
    const Set known = tail_[owner] | tail_[kHost];
    blocks_[block] = {owner, {}, {}};
    std::erase_if(freed_[owner], [&](std::size_t ghost) { return known[ghost]; });
    blocks_[block].ghosts = freed_[owner];
  }

 private:
  struct Block {
    int owner = 0;
    std::vector<int> users;
    std::vector<std::size_t> ghosts;
  };
  std::vector<Step> steps_;
  std::array<Set, 4> tail_;
  std::array<Set, 4> marks_;
  std::array<std::vector<std::size_t>, 4> freed_;
  std::array<Block, 64> blocks_;
};

}  // namespace

TEST(random_programs_race_first_where_the_reference_says) {  // (rules V4-V6)
  std::size_t raced = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Watched program;
    Reference reference;
    std::mt19937 random(seed);
    const auto below = [&](std::size_t limit) { return static_cast<int>(random() % limit); };
    const std::array<Stream*, 3> streams{&default_stream(0), &next_stream(0, 0),
                                         &next_stream(1, -1)};
    std::deque<Event> events;
    for (int i = 0; i < 4; ++i) events.emplace_back(i == 3 ? 1 : 0);
    std::array<int, 3> places{0, 1, 2};  // the block that lies there
    int blocks = 3;
    const auto base = [](int place) { return Watched::address(4096UL * place); };
    for (int place = 0; place < 3; ++place) {
      program.allocate(base(place), 4096, *streams[place]);
      reference.allocate(place, place);
    }
    for (int step = 0; step < 60; ++step) {
      const int party = below(3);
      const int event = party == 2 ? 3 : below(3);
      const int place = below(3);
      bool expected = false;
      switch (below(10)) {
        default: {
          const std::size_t begin = 16 * static_cast<std::size_t>(below(4));
          const std::size_t bytes = 16 * static_cast<std::size_t>(1 + below(4));
          const bool written = below(2) == 0;
          program.run(*streams[party], written ? "write" : "read", base(place), written, begin,
                      bytes);
          expected = reference.access(party, places[place], begin, begin + bytes, written);
          break;
        }
        case 1:
        case 2:
          events[event].record(*streams[party]);
          reference.record(party, event);
          break;
        case 3:
        case 4:
        case 5: {
          const int any = below(4);
          events[any].block(*streams[party]);
          if (events[any].version() != 0) reference.block(party, any);
          break;
        }
        case 6:
          if (below(4) != 0) break;
          streams[party]->synchronize();
          reference.wait_stream(party);
          break;
        case 7:
          if (below(3) != 0) break;
          program.record_stream(base(place), *streams[party]);
          reference.record_stream(places[place], party);
          break;
        case 8: {
          program.free(base(place));
          program.allocate(base(place), 4096, *streams[place]);
          const int next = blocks++;
          reference.replace(places[place], next);
          places[place] = next;
          break;
        }
        case 9:
          if (events[event].version() == 0) break;
          events[event].synchronize();
          reference.wait_event(event);
          break;
      }
      const bool found = !program.races().empty();
      if (found != expected) {
        check::fail(__FILE__, __LINE__,
                    "seed " + std::to_string(seed) + ", step " + std::to_string(step) +
                        (found ? ": a false alarm" : ": a missed race"));
      }
      if (found) {
        ++raced;
        break;  // from here on the detector takes the missing order for granted
      }
    }
  }
  CHECK(raced > 500);
  CHECK(raced < 3000);
}
