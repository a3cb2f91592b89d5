// SPDX-License-Identifier: BSD-3-Clause
// Where the allocator's port meets the machine.
#include "csrc/runtime/device_provider.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "backend/observer.h"

namespace torch_npusim {

namespace {

npusim::alloc::SegmentResult as_answer(npusim::SegmentResult&& result) {
  using Status = npusim::alloc::SegmentResult::Status;
  static_assert(static_cast<int>(npusim::SegmentResult::Status::injected) ==
                    static_cast<int>(Status::injected),
                "the two layers list the same outcomes in the same order");
  return {result.address, static_cast<Status>(result.status), std::move(result.reason)};
}

std::size_t whole_pages(std::size_t bytes) {
  static const auto kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes > SIZE_MAX / 2 ? bytes : (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

npusim::alloc::SegmentResult DeviceProvider::acquire_segment(std::size_t bytes) {
  return as_answer(npusim::acquire_segment(device_, bytes));
}

void DeviceProvider::release_segment(npusim::alloc::Address address, std::size_t bytes) noexcept {
  npusim::release_segment(device_, address, bytes);
}

npusim::alloc::SegmentResult DeviceProvider::reserve_range(std::size_t bytes) {
  return as_answer(npusim::reserve_range(device_, bytes));
}

void DeviceProvider::release_range(npusim::alloc::Address address, std::size_t bytes) noexcept {
  npusim::release_range(device_, address, bytes);
}

npusim::alloc::SegmentResult DeviceProvider::map(npusim::alloc::Address address,
                                                 std::size_t bytes) {
  return as_answer(npusim::map_pages(device_, address, bytes));
}

void DeviceProvider::unmap(npusim::alloc::Address address, std::size_t bytes) noexcept {
  npusim::unmap_pages(device_, address, bytes);
}

npusim::alloc::Ticket DeviceProvider::mark(npusim::alloc::StreamId stream) {
  return npusim::stream_from_id(device_, stream).done_at_ns();
}

bool DeviceProvider::done(npusim::alloc::Ticket ticket) const noexcept {
  return npusim::host_now_ns() >= ticket;
}

void DeviceProvider::wait(npusim::alloc::Ticket ticket) {
  npusim::wait_until_ns(ticket);
  npusim::note_order(npusim::OrderKind::allocator_mark, device_, nullptr, nullptr, 0, ticket);
}

void DeviceProvider::synchronize() {
  npusim::wait_until_ns(npusim::device_done_at_ns(device_));
  npusim::note_order(npusim::OrderKind::allocator_wait, device_, nullptr);
}

npusim::alloc::MemoryInfo DeviceProvider::memory_info() const {
  const npusim::MemoryInfo info = npusim::memory_info(device_);
  return {info.free_bytes, info.total_bytes};
}

std::int64_t DeviceProvider::now_ns() const noexcept { return npusim::host_now_ns(); }

DryProvider::DryProvider(int device, std::size_t capacity_bytes, std::size_t outside_bytes)
    : DeviceProvider(device),
      capacity_bytes_(capacity_bytes),
      used_bytes_(std::min(capacity_bytes, outside_bytes)) {}

// A status other than ok: a fault that was asked for, or a device that is full.
npusim::alloc::SegmentResult DryProvider::refusal(std::size_t bytes) const {
  using Status = npusim::alloc::SegmentResult::Status;
  std::string reason;
  if (npusim::detail::draw_oom_fault(device(), &reason)) return {0, Status::injected, reason};
  const bool full = bytes > capacity_bytes_ - used_bytes_.load();
  return {0, full ? Status::device_full : Status::ok, ""};
}

npusim::alloc::SegmentResult DryProvider::acquire_segment(std::size_t bytes) {
  npusim::alloc::SegmentResult result = refusal(whole_pages(bytes));
  if (result.status != npusim::alloc::SegmentResult::Status::ok) return result;
  result = reserve_range(bytes);
  if (result.status == npusim::alloc::SegmentResult::Status::ok) used_bytes_ += whole_pages(bytes);
  return result;
}

void DryProvider::release_segment(npusim::alloc::Address address, std::size_t bytes) noexcept {
  release_range(address, bytes);
  used_bytes_ -= whole_pages(bytes);
}

npusim::alloc::SegmentResult DryProvider::map(npusim::alloc::Address address, std::size_t bytes) {
  npusim::alloc::SegmentResult result = refusal(bytes);
  result.address = address;
  if (result.status == npusim::alloc::SegmentResult::Status::ok) used_bytes_ += bytes;
  return result;
}

void DryProvider::unmap(npusim::alloc::Address /*address*/, std::size_t bytes) noexcept {
  used_bytes_ -= bytes;
}

npusim::alloc::MemoryInfo DryProvider::memory_info() const {
  return {capacity_bytes_ - used_bytes_.load(), capacity_bytes_};
}

}  // namespace torch_npusim
