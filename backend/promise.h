// SPDX-License-Identifier: BSD-3-Clause
// Promise: the end of a command in which others take part, other processes for one, so that nobody
// here knows yet when it will be. The host goes on; whoever needs the end first waits for it in
// wall time (rules D1-D3).
// Invariant: what is settled was agreed on by all who take part, so it depends neither on who
// settles it nor on when. Streams and events that were promised nothing pay one look.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/attention.h"

namespace npusim {

class Event;
class Stream;

class Promise {
 public:
  virtual ~Promise() = default;

  // settle() waits, in wall time and for no longer than its own limit, until the end is known, and
  // returns it in virtual time. Throws what went wrong, every time. Thread-safe.
  virtual std::int64_t settle() = 0;

  // settled() is whether settle() would return at once.
  virtual bool settled() const noexcept = 0;
};
using Promises = std::vector<std::shared_ptr<Promise>>;

// add_promise() keeps later commands of `stream` from starting before the end. Events recorded on
// the stream from now on stand for it too.
void add_promise(Stream& stream, std::shared_ptr<Promise> promise);

// promises_of() is what later commands of the stream wait for.
Promises promises_of(const Stream& stream);

// settle_all() settles them and returns the latest end, at least `after_ns`. The layer above lets
// go of its locks meanwhile (set_wait_hook()).
std::int64_t settle_all(const Promises& promises, std::int64_t after_ns);

// keep_promises() settles what the stream was promised. Throws what one of the promises throws,
// which is then forgotten: a stream reports each failure once. Commands, queries and waits begin
// with it; only communication, which has ways of its own to come after what is before it, does not
// (CommandKind::collective).
void keep_promises(Stream& stream);

// forget_promises() takes back what streams and events were promised, where `which` says so: a
// failure that nobody will ask for any more.
void forget_promises(const std::function<bool(const Promise&)>& which);

// keep_all_promises() settles what any stream was promised, and says nothing of what fails.
void keep_all_promises() noexcept;

namespace detail {

// The bit beside those of attention.h: a stream was promised something.
inline constexpr auto kPromised = static_cast<Attention>(1U << 8);

// Calls wait(argument) through the hook of set_wait_hook().
void without_locks(void (*wait)(void*), void* argument);

// What an event stands for beside its mark. promise_event() is told at each record; the end is that
// of what was promised then, or 0.
void promise_event(const Event& event, const Stream& recorded_on);
void pass_promises(const Event& event, Stream& blocked);
std::int64_t promised_end_ns(const Event& event);
void forget_event(const Event& event) noexcept;

}  // namespace detail

}  // namespace npusim
