// SPDX-License-Identifier: BSD-3-Clause
// The two loops over the events: one for the caching allocator, which keeps its own accounts, and
// one for every other policy, whose accounts are kept here.
#include "lab/engine/replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <set>
#include <unordered_map>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/placement/placement_check.h"
#include "allocator/validate.h"
#include "lab/engine/names.h"
#include "lab/engine/recorder.h"

namespace npusim::lab {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// How far a replay is, and what it has found so far.
struct Progress {
  Progress(const Trace& trace_in, const ReplayOptions& options_in)
      : trace(trace_in),
        options(options_in),
        device(trace_in, options_in.device),
        recorder(trace_in, options_in, result) {}

  const Trace& trace;
  const ReplayOptions& options;
  ReplayResult result;
  ReplayDevice device;
  Recorder recorder;
  std::size_t mallocs = 0;
};

constexpr std::int64_t kLookAhead = 12;  // events: what they will touch is fetched early

// An engine applies events and knows its totals and segments; this is all around it.
template <class Engine>
ReplayResult run(Progress& in, Engine& engine) {
  const std::vector<std::int64_t>& pictures_at = in.options.pictures_at;
  const auto take_picture = [&](std::int64_t event) {
    in.result.pictures.push_back({event, engine.segments()});
  };
  double walking = 0;  // seconds that are no part of the replay
  const auto add_point = [&] {
    in.recorder.add_point(engine.totals());
    if (!in.options.fragmentation) return;
    const double begun = cpu_seconds();
    in.recorder.add_fragmentation(engine.segments());
    walking += cpu_seconds() - begun;
  };
  const double start = cpu_seconds();
  const auto count = static_cast<std::int64_t>(in.trace.size());
  auto next_picture = pictures_at.begin();
  std::int64_t i = 0;
  for (; i < count && in.result.stopped_at < 0; ++i) {
    in.device.go_to(i);
    if (i + kLookAhead < count) engine.prepare(static_cast<std::size_t>(i));
    const auto before = in.options.latency ? Clock::now() : Clock::time_point{};
    engine.apply(in.trace.event(static_cast<std::size_t>(i)));
    if (in.options.latency) {
      const std::chrono::nanoseconds taken = Clock::now() - before;
      in.result.latency_ns.push_back(static_cast<std::uint32_t>(
          std::min<std::int64_t>(taken.count(), std::numeric_limits<std::uint32_t>::max())));
    }
    while (next_picture != pictures_at.end() && *next_picture == i) {
      take_picture(i);
      ++next_picture;
    }
    if (in.recorder.has_curves()) in.recorder.after_event(engine.totals());
    if (in.recorder.wants_point(i + 1)) add_point();
    if (in.options.validate_every > 0 && (i + 1) % in.options.validate_every == 0) engine.check();
  }
  if (in.recorder.has_begun_point(i)) add_point();
  in.device.go_to(i);
  in.result.reserved_byte_events = in.device.byte_events();
  in.result.reserved_byte_ns = in.device.byte_ns();
  in.result.device_calls = in.device.calls();
  in.result.stitched_bytes = in.device.stitched_bytes();
  in.result.unstitched_bytes = in.device.unstitched_bytes();
  in.result.seconds = cpu_seconds() - start - walking;
  if (in.options.picture_at_end) take_picture(i - 1);
  engine.finish();
  return std::move(in.result);
}

// --- The caching allocator ----------------------------------------------------------------------

class CachingEngine {
 public:
  CachingEngine(Progress& progress, const Config& config)
      : in_(progress),
        allocator_(progress.device, config, Sharing::one_thread),
        blocks_(std::max<std::size_t>(1, progress.trace.slots())),
        holds_(progress.trace.slots()) {
    const ReplayOptions& options = progress.options;
    const bool wants_contexts = options.picture_at_end || !options.pictures_at.empty();
    if (wants_contexts) allocator_.record_history(HistoryMode::state);
    const std::vector<std::uint32_t>& implicit = progress.trace.implicit_pools();
    std::set<std::uint32_t> used(implicit.begin(), implicit.end());
    for (const SegmentInfo& segment : options.initial) {  // some without a block of the trace
      used.insert(static_cast<std::uint32_t>(segment.pool.second));
    }
    used.erase(0);
    for (const std::uint32_t pool : used) allocator_.retain_pool({0, pool});
    if (!options.initial.empty()) adopt(options.initial);
  }

