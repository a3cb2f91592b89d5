// SPDX-License-Identifier: BSD-3-Clause
// FakeProvider: a device that is only arithmetic. Terabytes cost nothing, time moves when told to,
// and the k-th fallible call can be made to fail. Tests and the lab run the allocator on it.
//
//   run(stream 7, 100):  now ----[ work of 100 ns ]----> mark(7) is a ticket for the end of the
//   work advance(100):             -------------------------> done(ticket)
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "allocator/provider.h"

namespace npusim::alloc {

class FakeProvider final : public Provider {
 public:
  // What mark(), wait() and synchronize() throw when their turn to fail has come.
  struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  static constexpr Address kBase = Address{1} << 40;

  explicit FakeProvider(std::size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // scatter() makes addresses jump about (seed 0, the default: ascend). None is given twice.
  void scatter(std::uint64_t seed) { scatter_ = seed; }

  // fail_call() makes the k-th fallible call from now on fail (1 is the next); 0 cancels. Fallible
  // are acquire_segment, reserve_range and map (a status), mark, wait and synchronize (a Fault).
  void fail_call(std::uint64_t k) { fail_in_ = k; }
  bool has_failed() const { return failures_ > 0; }

  // run() queues work on a stream; advance() lets virtual time pass.
  void run(StreamId stream, std::int64_t duration_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::int64_t& end_ns = stream_end_ns_[stream];
    end_ns = std::max(end_ns, now_ns_) + duration_ns;
  }
  void advance(std::int64_t duration_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ns_ += duration_ns;
  }

  std::size_t live_bytes() const { return live_bytes_; }
  const std::map<Address, std::size_t>& live_segments() const { return live_; }
  std::int64_t synchronizations() const { return synchronizations_; }

  SegmentResult acquire_segment(std::size_t bytes) override;
  void release_segment(Address address, std::size_t bytes) noexcept override;
  bool can_map() const noexcept override { return true; }
  SegmentResult reserve_range(std::size_t bytes) override;
  void release_range(Address address, std::size_t bytes) noexcept override;
  SegmentResult map(Address address, std::size_t bytes) override;
  void unmap(Address address, std::size_t bytes) noexcept override;
  Ticket mark(StreamId stream) override;
  bool done(Ticket ticket) const noexcept override;
  void wait(Ticket ticket) override;
  void synchronize() override;
  MemoryInfo memory_info() const override;
  std::int64_t now_ns() const noexcept override;

 private:
  bool fails();
  Address place(std::size_t bytes);

  static constexpr Address kAlignment = Address{1} << 21;
  const std::size_t capacity_bytes_;
  std::uint64_t scatter_ = 0;
  std::uint64_t placed_ = 0;
  Address next_ = kBase;
  std::uint64_t fail_in_ = 0;
  std::uint64_t failures_ = 0;

  mutable std::mutex mutex_;             // guards the device: segments, clock and streams
  std::map<Address, std::size_t> live_;  // segments, and runs of mapped pages
  std::map<Address, std::size_t> ranges_;
  std::size_t live_bytes_ = 0;
  std::map<StreamId, std::int64_t> stream_end_ns_;
  std::int64_t now_ns_ = 0;
  std::int64_t synchronizations_ = 0;
};

}  // namespace npusim::alloc
