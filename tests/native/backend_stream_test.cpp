// SPDX-License-Identifier: BSD-3-Clause
// Streams, commands and the clocks that they move. Times below are those of npusim-one: the host
// pays 4000 ns per launch, a kernel takes at least 2000 ns, a question costs 500 ns.
#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

constexpr std::int64_t kLaunch = 4000;
constexpr std::int64_t kFloor = 2000;
constexpr std::int64_t kQuery = 500;

// A kernel of `duration` ns in all: 1000 bytes take 1 ns at 1000 GB/s.
CommandInfo kernel(std::int64_t duration) {
  return {"work", CommandKind::kernel, {0, 1000.0 * static_cast<double>(duration - kFloor)}};
}

// Initialized devices with nothing under way.
struct Machine {
  Machine() {
    initialize();
    for (const int device : {0, 1}) synchronize_device(device);
    set_device(0);
  }
  ~Machine() {
    for (const int device : {0, 1}) {
      synchronize_device(device);
      set_current_stream(default_stream(device));
    }
    set_device(0);
  }
};

}  // namespace

TEST(a_stream_is_idle_only_when_its_last_command_has_finished) {  // (rule S2, C3)
  Machine machine;
  Stream& stream = default_stream(0);
  const std::int64_t start = host_now_ns();
  submit(stream, kernel(10'000), [] {});
  submit(stream, kernel(10'000), [] {});
  //  host    |--4000--|--4000--|
  //  stream           |---first, 10000---|---second, 10000---|
  CHECK_EQ(host_now_ns(), start + 2 * kLaunch);
  CHECK_EQ(stream.done_at_ns(), start + kLaunch + 20'000);
  CHECK(!stream.query());
  advance_host_ns(stream.done_at_ns() - host_now_ns() - kQuery - 1);
  CHECK(!stream.query());  // one ns before the end
  CHECK(stream.query());
}

TEST(a_command_starts_when_stream_and_host_are_ready) {  // (rule C3)
  Machine machine;
  Stream& stream = default_stream(0);
  submit(stream, kernel(kFloor), [] {});
  stream.synchronize();
  advance_host_ns(1'000'000);  // the stream waits for the host now
  const std::int64_t start = host_now_ns();
  submit(stream, kernel(kFloor), [] {});
  CHECK_EQ(stream.done_at_ns(), start + kLaunch + kFloor);
}

TEST(polling_ends_because_asking_costs_time) {  // (rule C4)
  Machine machine;
  Stream& stream = default_stream(0);
  submit(stream, kernel(100'000), [] {});
  int asked = 0;
  while (!stream.query()) ++asked;
  CHECK_EQ(asked, 100'000 / kQuery - 1);
}

TEST(looking_without_asking_costs_nothing) {  // (rule C4)
  Machine machine;
  Stream& stream = default_stream(0);
  submit(stream, kernel(100'000), [] {});
  const std::int64_t before = host_now_ns();
  for (int i = 0; i < 100; ++i) CHECK(stream.done_at_ns() > before);
  CHECK(device_done_at_ns(0) == stream.done_at_ns());
  CHECK_EQ(host_now_ns(), before);
}

TEST(waiting_moves_the_host_to_the_stream_and_never_back) {  // (rule C5)
  Machine machine;
  Stream& slow = next_stream(0, 0);
  Stream& fast = next_stream(0, 0);
  submit(slow, kernel(50'000), [] {});
  submit(fast, kernel(5'000), [] {});
  slow.synchronize();
  CHECK_EQ(host_now_ns(), slow.done_at_ns());
  fast.synchronize();
  CHECK_EQ(host_now_ns(), slow.done_at_ns());
  submit(slow, kernel(50'000), [] {});
  submit(fast, kernel(90'000), [] {});
  synchronize_device(0);
  CHECK_EQ(host_now_ns(), fast.done_at_ns());
  CHECK_THROWS(advance_host_ns(-1), InvalidArgument);
}

TEST(streams_run_side_by_side) {  // (rule C3)
  Machine machine;
  Stream& a = next_stream(0, 0);
  Stream& b = next_stream(1, 0);
  const std::int64_t start = host_now_ns();
  submit(a, kernel(100'000), [] {});
  submit(b, kernel(100'000), [] {});
  synchronize_device(0);
  synchronize_device(1);
  CHECK_EQ(host_now_ns(), start + 2 * kLaunch + 100'000);
}

TEST(pools_hand_out_32_streams_per_priority_in_turn) {  // (rule S3)
  Machine machine;
  CHECK_EQ(default_stream(1).id(), 0);
  CHECK_EQ(default_stream(1).device(), 1);
  for (const int priority : {0, -1, -3}) {
    Stream& first = next_stream(1, priority);
    CHECK_EQ(first.priority(), priority);
    for (int i = 1; i < kStreamsPerPriority; ++i) CHECK(&next_stream(1, priority) != &first);
    CHECK(&next_stream(1, priority) == &first);
    CHECK(&stream_from_id(1, first.id()) == &first);
  }
  CHECK_EQ(next_stream(0, 5).priority(), 0);
  CHECK_EQ(next_stream(0, -9).priority(), kHighestPriority);
  CHECK_THROWS(stream_from_id(0, kStreamsPerDevice), InvalidArgument);
  CHECK_THROWS(stream_from_id(0, -1), InvalidArgument);
  CHECK_THROWS(default_stream(2), InvalidArgument);
  CHECK_THROWS(next_stream(-1, 0), InvalidArgument);
}

TEST(current_device_and_stream_belong_to_the_thread) {  // (rule S5)
  Machine machine;
  Stream& side = next_stream(1, 0);
  set_device(1);
  set_current_stream(side);
  CHECK(&current_stream(1) == &side);
  CHECK(&current_stream(0) == &default_stream(0));
  int device = -1;
  Stream* stream = nullptr;
  std::thread([&] {
    device = current_device();
    stream = &current_stream(1);
  }).join();
  CHECK_EQ(device, 0);
  CHECK(stream == &default_stream(1));
  CHECK_EQ(exchange_device(0), 1);
  CHECK_THROWS(set_device(2), InvalidArgument);
  CHECK_THROWS(exchange_device(-1), InvalidArgument);
  CHECK_EQ(current_device(), 0);
  CHECK_EQ(current_stream(77).device(), -1);
}

TEST(a_command_inside_a_command_is_part_of_it) {  // (rule S4)
  Machine machine;
  Stream& stream = default_stream(0);
  const std::int64_t start = host_now_ns();
  int inner = 0;
  submit(stream, kernel(10'000), [&] {
    CHECK(in_command_body());
    submit(stream, kernel(99'000), [&] { ++inner; });
    inner += run_now(next_stream(1, 0), kernel(99'000), [] { return 10; });
  });
  CHECK(!in_command_body());
  CHECK_EQ(inner, 11);
  CHECK_EQ(host_now_ns(), start + kLaunch);
  CHECK_EQ(stream.done_at_ns(), start + kLaunch + 10'000);
  CHECK(device_done_at_ns(1) <= start);
}

TEST(run_now_returns_what_the_body_returns) {
  Machine machine;
  Stream& stream = default_stream(0);
  int value = 3;
  int& reference = run_now(stream, {"ref"}, [&]() -> int& { return value; });
  CHECK(&reference == &value);
  CHECK_EQ(run_now(stream, {"text"}, [] { return std::string("result"); }), "result");
  run_now(stream, {"nothing"}, [&] { value = 4; });
  CHECK_EQ(value, 4);
  CHECK(stream.done_at_ns() > host_now_ns());  // one asynchronous command for the clocks
}

TEST(an_exception_of_a_body_propagates_and_the_stream_goes_on) {  // (rule C6)
  Machine machine;
  Stream& stream = default_stream(0);
  const std::int64_t start = host_now_ns();
  CHECK_THROWS(submit(stream, kernel(5'000), [] { throw std::out_of_range("x"); }),
               std::out_of_range);
  CHECK_THROWS(run_now(stream, kernel(5'000), []() -> int { throw std::out_of_range("x"); }),
               std::out_of_range);
  CHECK(!in_command_body());
  CHECK_EQ(host_now_ns(), start + 2 * kLaunch);
  CHECK_EQ(stream.done_at_ns(), start + kLaunch + 10'000);
  bool ran = false;
  submit(stream, kernel(5'000), [&] { ran = true; });
  CHECK(ran);
}

TEST(bodies_of_one_stream_never_overlap) {  // (rule S1)
  Machine machine;
  Stream& stream = next_stream(0, 0);
  long counter = 0;  // no atomic: the stream is the lock, as a sanitizer would tell
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 2000; ++k) submit(stream, {"count"}, [&] { ++counter; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(counter, 8000);
  CHECK(stream.done_at_ns() >= 8000 * kFloor);
}

// A body of another thread that runs until it is told to end. Nothing here waits for ever.
class LongBody {
 public:
  explicit LongBody(Stream& stream, CommandInfo info = {"long"})
      : thread_([this, &stream, info] {
          submit(stream, info, [this] {
            inside_.set_value();
            ended_in_time = end_.get_future().wait_for(kLimit) == std::future_status::ready;
          });
        }) {
    inside_.get_future().wait();
  }
  ~LongBody() { thread_.join(); }
  void end() { end_.set_value(); }

  static constexpr std::chrono::seconds kLimit{20};
  bool ended_in_time = false;

 private:
  std::promise<void> inside_, end_;
  std::thread thread_;
};

TEST(an_event_blocks_a_stream_while_a_body_runs) {  // (rule E3)
  Machine machine;
  Stream& stream = next_stream(0, 0);
  Stream& other = next_stream(0, 0);
  submit(other, kernel(500'000), [] {});
  Event event(0);
  event.record(other);
  {
    LongBody body(stream);
    event.block(stream);
    body.end();
  }
  CHECK_EQ(stream.done_at_ns(), event.mark_ns());
  submit(stream, kernel(10'000), [] {});
  CHECK_EQ(stream.done_at_ns(), event.mark_ns() + 10'000);
}

std::atomic<LongBody*> g_to_end{nullptr};

TEST(who_waits_for_a_turn_can_let_go_of_locks_first) {  // (rule S1)
  Machine machine;
  Stream& stream = next_stream(0, 0);
  bool ended_in_time = false;
  {
    LongBody body(stream);
    g_to_end = &body;
    set_wait_hook([](void (*wait)(void*), void* argument) {
      g_to_end.load()->end();  // what the body waits for
      wait(argument);
    });
    submit(stream, kernel(10'000), [&] { ended_in_time = body.ended_in_time; });
    set_wait_hook(nullptr);
  }
  CHECK(ended_in_time);
}

TEST(a_body_that_gives_up_its_turn_keeps_nobody_waiting) {  // (rule S1)
  Machine machine;
  Stream& stream = next_stream(0, 0);
  const std::int64_t start = host_now_ns();
  CommandInfo info = kernel(50'000);
  info.keeps_turn = false;
  bool ran = false;
  {
    LongBody body(stream, info);
    submit(stream, kernel(10'000), [&] { ran = true; });
    CHECK(ran);
    body.end();
  }
  CHECK_EQ(stream.done_at_ns(), start + kLaunch + 60'000);
}

TEST(a_body_may_know_its_cost_only_at_its_end) {  // (rule C1)
  Machine machine;
  Stream& stream = next_stream(0, 0);
  const std::int64_t start = host_now_ns();
  submit(stream, kernel(10'000), [] { recharge(kernel(30'000).cost); });
  CHECK_EQ(stream.done_at_ns(), start + kLaunch + 30'000);
}

TEST(launch_blocking_waits_for_every_command) {  // (rule F6)
  Machine machine;
  Stream& stream = default_stream(0);
  set_launch_blocking(true);
  submit(stream, kernel(30'000), [] {});
  CHECK_EQ(host_now_ns(), stream.done_at_ns());
  CHECK_EQ(run_now(stream, kernel(30'000), [] { return 1; }), 1);
  CHECK_EQ(host_now_ns(), stream.done_at_ns());
  set_launch_blocking(false);
  submit(stream, kernel(30'000), [] {});
  CHECK(host_now_ns() < stream.done_at_ns());
}

TEST(streams_never_die) {  // (rule S7)
  Machine machine;
  Stream* const stream = &next_stream(0, 0);
  std::thread([&] { set_current_stream(*stream); }).join();
  CHECK(&stream_from_id(0, stream->id()) == stream);
}
