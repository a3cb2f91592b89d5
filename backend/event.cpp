// SPDX-License-Identifier: BSD-3-Clause
// Events are numbers here: with inline execution a mark is the time at which it will be reached.
#include "backend/event.h"

#include <algorithm>

#include "backend/error.h"
#include "backend/fault.h"
#include "backend/graph.h"
#include "backend/observer.h"
#include "backend/promised_end.h"
#include "backend/slow_path.h"

namespace npusim {

Event::Event(int device, bool timing) : device_(device), timing_(timing) { check_device(device); }

Event::~Event() {
  detail::forget_event(*this);
  note_order(OrderKind::event_end, device_, nullptr, this);
}

Event::Mark Event::mark() const noexcept {
  const std::lock_guard lock(mutex_);
  return last_;
}

std::uint64_t Event::version() const noexcept { return mark().version; }
std::int64_t Event::mark_ns() const noexcept { return mark().time_ns; }

void Event::record(Stream& stream) {
  check_not_forked();
  NPUSIM_CHECK(stream.device() == device_, "an event of npusim device ", device_,
               " cannot be recorded on a stream of device ", stream.device(),
               "; create the event for the device of the stream");
  // On an idle stream the mark is reached at once: now.
  const std::int64_t now_ns = pass_host_ns(stream.rates().record_ns);
  const std::int64_t done_at_ns = stream.done_at_ns();
  const std::int64_t time_ns = std::max(done_at_ns, now_ns);
  // Writing the time down takes a busy stream as long as it took the host; an idle one had that
  // time meanwhile.
  if (timing_) stream.start_after_ns(done_at_ns + stream.rates().record_ns);
  const std::lock_guard lock(mutex_);
  last_ = {last_.version + 1, time_ns};
  detail::promise_event(*this, stream);
  note_order(OrderKind::event_record, device_, &stream, this, last_.version, time_ns);
}

void Event::block(Stream& stream) {
  check_not_forked();
  const Mark seen = mark();
  if (seen.version == 0) return;
  stream.start_after_ns(seen.time_ns);
  detail::pass_promises(*this, stream);
  note_order(OrderKind::event_block, device_, &stream, this, seen.version, seen.time_ns);
}

bool Event::query() {
  check_not_forked();
  detail::check_may_wait("asking whether an event is reached", nullptr);
  const std::int64_t cost_ns = default_stream(device_).rates().query_ns;
  const std::int64_t now_ns = pass_host_ns(cost_ns);
  note_order(OrderKind::query, device_, nullptr, this, 0, cost_ns);
  const Mark seen = mark();
  if (seen.version == 0) return true;
  if (now_ns < std::max(seen.time_ns, detail::promised_end_ns(*this))) return false;
  note_order(OrderKind::event_wait, device_, nullptr, this, seen.version, seen.time_ns);
  return true;
}

void Event::synchronize() {
  check_not_forked();
  detail::check_may_wait("waiting for an event", nullptr);
  const Mark seen = mark();
  if (seen.version == 0) return;
  const std::int64_t reached_ns = std::max(seen.time_ns, detail::promised_end_ns(*this));
  wait_until_ns(reached_ns);
  note_order(OrderKind::event_wait, device_, nullptr, this, seen.version, reached_ns);
  if (detail::takes_slow_path(detail::kFaultPending)) detail::report_fault(device_);
}

double Event::elapsed_ms(const Event& end) const {
  check_not_forked();
  NPUSIM_CHECK(timing_ && end.timing_,
               "elapsed time needs two events created with timing enabled; create both with "
               "enable_timing=True");
  NPUSIM_CHECK(device_ == end.device_,
               "elapsed time needs two events of one device, given: device ", device_,
               " and device ", end.device_);
  Mark from = mark();
  Mark to = end.mark();
  from.time_ns = std::max(from.time_ns, detail::promised_end_ns(*this));
  to.time_ns = std::max(to.time_ns, detail::promised_end_ns(end));
  NPUSIM_CHECK(from.version != 0 && to.version != 0, "elapsed time needs two recorded events; the ",
               from.version == 0 ? "start" : "end", " event was never recorded");
  NPUSIM_CHECK(std::max(from.time_ns, to.time_ns) <= host_now_ns(),
               "elapsed time needs two finished events, but the ",
               from.time_ns > host_now_ns() ? "start" : "end",
               " event is not reached yet; synchronize it first");
  return static_cast<double>(to.time_ns - from.time_ns) / 1e6;
}

}  // namespace npusim
