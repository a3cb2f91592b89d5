// SPDX-License-Identifier: BSD-3-Clause
// replay(): what would a policy have done with this trace? The caching allocator is the code that
// runs behind the live device; other policies go through PlacementPolicy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/config.h"
#include "allocator/out_of_memory.h"
#include "allocator/placement/placement_check.h"
#include "allocator/placement/placement_policy.h"
#include "allocator/snapshot.h"
#include "allocator/stats.h"
#include "lab/engine/names.h"
#include "lab/engine/replay_device.h"
#include "lab/engine/trace.h"

namespace npusim::lab {

// When memory that was freed with free_requested is reusable.
enum class PendingMode : std::uint8_t {
  recorded,   // at its free_completed, or when the allocator waits
  immediate,  // at once
  never,      // only when the allocator waits
};

struct ReplayOptions {
  DeviceOptions device;
  PendingMode pending = PendingMode::recorded;
  bool stop_on_oom = false;          // else the allocation is absent, and its free ignored
  bool placements = true;            // fill the arrays per malloc
  std::size_t curve_points = 0;      // at most, per curve
  bool latency = false;              // fill latency_ns, which slows the replay down
  bool fragmentation = false;        // fill largest_free and free_bytes, which walk all blocks
  std::vector<SegmentInfo> initial;  // what the caching allocator begins with; the context of an
                                     // allocated block is 1 + the malloc of the trace that it is
  std::vector<std::int64_t> pictures_at;  // events, ascending
  bool picture_at_end = false;
  bool validate = false;            // a policy's answers; the caching allocator's state, where a
                                    // picture is taken and at the end,
  std::int64_t validate_every = 0;  // and after every so many events (0: not)
};

struct OomRecord {
  std::int64_t event = 0;
  std::int64_t number = 0;  // which malloc
  OutOfMemoryReport report;
};

// The state after an event. In blocks and segments, context is 1 + the malloc they belong to.
struct Picture {
  std::int64_t event = 0;
  std::vector<SegmentInfo> segments;
};

struct Peak {
  std::int64_t bytes = 0;
  std::int64_t event = -1;  // the first at which it was reached
};

struct Curves {
  std::vector<std::int64_t> reserved, active, allocated, requested;
};

struct ReplayResult {
  double seconds = 0;  // CPU time of the replay alone

  // Per malloc, in order of the trace.
  std::vector<std::uint8_t> failed;
  std::vector<std::uint64_t> address;
  std::vector<std::int32_t> segment;  // order of acquisition
  std::vector<std::uint64_t> offset;  // in the segment
  std::vector<std::uint64_t> block_bytes;

  // One point per curve_every events: the largest and the smallest value among them, the one before
  // included, so that no peak is lost and neighbours meet. The other two are of the interval's end.
  std::int64_t curve_every = 0;
  Curves highest, lowest;
  std::vector<std::int64_t> largest_free, free_bytes;  // of one block, of all

  Peak peak_reserved, peak_active, peak_allocated, peak_requested;
  std::int64_t active_at_peak_reserved = 0;
  double reserved_byte_events = 0, reserved_byte_ns = 0;  // integrals
  std::vector<DeviceCall> device_calls;
  std::uint64_t stitched_bytes = 0, unstitched_bytes = 0;
  std::int64_t retries = 0;               // mallocs that were tried again after giving memory back
  std::vector<std::uint32_t> latency_ns;  // per event, of this machine
  std::vector<OomRecord> ooms;
  std::vector<std::int64_t> waits;  // events of mallocs that waited for frees; caching allocator
  std::int64_t stopped_at = -1;
  bool has_stats = false;
  Stats stats;                            // of the caching allocator
  std::map<std::string, double> metrics;  // of other policies
  std::vector<Picture> pictures;
  Findings violations;
};

// Throws InvalidArgument for a bad config.
ReplayResult replay(const Trace& trace, const Config& config, const ReplayOptions& options);

// The factory gets the device of this replay and returns the policy on it.
using PolicyFactory = std::function<std::unique_ptr<PlacementPolicy>(ReplayDevice&)>;
ReplayResult replay(const Trace& trace, const PolicyFactory& make, const ReplayOptions& options);

}  // namespace npusim::lab
