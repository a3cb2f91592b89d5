// SPDX-License-Identifier: BSD-3-Clause
// DeviceProvider: the allocator's port (allocator/provider.h) on a simulated device. Faults of the
// device stay pending for the next synchronising call of the user: an allocator reports none.
#pragma once

#include <atomic>

#include "allocator/allocator.h"

namespace torch_npusim {

class DeviceProvider : public npusim::alloc::Provider {
 public:
  explicit DeviceProvider(int device) : device_(device) {}

  npusim::alloc::SegmentResult acquire_segment(std::size_t bytes) override;
  void release_segment(npusim::alloc::Address address, std::size_t bytes) noexcept override;
  bool can_map() const noexcept override { return true; }
  npusim::alloc::SegmentResult reserve_range(std::size_t bytes) override;
  void release_range(npusim::alloc::Address address, std::size_t bytes) noexcept override;
  npusim::alloc::SegmentResult map(npusim::alloc::Address address, std::size_t bytes) override;
  void unmap(npusim::alloc::Address address, std::size_t bytes) noexcept override;
  npusim::alloc::Ticket mark(npusim::alloc::StreamId stream) override;
  bool done(npusim::alloc::Ticket ticket) const noexcept override;
  void wait(npusim::alloc::Ticket ticket) override;
  void synchronize() override;
  npusim::alloc::MemoryInfo memory_info() const override;
  std::int64_t now_ns() const noexcept override;

 protected:
  int device() const noexcept { return device_; }

 private:
  int device_;
};

// DryProvider: the same port in a dry run. Addresses are the device's own, lowest first as ever,
// and nothing lies behind them; `capacity_bytes` is all that can run out. `outside_bytes` of it are
// taken by what is no allocator's: a driver's context, a communicator's buffers.
class DryProvider final : public DeviceProvider {
 public:
  DryProvider(int device, std::size_t capacity_bytes, std::size_t outside_bytes);

  npusim::alloc::SegmentResult acquire_segment(std::size_t bytes) override;
  void release_segment(npusim::alloc::Address address, std::size_t bytes) noexcept override;
  npusim::alloc::SegmentResult map(npusim::alloc::Address address, std::size_t bytes) override;
  void unmap(npusim::alloc::Address address, std::size_t bytes) noexcept override;
  npusim::alloc::MemoryInfo memory_info() const override;

 private:
  npusim::alloc::SegmentResult refusal(std::size_t bytes) const;

  std::size_t capacity_bytes_;
  std::atomic<std::size_t> used_bytes_;
};

}  // namespace torch_npusim
