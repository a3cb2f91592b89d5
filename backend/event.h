// SPDX-License-Identifier: BSD-3-Clause
// Event: a versioned mark in a stream (rules E1-E7). record() stores the virtual time at which all
// work before it will have finished. Invariant: a wait uses the mark of the version that it saw;
// recording again never changes an earlier wait. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>

#include "backend/stream.h"

namespace npusim {

class Event {
 public:
  // An event belongs to one device. Only a `timing` event can be used in elapsed_ms().
  explicit Event(int device, bool timing = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  int device() const noexcept { return device_; }
  bool timing() const noexcept { return timing_; }

  // record() marks the end of the work in `stream`, and costs the host time. Throws InvalidArgument
  // for another device.
  void record(Stream& stream);

  // block() keeps later commands of `stream`, of any device, from starting before the mark.
  // Does nothing when never recorded.
  void block(Stream& stream);

  // query() is whether the mark is reached; true when never recorded. Costs the host time.
  bool query();

  // synchronize() moves the host to the mark; returns at once when never recorded. Throws a
  // pending DeviceFault of the device.
  void synchronize();

  // elapsed_ms() is virtual milliseconds from this mark to the one of `end`. Throws InvalidArgument
  // unless both have timing, are recorded, are of one device and are reached by the host.
  double elapsed_ms(const Event& end) const;

  // version() counts the records, 0: never; mark_ns() is the time of the last one, 0: never.
  std::uint64_t version() const noexcept;
  std::int64_t mark_ns() const noexcept;

 private:
  struct Mark {
    std::uint64_t version = 0;
    std::int64_t time_ns = 0;
  };
  Mark mark() const noexcept;

  const int device_;
  const bool timing_;
  mutable std::mutex mutex_;  // guards last_; observers hear of a record under it
  Mark last_;
};

}  // namespace npusim
