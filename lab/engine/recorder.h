// SPDX-License-Identifier: BSD-3-Clause
// Recorder: curves, peaks and placements of a replay, filled event by event.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lab/engine/replay.h"

namespace npusim::lab {

// Bytes at one moment.
struct Totals {
  std::int64_t reserved = 0, active = 0, allocated = 0, requested = 0;
};

class Recorder {
 public:
  Recorder(const Trace& trace, const ReplayOptions& options, ReplayResult& result)
      : result_(result), has_placements_(options.placements) {
    const auto events = static_cast<std::int64_t>(trace.size());
    const auto points = static_cast<std::int64_t>(options.curve_points);
    if (points > 0 && events > 0) {
      result.curve_every = (events + points - 1) / points;
      next_point_ = result.curve_every;
    }
    if (!has_placements_) return;
    result.failed.assign(trace.mallocs(), 1);
    result.address.resize(trace.mallocs());
    result.segment.assign(trace.mallocs(), -1);
    result.offset.resize(trace.mallocs());
    result.block_bytes.resize(trace.mallocs());
  }

  void place(std::size_t number, Address address, std::int64_t segment, Address base,
             std::uint64_t bytes) {
    if (!has_placements_) return;
    result_.failed[number] = 0;
    result_.address[number] = address;
    result_.segment[number] = static_cast<std::int32_t>(segment);
    result_.offset[number] = address - base;
    result_.block_bytes[number] = bytes;
  }

  // after_malloc() is where totals can grow.
  void after_malloc(std::int64_t event, const Totals& now) {
    if (now.active > result_.peak_active.bytes) result_.peak_active = {now.active, event};
    if (now.allocated > result_.peak_allocated.bytes) {
      result_.peak_allocated = {now.allocated, event};
    }
    if (now.requested > result_.peak_requested.bytes) {
      result_.peak_requested = {now.requested, event};
    }
    if (now.reserved > result_.peak_reserved.bytes) {
      result_.peak_reserved = {now.reserved, event};
      result_.active_at_peak_reserved = now.active;
    }
    if (next_point_ == kNever) return;
    top_.reserved = std::max(top_.reserved, now.reserved);
    top_.active = std::max(top_.active, now.active);
    top_.allocated = std::max(top_.allocated, now.allocated);
    top_.requested = std::max(top_.requested, now.requested);
  }

  void reset_peaks(const Totals& now) {
    result_.peak_active = result_.peak_allocated = result_.peak_requested = {};
    result_.peak_reserved = {};
    after_malloc(-1, now);
  }

  // has_curves(): then after_event() is where totals can shrink.
  bool has_curves() const noexcept { return next_point_ != kNever; }
  void after_event(const Totals& now) {
    low_.reserved = std::min(low_.reserved, now.reserved);
    low_.active = std::min(low_.active, now.active);
    low_.allocated = std::min(low_.allocated, now.allocated);
    low_.requested = std::min(low_.requested, now.requested);
  }

  // wants_point() after `done` events: then add_point().
  bool wants_point(std::int64_t done) const noexcept { return done == next_point_; }
  bool has_begun_point(std::int64_t done) const noexcept {
    return next_point_ != kNever && done > next_point_ - result_.curve_every;
  }
  void add_point(const Totals& now) {
    after_malloc(-1, now);
    add(result_.highest, top_);
    add(result_.lowest, low_);
    top_ = low_ = now;
    next_point_ += result_.curve_every;
  }
  // Free blocks, for the point that comes next.
  void add_fragmentation(const std::vector<SegmentInfo>& segments) {
    std::int64_t largest = 0;
    std::int64_t all = 0;
    for (const SegmentInfo& segment : segments) {
      for (const BlockInfo& block : segment.blocks) {
        if (block.state != BlockState::free) continue;
        largest = std::max(largest, static_cast<std::int64_t>(block.bytes));
        all += static_cast<std::int64_t>(block.bytes);
      }
    }
    result_.largest_free.push_back(largest);
    result_.free_bytes.push_back(all);
  }

 private:
  static constexpr std::int64_t kNever = -1;
  ReplayResult& result_;
  const bool has_placements_;
  std::int64_t next_point_ = kNever;
  static void add(Curves& curves, const Totals& point) {
    curves.reserved.push_back(point.reserved);
    curves.active.push_back(point.active);
    curves.allocated.push_back(point.allocated);
    curves.requested.push_back(point.requested);
  }
  Totals top_, low_;  // of the interval
};

}  // namespace npusim::lab