  // Blocks that are freed soon, then their neighbours, which are looked at for merging.
  void prepare(std::size_t event) const {
    __builtin_prefetch(blocks_[in_.trace.slot(event + kLookAhead)]);
    const std::size_t soon = event + kLookAhead / 2;
    const Block* block = blocks_[in_.trace.slot(soon)];
    if (in_.trace.op(soon) != Op::free || !block) return;
    __builtin_prefetch(block->prev);
    __builtin_prefetch(block->next);
  }

  void apply(const Trace::Event& event) {
    switch (event.op) {
      case Op::malloc:
        malloc(event);
        return;
      case Op::free:
        if (Block* block = blocks_[event.slot]) allocator_.free(block);
        return;
      case Op::free_requested:
        free_requested(event);
        return;
      case Op::free_completed:
        if (in_.options.pending == PendingMode::recorded && blocks_[event.slot]) {
          allocator_.complete_free(holds_[event.slot]);
        }
        return;
      case Op::empty_cache:
        allocator_.empty_cache({0, event.pool});
        return;
      case Op::create_pool:
        create_pool(event);
        return;
      case Op::release_pool:
        allocator_.release_pool({0, event.pool});
        return;
      case Op::memory_fraction:
        allocator_.set_memory_fraction(std::ldexp(static_cast<double>(event.bytes), -32));
        return;
      case Op::synchronize:
        allocator_.complete_held_frees();
        return;
      case Op::reset_peaks:
        allocator_.reset_peak_stats();
        in_.recorder.reset_peaks(totals());
        return;
      default:
        return;
    }
  }

  Totals totals() const {
    const AllocatorTotals now = allocator_.totals();
    return {now.reserved_bytes, now.active_bytes, now.allocated_bytes, now.requested_bytes};
  }

  std::vector<SegmentInfo> segments() {
    Snapshot picture = allocator_.inspect();
    if (in_.options.validate) judge(picture);
    return std::move(picture.segments);
  }

  void check() { judge(allocator_.inspect()); }

  void finish() {
    in_.result.has_stats = true;
    in_.result.stats = allocator_.stats();
    in_.result.retries = static_cast<std::int64_t>(in_.result.stats.num_alloc_retries);
    if (in_.options.validate) check();
  }

 private:
  void malloc(const Trace::Event& event) {
    const std::size_t number = in_.mallocs++;
    Block* block = adopted_.empty() ? nullptr : take_adopted(number);
    if (!block) {
      const std::size_t held = has_held_ ? allocator_.held_frees() : 0;
      block = allocator_.malloc(event.bytes, event.stream, &report_, number + 1, {0, event.pool});
      if (held != 0 && allocator_.held_frees() < held) {
        in_.result.waits.push_back(in_.device.event());
      }
    }
    blocks_[event.slot] = block;
    if (!block) [[unlikely]] {
      in_.result.ooms.push_back({in_.device.event(), static_cast<std::int64_t>(number), report_});
      if (in_.options.stop_on_oom) in_.result.stopped_at = in_.device.event();
      return;
    }
    const Segment& segment = *block->segment;
    in_.recorder.place(number, block->address, segment.registration, segment.address, block->bytes);
    in_.recorder.after_malloc(in_.device.event(), totals());
  }

  void adopt(const std::vector<SegmentInfo>& segments) {
    for (const SegmentInfo& segment : segments) {
      const ReplayDevice::Lent owner{segment.total_bytes, segment.registration,
                                     static_cast<std::uint32_t>(segment.stream),
                                     static_cast<std::uint32_t>(segment.pool.second)};
      if (!segment.is_expandable) {
        in_.device.adopt(segment.address, segment.total_bytes, owner);
        continue;
      }
      std::vector<ReplayDevice::Run> runs;
      for (const BlockInfo& block : segment.blocks) {
        if (block.state == BlockState::unmapped) continue;
        if (!runs.empty() && runs.back().first + runs.back().second == block.address) {
          runs.back().second += block.bytes;
        } else {
          runs.emplace_back(block.address, block.bytes);
        }
      }
      in_.device.adopt_range(segment.address, segment.total_bytes, owner, runs);
    }
    allocator_.adopt(segments, [&](const BlockInfo& info, Block* block) {
      const std::uint64_t number = info.context - 1;
      if (number >= in_.trace.mallocs() ||
          in_.trace.malloc_bytes()[number] != info.requested_bytes ||
          !adopted_.emplace(number, block).second) {
        throw InvalidArgument("replay: the initial block at " + std::to_string(info.address) +
                              " is of no malloc of the trace, or of one that another block is of, "
                              "or that asks for other bytes");
      }
    });
  }

