// SPDX-License-Identifier: BSD-3-Clause
// Checking and compiling events. A free_requested whose free_completed is the next event is a plain
// free: nothing could have come between.
#include "lab/engine/trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>
#include <unordered_map>

#include "allocator/config.h"
#include "allocator/error.h"
#include "lab/engine/names.h"

namespace npusim::lab {
namespace {

constexpr std::uint64_t kMostLive = std::uint64_t{1} << 62;  // bytes; so that no sum wraps

template <class... Parts>
[[noreturn]] void reject(std::size_t event, const Parts&... parts) {
  std::ostringstream text;
  text << "trace: event " << event << ": ";
  (text << ... << parts);
  throw InvalidArgument(text.str());
}

void check_column(const char* name, std::size_t length, std::size_t events) {
  if (length == 0 || length == events) return;
  std::ostringstream text;
  text << "trace: column " << name << " has " << length << " entries, column op " << events
       << "; expected as many";
  throw InvalidArgument(text.str());
}

}  // namespace

class Trace::Compiler {
 public:
  Compiler(Trace& trace, const EventColumns& columns) : trace_(trace), in_(columns) {}

  void run() {
    const std::size_t count = in_.op.size();
    check_column("id", in_.id.size(), count);
    check_column("bytes", in_.bytes.size(), count);
    check_column("stream", in_.stream.size(), count);
    check_column("pool", in_.pool.size(), count);
    check_column("stack", in_.stack.size(), count);
    check_column("time_ns", in_.time_ns.size(), count);
    if (count >= std::numeric_limits<std::uint32_t>::max()) {
      reject(count, "a trace has at most 2^32 - 1 events; cut it in pieces");
    }
    trace_.op_.resize(count);
    trace_.slot_.resize(count);
    const auto mallocs =
        static_cast<std::size_t>(std::ranges::count(in_.op, static_cast<std::uint8_t>(Op::malloc)));
    for (auto* column : {&trace_.malloc_event_, &trace_.free_event_, &trace_.completed_event_}) {
      column->reserve(mallocs);
    }
    trace_.malloc_bytes_.reserve(mallocs);
    trace_.malloc_stack_.reserve(mallocs);
    live_.reserve(1024);
    for (std::size_t i = 0; i < count; ++i) {
      Event event{trace_.bytes_[i], 0, trace_.stream_[i], trace_.pool_[i],
                  static_cast<Op>(in_.op[i])};
      compile(i, event);
      trace_.op_[i] = event.op;
      trace_.slot_[i] = event.slot;
    }
    for (const auto& [pool, users] : pools_) {
      if (users == kImplicit) trace_.implicit_pools_.push_back(pool);
    }
  }

 private:
  enum class Stage : std::uint8_t { live, requested };
  struct Live {
    std::uint32_t slot;
    Stage stage;
    std::uint32_t number;  // which malloc
  };
  static constexpr int kImplicit = -1;

  std::uint64_t id(std::size_t i) const { return in_.id.empty() ? 0 : in_.id[i]; }

  void compile(std::size_t i, Event& event) {
    switch (event.op) {
      case Op::malloc:
        add_malloc(i, event);
        return;
      case Op::free:
        finish(i, event, require(i, Stage::live, "free"));
        return;
      case Op::free_requested:
        request(i, event);
        return;
      case Op::free_completed:
        complete(i, event);
        return;
      case Op::record_stream:
        event.slot = require(i, Stage::live, "record_stream")->second.slot;
        return;
      case Op::create_pool:
        create_pool(i, event);
        return;
      case Op::release_pool:
        release_pool(i, event);
        return;
      case Op::memory_fraction:
        if (event.bytes > std::uint64_t{1} << 32) {
          reject(i, "memory_fraction ", event.bytes, "; expected 0 to 2^32, which is 1");
        }
        return;
      case Op::empty_cache:
      case Op::synchronize:
      case Op::reset_peaks:
      case Op::mark:
      case Op::segment_alloc:
      case Op::segment_free:
      case Op::segment_map:
      case Op::segment_unmap:
      case Op::oom:
      case Op::snapshot:
      case Op::segment_reserve:
        return;
      case Op::retry:
        break;
    }
    reject(i, "op ", int{in_.op[i]}, " is none; expected one of lab/engine/event.h");
  }

