// SPDX-License-Identifier: BSD-3-Clause
// ScratchAllocator: what a CPU kernel allocates while it runs for the device, results and
// temporaries, is device blocks under their host addresses, so that results are born on the device.
// ScratchScope turns it on for the CPU allocations of one thread. Invariant: outside a scope every
// CPU allocation goes to the allocator that torch had before.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "allocator/allocator.h"

namespace torch_npusim {

// scratch_allocator_of() allocates on that device whether or not a scope is open (used by the twins
// of storages, which a kernel may resize).
c10::Allocator* scratch_allocator_of(c10::DeviceIndex device);

// scratch_block_of() returns the device block behind a host pointer from here, else nullptr.
npusim::alloc::Block* scratch_block_of(const c10::DataPtr& data) noexcept;

// ScratchScope: while it lives, CPU allocations of this thread come from `device`, or as ever for
// kHostMemory. Scopes nest.
inline constexpr c10::DeviceIndex kHostMemory = -1;
class ScratchScope {
 public:
  explicit ScratchScope(c10::DeviceIndex device) noexcept;
  ~ScratchScope();
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  c10::DeviceIndex outer_;
  std::size_t outer_blocks_;  // blocks that belong to the scopes around this one
};

// HostMemoryScope suspends that: allocations of this thread are ordinary host memory again.
class HostMemoryScope {
 public:
  HostMemoryScope() noexcept;
  ~HostMemoryScope();
  HostMemoryScope(const HostMemoryScope&) = delete;
  HostMemoryScope& operator=(const HostMemoryScope&) = delete;

 private:
  c10::DeviceIndex outer_;
};

// register_scratch_allocator() puts the forwarding allocator in front of torch's CPU allocator.
void register_scratch_allocator();

}  // namespace torch_npusim