  Block* take_adopted(std::size_t number) {
    const auto it = adopted_.find(number);
    if (it == adopted_.end()) return nullptr;
    Block* block = it->second;
    adopted_.erase(it);
    return block;
  }

  void free_requested(const Trace::Event& event) {
    Block* block = blocks_[event.slot];
    if (!block) return;
    if (in_.options.pending == PendingMode::immediate) {
      allocator_.free(block);
    } else {
      holds_[event.slot] = allocator_.free_held(block);
      has_held_ = true;
    }
  }

  void create_pool(const Trace::Event& event) {
    const PoolOptions flags{.use_on_oom = (event.bytes & 1) != 0,
                            .no_split = (event.bytes & 2) != 0};
    allocator_.retain_pool({0, event.pool}, flags);
  }

  void judge(const Snapshot& picture) {
    for (std::string& text : violations(picture, &in_.device.lent())) {
      in_.result.violations.add(in_.device.when() + text);
    }
  }

  Progress& in_;
  CachingAllocator allocator_;
  std::unordered_map<std::uint64_t, Block*> adopted_;  // by malloc, until its event
  OutOfMemoryReport report_;                           // of the last failure
  std::vector<Block*> blocks_;                         // by slot; null: the malloc failed
  std::vector<std::uint64_t> holds_;
  bool has_held_ = false;  // a free whose end is an event: mallocs may wait for it
};

// --- Any other policy ---------------------------------------------------------------------------

class PolicyEngine {
 public:
  PolicyEngine(Progress& progress, const PolicyFactory& make)
      : in_(progress),
        check_(progress.device),
        live_(progress.trace.slots()),
        policy_(make(progress.device)) {}

  void prepare(std::size_t) const {}

  void apply(const Trace::Event& event) {
    switch (event.op) {
      case Op::malloc:
        malloc(event);
        break;
      case Op::free:
        free(event, true);
        break;
      case Op::free_requested:
        free(event, in_.options.pending == PendingMode::immediate);
        break;
      case Op::free_completed:
        if (in_.options.pending == PendingMode::recorded) complete(live_[event.slot].hold);
        break;
      case Op::empty_cache:
        complete_all();
        policy_->empty_cache();
        break;
      case Op::synchronize:
        complete_all();
        break;
      case Op::memory_fraction:
        in_.device.limit(std::ldexp(static_cast<double>(event.bytes), -32));
        break;
      case Op::reset_peaks:
        in_.recorder.reset_peaks(totals());
        break;
      default:
        break;
    }
    for (const std::string& what : in_.device.take_refused()) check_.say(what);
    if (in_.options.validate && has_given_back()) check_.check_lent();
  }

  Totals totals() {
    totals_.reserved = static_cast<std::int64_t>(in_.device.reserved_bytes());
    return totals_;
  }

  // Segments as the device lent them; what is not live in them is free.
  std::vector<SegmentInfo> segments();

  void check() { check_.check_lent(); }

  void finish() {
    policy_->add_metrics(in_.result.metrics);
    in_.result.violations = check_.found();
  }

 private:
  struct Live {
    Placement placement;
    PlacementRequest request;
    std::uint64_t hold = 0;  // 0: not pending
  };

  bool has_given_back() {
    const auto& calls = in_.device.calls();
    bool found = false;
    for (; calls_seen_ < calls.size(); ++calls_seen_) {
      found |=
          calls[calls_seen_].op == Op::segment_free || calls[calls_seen_].op == Op::segment_unmap;
    }
    return found;
  }

  void malloc(const Trace::Event& event) {
    Live& live = live_[event.slot];
    live = {.placement = {},
            .request = {event.bytes, event.stream, event.pool, in_.mallocs++},
            .hold = 0};
    Placement placement = policy_->malloc(live.request);
    if (placement.address == 0 && complete_all()) placement = policy_->malloc(live.request);
    if (placement.address == 0) {
      ++in_.result.retries;
      policy_->empty_cache();
      placement = policy_->malloc(live.request);
    }
    if (placement.address == 0) {
      fail(live.request);
      return;
    }
    if (in_.options.validate || wants_pictures()) {
      // Of an impossible placement the bytes may be any number; the sums stay sums.
      if (!check_.add(placement, live.request).empty()) placement.bytes = event.bytes;
    }
    live.placement = placement;
    const auto bytes = static_cast<std::int64_t>(placement.bytes);
    totals_.active += bytes;
    totals_.allocated += bytes;
    totals_.requested += static_cast<std::int64_t>(event.bytes);
    const auto* segment = in_.device.segment_at(placement.address);
    in_.recorder.place(live.request.number, placement.address, segment ? segment->second.order : -1,
                       segment ? segment->first : placement.address, placement.bytes);
    in_.recorder.after_malloc(in_.device.event(), totals());
  }