  void add_malloc(std::size_t i, Event& event) {
    if (event.bytes == 0) reject(i, "malloc of 0 bytes; leave such requests out");
    if (event.pool != 0) {
      const auto it = pools_.try_emplace(event.pool, kImplicit).first;
      if (it->second == 0) reject(i, "malloc in pool ", event.pool, " after its last user left");
    }
    if (free_slots_.empty()) free_slots_.push_back(static_cast<std::uint32_t>(trace_.slots_++));
    event.slot = free_slots_.back();
    const auto number = static_cast<std::uint32_t>(trace_.malloc_event_.size());
    const auto [it, is_new] = live_.try_emplace(id(i), Live{event.slot, Stage::live, number});
    if (!is_new) {
      reject(i, "malloc of id ", id(i), ", which is in use since event ",
             trace_.malloc_event_[it->second.number], "; one id is one allocation at a time");
    }
    free_slots_.pop_back();
    const auto none = static_cast<std::uint32_t>(in_.op.size());
    trace_.malloc_event_.push_back(static_cast<std::uint32_t>(i));
    trace_.free_event_.push_back(none);
    trace_.completed_event_.push_back(none);
    trace_.malloc_bytes_.push_back(event.bytes);
    trace_.malloc_stack_.push_back(in_.stack.empty() ? 0 : in_.stack[i]);
    if (event.bytes < kRequestLimit) live_bytes_ += event.bytes;
    if (live_bytes_ >= kMostLive) reject(i, "more than 2^62 bytes are in use at one time");
    if (live_bytes_ > trace_.max_live_bytes_) {
      trace_.max_live_bytes_ = live_bytes_;
      trace_.max_live_event_ = static_cast<std::int64_t>(i);
    }
  }

  using Iterator = std::unordered_map<std::uint64_t, Live>::iterator;

  Iterator require(std::size_t i, Stage stage, const char* verb) {
    const auto it = live_.find(id(i));
    if (it == live_.end()) {
      reject(i, verb, " of id ", id(i), ", which is not in use; was its malloc cut off?");
    }
    if (it->second.stage != stage) {
      reject(i, verb, " of id ", id(i),
             stage == Stage::live ? ", which is freed already and waits for completion"
                                  : ", whose free was not requested");
    }
    return it;
  }

  void finish(std::size_t i, Event& event, Iterator it) {
    event.slot = it->second.slot;
    const std::uint32_t number = it->second.number;
    auto& requested = trace_.free_event_[number];
    requested = std::min(requested, static_cast<std::uint32_t>(i));
    trace_.completed_event_[number] = static_cast<std::uint32_t>(i);
    const std::uint64_t bytes = trace_.malloc_bytes_[number];
    if (bytes < kRequestLimit) live_bytes_ -= bytes;
    free_slots_.push_back(event.slot);
    live_.erase(it);
  }

  void request(std::size_t i, Event& event) {
    const auto it = require(i, Stage::live, "free_requested");
    const bool is_plain = i + 1 < in_.op.size() && id(i + 1) == id(i) &&
                          static_cast<Op>(in_.op[i + 1]) == Op::free_completed;
    if (is_plain) {
      event.op = Op::free;
      finish(i, event, it);
      plain_end_ = i + 1;
      return;
    }
    it->second.stage = Stage::requested;
    event.slot = it->second.slot;
    trace_.free_event_[it->second.number] = static_cast<std::uint32_t>(i);
  }

  void complete(std::size_t i, Event& event) {
    if (i == plain_end_) {
      event.op = Op::mark;
      return;
    }
    finish(i, event, require(i, Stage::requested, "free_completed"));
  }

  void create_pool(std::size_t i, const Event& event) {
    if (event.pool == 0) reject(i, "create_pool of pool 0, the default pool; expected 1 or more");
    if (event.bytes > 3) reject(i, "create_pool with flags ", event.bytes, "; expected 0 to 3");
    int& users = pools_.try_emplace(event.pool, 0).first->second;
    if (users == kImplicit) reject(i, "create_pool of pool ", event.pool, " after its first use");
    ++users;
  }

  void release_pool(std::size_t i, const Event& event) {
    const auto it = pools_.find(event.pool);
    if (it == pools_.end() || it->second <= 0) {
      reject(i, "release_pool of pool ", event.pool, ", which has no users to take away");
    }
    --it->second;
  }

  Trace& trace_;
  const EventColumns& in_;
  std::unordered_map<std::uint64_t, Live> live_;
  std::vector<std::uint32_t> free_slots_;
  std::map<std::uint32_t, int> pools_;  // users, or kImplicit
  std::uint64_t live_bytes_ = 0;
  std::size_t plain_end_ = std::numeric_limits<std::size_t>::max();
};

Trace::Trace(const EventColumns& columns, std::shared_ptr<const void> owner)
    : owner_(std::move(owner)),
      bytes_(columns.bytes),
      stream_(columns.stream),
      pool_(columns.pool),
      time_ns_(columns.time_ns) {
  Compiler(*this, columns).run();
}

}  // namespace npusim::lab
