// SPDX-License-Identifier: BSD-3-Clause
// PoolAllocator: hands out device blocks under their host address, so that a CPU kernel's results
// are born on the device. PoolScope turns it on for the CPU allocations of one thread.
// Invariant: outside a scope every CPU allocation goes to the allocator that torch had before.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "allocator/allocator.h"

namespace torch_npusim {

// pool_allocator_of() allocates on that device whether or not a scope is open (used by the twins of
// storages, which a kernel may resize).
c10::Allocator* pool_allocator_of(c10::DeviceIndex device);

// pool_block_of() returns the device block behind a host pointer of a pool allocator, else nullptr.
npusim::alloc::Block* pool_block_of(const c10::DataPtr& data) noexcept;

// PoolScope: while it lives, CPU allocations of this thread come from `device`. Scopes nest.
class PoolScope {
 public:
  explicit PoolScope(c10::DeviceIndex device) noexcept;
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  c10::DeviceIndex outer_;
  std::size_t outer_blocks_;  // blocks that belong to the scopes around this one
};

// HostScope suspends the pool: allocations of this thread are ordinary host memory again.
class HostScope {
 public:
  HostScope() noexcept;
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  c10::DeviceIndex outer_;
};

// register_pool_allocator() puts the forwarding allocator in front of torch's CPU allocator.
void register_pool_allocator();

}  // namespace torch_npusim
