// SPDX-License-Identifier: BSD-3-Clause
// FakeProvider: a device that is only arithmetic. Terabytes cost nothing, time moves when told to,
// and the k-th fallible call can be made to fail. Tests and the lab run the allocator on it.
//
//   run(stream 7, 100):  now ----[ work of 100 ns ]----> mark(7) is a ticket for the end of the
//   work advance(100):             -------------------------> done(ticket)
#pragma once

#include <algorithm>
#include <exception>
#include <iterator>
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

  SegmentResult acquire_segment(std::size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fails()) return {0, SegmentResult::Status::injected, "injected failure"};
    if (bytes > capacity_bytes_ - live_bytes_) return {0, SegmentResult::Status::device_full, {}};
    const Address address = place(bytes);
    live_[address] = bytes;
    live_bytes_ += bytes;
    return {address, SegmentResult::Status::ok, {}};
  }

  void release_segment(Address address, std::size_t bytes) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = live_.find(address);
    if (it == live_.end() || it->second != bytes) std::terminate();  // never lent: nothing to save
    live_.erase(it);
    live_bytes_ -= bytes;
  }

  bool can_map() const noexcept override { return true; }

  SegmentResult reserve_range(std::size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fails()) return {0, SegmentResult::Status::injected, "injected failure"};
    const Address address = place(bytes + kAlignment);  // a gap keeps mapped runs apart
    ranges_[address] = bytes;
    return {address, SegmentResult::Status::ok, {}};
  }

  void release_range(Address address, std::size_t bytes) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = ranges_.find(address);
    const auto mapped = live_.lower_bound(address);
    const bool is_empty = mapped == live_.end() || mapped->first >= address + bytes;
    if (it == ranges_.end() || it->second != bytes || !is_empty) std::terminate();
    ranges_.erase(it);
  }

  SegmentResult map(Address address, std::size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fails()) return {0, SegmentResult::Status::injected, "injected failure"};
    if (bytes > capacity_bytes_ - live_bytes_) return {0, SegmentResult::Status::device_full, {}};
    const auto range = std::prev(ranges_.upper_bound(address));
    auto next = live_.lower_bound(address);
    const bool is_taken = next != live_.end() && next->first < address + bytes;
    if (address + bytes > range->first + range->second || is_taken) std::terminate();
    live_bytes_ += bytes;
    // Neighbouring runs become one.
    if (next != live_.end() && next->first == address + bytes) {
      bytes += next->second;
      next = live_.erase(next);
    }
    if (next != live_.begin()) {
      auto& [begin, length] = *std::prev(next);
      if (begin + length > address) std::terminate();
      if (begin + length == address && begin >= range->first) {
        length += bytes;
        return {address, SegmentResult::Status::ok, {}};
      }
    }
    live_[address] = bytes;
    return {address, SegmentResult::Status::ok, {}};
  }

  void unmap(Address address, std::size_t bytes) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = std::prev(live_.upper_bound(address));
    const Address begin = it->first, end = begin + it->second;
    if (address + bytes > end) std::terminate();
    live_.erase(it);
    if (begin < address) live_[begin] = address - begin;
    if (address + bytes < end) live_[address + bytes] = end - address - bytes;
    live_bytes_ -= bytes;
  }

  Ticket mark(StreamId stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fails()) throw Fault("injected failure of mark");
    return std::max(stream_end_ns_[stream], now_ns_);
  }

  bool done(Ticket ticket) const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_ns_ >= ticket;
  }

  void wait(Ticket ticket) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fails()) throw Fault("injected failure of wait");
    now_ns_ = std::max(now_ns_, ticket);
  }

  void synchronize() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fails()) throw Fault("injected failure of synchronize");
    for (const auto& [stream, end_ns] : stream_end_ns_) now_ns_ = std::max(now_ns_, end_ns);
    ++synchronizations_;
  }

  MemoryInfo memory_info() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {capacity_bytes_ - live_bytes_, capacity_bytes_};
  }

  std::int64_t now_ns() const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_ns_;
  }

 private:
  bool fails() {
    if (fail_in_ == 0 || --fail_in_ > 0) return false;
    ++failures_;
    return true;
  }

  // A scattered device has 2^20 windows of 2^40 bytes; an odd multiplier visits each of them once.
  Address place(std::size_t bytes) {
    if (scatter_ != 0) return ((++placed_ * (2 * scatter_ + 1)) % (Address{1} << 20) + 1) << 40;
    const Address address = next_;
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return address;
  }

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
