// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of FakeProvider. Misuse ends the program: it is a fault of the allocator under
// test, and there is nothing to save.
#include "allocator/fake_provider.h"

#include <exception>
#include <iterator>

namespace npusim::alloc {

bool FakeProvider::fails() {
  if (fail_in_ == 0) return false;
  --fail_in_;
  if (fail_in_ > 0) return false;
  ++failures_;
  return true;
}

// A scattered device has 2^20 windows of 2^40 bytes; an odd multiplier visits each of them once.
Address FakeProvider::place(std::size_t bytes) {
  if (scatter_ != 0) return ((++placed_ * (2 * scatter_ + 1)) % (Address{1} << 20) + 1) << 40;
  const Address address = next_;
  next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return address;
}

SegmentResult FakeProvider::acquire_segment(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fails()) return {0, SegmentResult::Status::injected, "injected failure"};
  if (bytes > capacity_bytes_ - live_bytes_) return {0, SegmentResult::Status::device_full, {}};
  const Address address = place(bytes);
  live_[address] = bytes;
  live_bytes_ += bytes;
  return {address, SegmentResult::Status::ok, {}};
}

void FakeProvider::release_segment(Address address, std::size_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = live_.find(address);
  if (it == live_.end() || it->second != bytes) std::terminate();  // never lent: nothing to save
  live_.erase(it);
  live_bytes_ -= bytes;
}

SegmentResult FakeProvider::reserve_range(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fails()) return {0, SegmentResult::Status::injected, "injected failure"};
  const Address address = place(bytes + kAlignment);  // a gap keeps mapped runs apart
  ranges_[address] = bytes;
  return {address, SegmentResult::Status::ok, {}};
}

void FakeProvider::release_range(Address address, std::size_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = ranges_.find(address);
  const auto mapped = live_.lower_bound(address);
  const bool is_empty = mapped == live_.end() || mapped->first >= address + bytes;
  if (it == ranges_.end() || it->second != bytes || !is_empty) std::terminate();
  ranges_.erase(it);
}

SegmentResult FakeProvider::map(Address address, std::size_t bytes) {
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

void FakeProvider::unmap(Address address, std::size_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = std::prev(live_.upper_bound(address));
  const Address begin = it->first, end = begin + it->second;
  if (address + bytes > end) std::terminate();
  live_.erase(it);
  if (begin < address) live_[begin] = address - begin;
  if (address + bytes < end) live_[address + bytes] = end - address - bytes;
  live_bytes_ -= bytes;
}

Ticket FakeProvider::mark(StreamId stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fails()) throw Fault("injected failure of mark");
  return std::max(stream_end_ns_[stream], now_ns_);
}

bool FakeProvider::done(Ticket ticket) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return now_ns_ >= ticket;
}

void FakeProvider::wait(Ticket ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fails()) throw Fault("injected failure of wait");
  now_ns_ = std::max(now_ns_, ticket);
}

void FakeProvider::synchronize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fails()) throw Fault("injected failure of synchronize");
  for (const auto& [stream, end_ns] : stream_end_ns_) now_ns_ = std::max(now_ns_, end_ns);
  ++synchronizations_;
}

MemoryInfo FakeProvider::memory_info() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {capacity_bytes_ - live_bytes_, capacity_bytes_};
}

std::int64_t FakeProvider::now_ns() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return now_ns_;
}

}  // namespace npusim::alloc
