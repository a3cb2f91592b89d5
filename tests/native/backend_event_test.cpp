// SPDX-License-Identifier: BSD-3-Clause
// Events: versioned marks, waits across streams and devices, elapsed time.
#include "backend/backend.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

CommandInfo kernel(std::int64_t duration) {
  return {"work", CommandKind::kernel, {0, 1000.0 * static_cast<double>(duration - 2000)}};
}

struct Machine {
  Machine() {
    initialize();
    for (const int device : {0, 1}) synchronize_device(device);
  }
};

}  // namespace

TEST(an_event_marks_the_work_before_it) {  // (rule E1)
  Machine machine;
  Stream& stream = default_stream(0);
  Event event(0);
  submit(stream, kernel(20'000), [] {});
  event.record(stream);
  submit(stream, kernel(70'000), [] {});
  CHECK(!event.query());
  event.synchronize();
  CHECK_EQ(host_now_ns(), event.mark_ns());
  CHECK(event.query());
  CHECK(!stream.query());  // the later kernel still runs
}

TEST(an_event_never_recorded_is_done_and_blocks_nothing) {  // (rule E2)
  Machine machine;
  Event event(0);
  CHECK(event.query());
  const std::int64_t now = host_now_ns();
  event.synchronize();
  event.block(default_stream(0));
  CHECK_EQ(host_now_ns(), now);
  CHECK(default_stream(0).done_at_ns() <= now);
  CHECK_EQ(event.version(), 0);
}

TEST(a_waiting_stream_starts_after_the_mark) {  // (rule E3)
  Machine machine;
  Stream& producer = next_stream(0, 0);
  Stream& consumer = next_stream(1, 0);  // another device may wait too
  Event event(0);
  submit(producer, kernel(100'000), [] {});
  event.record(producer);
  event.block(consumer);
  submit(consumer, kernel(10'000), [] {});
  //  producer  |------- 100000 -------|
  //  consumer                         |- 10000 -|
  CHECK_EQ(consumer.done_at_ns(), producer.done_at_ns() + 10'000);
}

TEST(a_wait_for_the_past_delays_nothing) {  // (rule E3)
  Machine machine;
  Stream& producer = next_stream(0, 0);
  Stream& consumer = next_stream(0, 0);
  Event event(0);
  submit(producer, kernel(5'000), [] {});
  event.record(producer);
  submit(consumer, kernel(900'000), [] {});
  const std::int64_t done = consumer.done_at_ns();
  event.block(consumer);
  CHECK_EQ(consumer.done_at_ns(), done);
}

TEST(recording_again_does_not_change_an_earlier_wait) {  // (rule E4)
  Machine machine;
  Stream& producer = next_stream(0, 0);
  Stream& consumer = next_stream(0, 0);
  Event event(0);
  submit(producer, kernel(100'000), [] {});
  event.record(producer);
  const std::int64_t first = event.mark_ns();
  event.block(consumer);
  submit(producer, kernel(500'000), [] {});
  event.record(producer);  // version 2
  CHECK_EQ(event.version(), 2);
  submit(consumer, kernel(10'000), [] {});
  CHECK_EQ(consumer.done_at_ns(), first + 10'000);
  // And a second record on an idle stream does not release earlier than the first.
  Event other(0);
  other.record(producer);
  other.block(consumer);
  other.record(next_stream(0, -1));
  CHECK(consumer.done_at_ns() >= event.mark_ns());
}

TEST(elapsed_time_is_virtual_milliseconds) {  // (rule E5)
  Machine machine;
  Stream& stream = default_stream(0);
  Event start(0, true), end(0, true);
  submit(stream, kernel(30'000), [] {});  // longer than a launch: no gap follows
  start.record(stream);
  submit(stream, kernel(1'500'000), [] {});
  submit(stream, kernel(2'000'000), [] {});
  end.record(stream);
  end.synchronize();
  // The stream is busy when `start` is recorded, and writes its time down first (rule E7).
  const double elapsed_ms = static_cast<double>(3'500'000 + device_spec(0).record_ns) / 1e6;
  CHECK_EQ(start.elapsed_ms(end), elapsed_ms);
  CHECK_EQ(end.elapsed_ms(start), -elapsed_ms);
}

TEST(elapsed_time_refuses_what_it_cannot_know) {  // (rule E5)
  Machine machine;
  Stream& stream = default_stream(0);
  Event timed(0, true), never(0, true), untimed(0, false), foreign(1, true), late(0, true);
  timed.record(stream);
  untimed.record(stream);
  foreign.record(default_stream(1));
  CHECK_THROWS(timed.elapsed_ms(never), InvalidArgument);
  CHECK_THROWS(never.elapsed_ms(timed), InvalidArgument);
  CHECK_THROWS(timed.elapsed_ms(untimed), InvalidArgument);
  CHECK_THROWS(timed.elapsed_ms(foreign), InvalidArgument);
  submit(stream, kernel(50'000), [] {});
  late.record(stream);
  CHECK_THROWS(timed.elapsed_ms(late), InvalidArgument);  // not reached yet
  late.synchronize();
  CHECK(timed.elapsed_ms(late) > 0);
}

TEST(an_event_belongs_to_one_device) {  // (rule E6)
  Machine machine;
  Event event(0);
  CHECK_THROWS(event.record(default_stream(1)), InvalidArgument);
  CHECK_EQ(event.version(), 0);
  CHECK_THROWS(Event(2), InvalidArgument);
  CHECK_THROWS(Event(-1), InvalidArgument);
}

TEST(recording_costs_the_host_time) {  // (rule E7)
  Machine machine;
  const std::int64_t record_ns = device_spec(0).record_ns;
  Event first(0, true);
  Event second(0, true);
  const std::int64_t before = host_now_ns();
  first.record(default_stream(0));
  second.record(default_stream(0));
  CHECK_EQ(host_now_ns(), before + 2 * record_ns);
  CHECK_EQ(second.mark_ns() - first.mark_ns(), record_ns);
  CHECK(first.elapsed_ms(second) > 0);
}

TEST(the_time_of_a_record_takes_a_busy_stream_as_long) {  // (rule E7)
  Machine machine;
  Stream& stream = default_stream(0);
  const std::int64_t record_ns = device_spec(0).record_ns;
  stream.start_after_ns(host_now_ns() + 1'000'000);
  const std::int64_t done_at_ns = stream.done_at_ns();
  Event order(0);
  order.record(stream);
  CHECK_EQ(stream.done_at_ns(), done_at_ns);
  Event first(0, true);
  Event second(0, true);
  first.record(stream);
  second.record(stream);
  CHECK_EQ(order.mark_ns(), done_at_ns);
  CHECK_EQ(first.mark_ns(), done_at_ns);
  CHECK_EQ(second.mark_ns(), done_at_ns + record_ns);
}

TEST(on_an_idle_stream_the_mark_is_now) {  // (rule E1)
  Machine machine;
  advance_host_ns(123'456);
  Event event(0, true);
  event.record(default_stream(0));
  CHECK_EQ(event.mark_ns(), host_now_ns());
  CHECK(event.query());
}
