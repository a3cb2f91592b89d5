// SPDX-License-Identifier: BSD-3-Clause
// The promises of streams and events, in one table with one lock: promises come with communication,
// which costs more than a lock.
//
// The trap: settle() may wait for another rank, which may wait for this process. So nothing settles
// under the table's lock: promises are copied out, settled, and dropped by value afterwards, when
// the entry may have got new promises or be gone. And the caller may hold the GIL, which the thread
// that answers needs: settle_all() therefore waits through the hook that releases it, and carries
// exceptions across the hook, which is C-like, in an exception_ptr.
#include "backend/promised_end.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <unordered_map>

#include "backend/stream.h"

namespace npusim {

namespace {

struct Pledges {
  std::mutex mutex;
  std::unordered_map<const Stream*, Promises> streams;
  std::unordered_map<const Event*, Promises> events;
};
Pledges& pledges() {
  static auto* all = new Pledges;  // events may be destroyed after everything else
  return *all;
}

bool no_promises() noexcept { return !detail::takes_slow_path(detail::kPromised); }

// Under the lock. Events keep their promises after these are settled, because a later
// elapsed_ms() asks again: the bit stays until such events are destroyed or recorded again.
void update_slow_path(const Pledges& all) noexcept {
  if (all.streams.empty() && all.events.empty()) detail::clear_slow_path(detail::kPromised);
}

void drop(Stream& stream, const std::shared_ptr<Promise>& promise) {
  Pledges& all = pledges();
  const std::lock_guard lock(all.mutex);
  const auto found = all.streams.find(&stream);
  if (found == all.streams.end()) return;
  std::erase(found->second, promise);
  if (found->second.empty()) all.streams.erase(found);
  update_slow_path(all);
}

Promises promises_of_event(const Event& event) {
  Pledges& all = pledges();
  const std::lock_guard lock(all.mutex);
  const auto found = all.events.find(&event);
  return found == all.events.end() ? Promises{} : found->second;
}

}  // namespace

void add_promise(Stream& stream, std::shared_ptr<Promise> promise) {
  Pledges& all = pledges();
  const std::lock_guard lock(all.mutex);
  Promises& promised = all.streams[&stream];
  const bool covered = std::any_of(promised.begin(), promised.end(),
                                   [&](const auto& other) { return other->covers(*promise); });
  if (!covered) {
    std::erase_if(promised, [&](const auto& other) { return promise->covers(*other); });
    promised.push_back(std::move(promise));
  }
  detail::set_slow_path(detail::kPromised);
}

Promises promises_of(const Stream& stream) {
  if (no_promises()) return {};
  Pledges& all = pledges();
  const std::lock_guard lock(all.mutex);
  const auto found = all.streams.find(&stream);
  return found == all.streams.end() ? Promises{} : found->second;
}

// One at a time, so that a failure is dropped and the promises behind it stay for the next call.
void keep_promises(Stream& stream) {
  for (const std::shared_ptr<Promise>& promise : promises_of(stream)) {
    try {
      stream.start_after_ns(settle_all({promise}, 0));
    } catch (...) {
      drop(stream, promise);
      throw;
    }
    drop(stream, promise);
  }
}

void forget_promises(const std::function<bool(const Promise&)>& which) {
  const auto clean = [&](auto& promised) {
    for (auto entry = promised.begin(); entry != promised.end();) {
      std::erase_if(entry->second, [&](const auto& promise) { return which(*promise); });
      entry = entry->second.empty() ? promised.erase(entry) : std::next(entry);
    }
  };
  Pledges& all = pledges();
  const std::lock_guard lock(all.mutex);
  clean(all.streams);
  clean(all.events);
  update_slow_path(all);
}

void keep_all_promises(int device) noexcept {
  if (no_promises()) return;
  std::vector<std::pair<const Stream*, std::shared_ptr<Promise>>> promised;
  {
    Pledges& all = pledges();
    const std::lock_guard lock(all.mutex);
    for (const auto& [stream, of_stream] : all.streams) {
      if (device != kAllDevices && stream->device() != device) continue;
      for (const auto& promise : of_stream) promised.emplace_back(stream, promise);
    }
  }
  for (const auto& [stream, promise] : promised) {
    try {
      stream_from_id(stream->device(), stream->id()).start_after_ns(settle_all({promise}, 0));
    } catch (...) {
      continue;  // a later call that needs the result reports it
    }
  }
}

std::int64_t settle_all(const Promises& promises, std::int64_t after_ns) {
  struct Call {
    const Promises& promises;
    std::int64_t latest_ns;
    std::exception_ptr failure;
  } call{promises, after_ns, nullptr};
  const auto settle = [](void* argument) {
    auto& wanted = *static_cast<Call*>(argument);
    try {
      for (const auto& promise : wanted.promises) {
        wanted.latest_ns = std::max(wanted.latest_ns, promise->settle());
      }
    } catch (...) {
      wanted.failure = std::current_exception();
    }
  };
  const bool at_once = std::all_of(promises.begin(), promises.end(),
                                   [](const auto& promise) { return promise->settled(); });
  at_once ? settle(&call) : detail::without_locks(settle, &call);
  if (call.failure) std::rethrow_exception(call.failure);
  return call.latest_ns;
}

void detail::promise_event(const Event& event, const Stream& recorded_on) {
  if (no_promises()) return;
  Promises promised = promises_of(recorded_on);
  Pledges& all = pledges();
  const std::lock_guard lock(all.mutex);
  if (promised.empty()) {
    all.events.erase(&event);
  } else {
    all.events[&event] = std::move(promised);
  }
}

void detail::pass_promises(const Event& event, Stream& blocked) {
  if (no_promises()) return;
  for (auto& promise : promises_of_event(event)) add_promise(blocked, std::move(promise));
}

std::int64_t detail::promised_end_ns(const Event& event) {
  return no_promises() ? 0 : settle_all(promises_of_event(event), 0);
}

void detail::forget_event(const Event& event) noexcept {
  if (no_promises()) return;
  Pledges& all = pledges();
  const std::lock_guard lock(all.mutex);
  all.events.erase(&event);
  update_slow_path(all);
}

}  // namespace npusim
