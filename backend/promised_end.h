// SPDX-License-Identifier: BSD-3-Clause
// Promise: the end of a collective, which depends on ranks in other processes and is not known when
// the collective is launched (rules D1-D3). The host goes on; the first call that needs the time
// waits for it in wall-clock time.
//
//   all_reduce on s     add_promise(s, p)           s.done_at_ns() says nothing yet
//   event.record(s)     the event stands for p too
//   kernel on s         keep_promises(s): p->settle() waits, then s starts after the end
//
// Invariant: all ranks agree on the settled time, so it depends neither on the caller of settle()
// nor on when it is called. A stream or an event without a promise pays one relaxed load.
// All functions are thread-safe. Times are virtual nanoseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/slow_path.h"

namespace npusim {

class Event;
class Stream;

class Promise {
 public:
  virtual ~Promise() = default;

  // settle() waits, in wall-clock time and up to its own timeout, until the end is known, and
  // returns it in virtual nanoseconds. Throws its failure at every call. Thread-safe.
  virtual std::int64_t settle() = 0;

  // settled() is whether settle() would return at once.
  virtual bool settled() const noexcept = 0;

  // covers() is whether this ends no earlier than `other`, and fails if it does, with its words.
  virtual bool covers(const Promise& other) const noexcept { return this == &other; }
};
using Promises = std::vector<std::shared_ptr<Promise>>;

// add_promise() keeps later commands of `stream` from starting before the end. Events that are
// recorded on the stream from now on stand for it too. The table shares ownership until the promise
// is settled, forgotten or covered by a later one, so that their number does not grow.
void add_promise(Stream& stream, std::shared_ptr<Promise> promise);

// promises_of() is a copy of the promises that later commands of the stream wait for.
Promises promises_of(const Stream& stream);

// settle_all() settles them and returns the latest end, at least `after_ns`. It releases the locks
// of the layer above meanwhile (set_wait_hook()), unless all are settled already. Throws the first
// failure.
std::int64_t settle_all(const Promises& promises, std::int64_t after_ns);

// keep_promises() settles the promises of the stream and moves its start behind them. Throws the
// failure of a promise, which is then forgotten: a stream reports each failure once. Every command,
// query and wait calls it first, except collectives, which order themselves
// (CommandKind::collective).
void keep_promises(Stream& stream);

// forget_promises() drops, from all streams and events, the promises that `which` selects: those of
// an aborted group. `which` runs under the table's lock and must not call back.
void forget_promises(const std::function<bool(const Promise&)>& which);

// keep_all_promises() settles the promises of the streams of `device` (kAllDevices: of any). It
// ignores failures, which stay with their streams: the first command that needs one raises it.
inline constexpr int kAllDevices = -1;
void keep_all_promises(int device) noexcept;

namespace detail {

// The bit beside those of slow_path.h: a stream or an event has a promise.
inline constexpr auto kPromised = static_cast<SlowPath>(1U << 8);

// Calls wait(argument) through the hook of set_wait_hook().
void without_locks(void (*wait)(void*), void* argument);

// Promises of events, called by event.cpp only: promise_event() at each record, with the stream's
// promises of then; pass_promises() where a stream waits for the event; promised_end_ns() settles
// them and is their latest end, or 0; forget_event() at its destruction.
void promise_event(const Event& event, const Stream& recorded_on);
void pass_promises(const Event& event, Stream& blocked);
std::int64_t promised_end_ns(const Event& event);
void forget_event(const Event& event) noexcept;

}  // namespace detail

}  // namespace npusim
