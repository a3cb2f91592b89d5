// SPDX-License-Identifier: BSD-3-Clause
// Promises of streams and events (rules D1 and D3).
#include <stdexcept>

#include "backend/backend.h"
#include "backend/promised_end.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

// A promise whose end is known from the start, and which counts who asked for it.
struct Known : Promise {
  explicit Known(std::int64_t end) : end_ns(end) {}
  std::int64_t settle() override {
    ++asked;
    if (end_ns < 0) throw std::runtime_error("the others have gone");
    return end_ns;
  }
  bool settled() const noexcept override { return asked > 0; }
  std::int64_t end_ns;
  int asked = 0;
};

// A promise of a row, which settles in its order, and counts the comparisons.
struct OfRow : Known {
  OfRow(std::int64_t end, int& steps) : Known(end), compared(&steps) {}
  bool covers(const Promise& other) const noexcept override {
    ++*compared;
    const auto* earlier = dynamic_cast<const OfRow*>(&other);
    return earlier != nullptr && earlier->end_ns <= end_ns;
  }
  int* compared;
};

struct Machine {
  Machine() { initialize(); }
};

void run_command(Stream& stream) {
  submit(stream, {"command"}, [] {});
}

}  // namespace

TEST(a_command_waits_for_what_its_stream_was_promised) {
  Machine machine;
  Stream& stream = next_stream(0, 0);
  const std::int64_t end_ns = host_now_ns() + 50'000'000;
  const auto promise = std::make_shared<Known>(end_ns);
  add_promise(stream, promise);
  run_command(default_stream(0));
  CHECK(promise->asked == 0);
  run_command(stream);
  CHECK(promise->asked == 1);
  CHECK(stream.done_at_ns() > end_ns);
  CHECK(promises_of(stream).empty());
}

TEST(an_event_hands_on_what_its_stream_was_promised) {
  Machine machine;
  Stream& first = next_stream(0, 0);
  Stream& second = next_stream(0, 0);
  const std::int64_t end_ns = host_now_ns() + 50'000'000;
  const auto promise = std::make_shared<Known>(end_ns);
  add_promise(first, promise);
  Event event(0);
  event.record(first);
  event.block(second);
  CHECK(promise->asked == 0);
  run_command(second);
  CHECK(promise->asked == 1);
  CHECK(second.done_at_ns() > end_ns);
  event.synchronize();
  CHECK(host_now_ns() >= end_ns);
  keep_promises(first);
}

TEST(a_record_after_the_promise_was_kept_stands_for_nothing_else) {
  Machine machine;
  Stream& stream = next_stream(0, 0);
  const auto promise = std::make_shared<Known>(host_now_ns() + 1000);
  add_promise(stream, promise);
  Event event(0);
  event.record(stream);
  stream.synchronize();
  event.record(stream);
  const int asked = promise->asked;
  event.synchronize();
  CHECK(promise->asked == asked);
}

TEST(promises_of_a_row_cost_a_stream_and_its_events_one_entry) {
  Machine machine;
  Stream& first = next_stream(0, 0);
  Stream& second = next_stream(0, 0);
  int compared = 0;
  const std::int64_t end_ns = host_now_ns() + 50'000'000;
  Event event(0);
  for (int i = 0; i < 1000; ++i) {
    add_promise(first, std::make_shared<OfRow>(end_ns + i, compared));
    event.record(first);
    event.block(second);
  }
  CHECK(compared < 5000);
  CHECK(promises_of(first).size() == 1);
  CHECK(promises_of(second).size() == 1);
  run_command(second);
  CHECK(second.done_at_ns() > end_ns + 999);
  keep_promises(first);
}

TEST(a_failure_is_reported_once_per_stream) {
  Machine machine;
  Stream& first = next_stream(0, 0);
  Stream& second = next_stream(0, 0);
  const auto promise = std::make_shared<Known>(-1);
  add_promise(first, promise);
  add_promise(second, promise);
  for (Stream* stream : {&first, &second}) {
    bool thrown = false;
    try {
      run_command(*stream);
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    CHECK(thrown);
    run_command(*stream);
  }
}