  bool wants_pictures() const {
    return in_.options.fragmentation || in_.options.picture_at_end ||
           !in_.options.pictures_at.empty();
  }

  void fail(const PlacementRequest& request) {
    OutOfMemoryReport report;
    report.requested_bytes = report.segment_bytes = request.bytes;
    report.total_bytes = in_.device.capacity_bytes();
    report.reserved_bytes = in_.device.reserved_bytes();
    report.free_bytes = report.total_bytes - report.reserved_bytes;
    report.allocated_bytes = static_cast<std::size_t>(totals_.allocated);
    report.cached_bytes = report.reserved_bytes - static_cast<std::size_t>(totals_.active);
    if (in_.options.validate && report.total_bytes == DeviceOptions{}.capacity_bytes &&
        report.free_bytes >= request.bytes) {
      check_.say("malloc " + std::to_string(request.number) + " of " +
                 std::to_string(request.bytes) + " bytes is refused, on a device with " +
                 std::to_string(report.free_bytes) + " bytes free");
    }
    in_.result.ooms.push_back(
        {in_.device.event(), static_cast<std::int64_t>(request.number), std::move(report)});
    if (in_.options.stop_on_oom) in_.result.stopped_at = in_.device.event();
  }

  void free(const Trace::Event& event, bool is_complete) {
    Live& live = live_[event.slot];
    if (live.placement.address == 0) return;
    totals_.allocated -= static_cast<std::int64_t>(live.placement.bytes);
    live.hold = ++last_hold_;
    pending_.emplace_hint(pending_.end(), live.hold, live);
    live.placement = {};
    if (is_complete) complete(live.hold);
  }

  void complete(std::uint64_t hold) {
    const auto it = pending_.find(hold);
    if (it == pending_.end()) return;
    const Live live = it->second;
    pending_.erase(it);
    totals_.active -= static_cast<std::int64_t>(live.placement.bytes);
    totals_.requested -= static_cast<std::int64_t>(live.request.bytes);
    check_.remove(live.placement, live.request);
    policy_->free(live.placement, live.request);
  }

  bool complete_all() {
    const bool any = !pending_.empty();
    while (!pending_.empty()) complete(pending_.begin()->first);
    return any;
  }

  Progress& in_;
  PlacementCheck check_;
  std::vector<Live> live_;                 // by slot
  std::map<std::uint64_t, Live> pending_;  // by hold, oldest first
  std::uint64_t last_hold_ = 0;
  std::size_t calls_seen_ = 0;
  Totals totals_;
  std::unique_ptr<PlacementPolicy> policy_;
};

std::vector<SegmentInfo> PolicyEngine::segments() {
  std::vector<SegmentInfo> out;
  for (const auto& [address, bytes] : in_.device.lent()) {
    const auto* owner = in_.device.segment_at(address);
    SegmentInfo info{.address = address,
                     .total_bytes = bytes,
                     .stream = owner->second.stream,
                     .is_large = true,
                     .pool = {0, owner->second.pool},
                     .registration = owner->second.order,
                     .blocks = {}};
    const auto add_free = [&info](Address from, Address to) {
      if (from < to) info.blocks.push_back({from, to - from, 0, BlockState::free, 0});
    };
    Address at = address;
    for (auto it = check_.live().lower_bound(address);
         it != check_.live().end() && it->first < address + bytes; ++it) {
      const PlacementCheck::Live& live = it->second;
      add_free(at, it->first);
      info.blocks.push_back({it->first, live.end - it->first, live.requested_bytes,
                             BlockState::allocated, live.number + 1});
      info.allocated_bytes += live.end - it->first;
      info.active_bytes += live.end - it->first;
      info.requested_bytes += live.requested_bytes;
      at = live.end;
    }
    add_free(at, address + bytes);
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace

ReplayResult replay(const Trace& trace, const Config& config, const ReplayOptions& options) {
  Progress progress(trace, options);
  CachingEngine engine(progress, config);
  return run(progress, engine);
}

ReplayResult replay(const Trace& trace, const PolicyFactory& make, const ReplayOptions& options) {
  Progress progress(trace, options);
  PolicyEngine engine(progress, make);
  return run(progress, engine);
}

}  // namespace npusim::lab
