// SPDX-License-Identifier: BSD-3-Clause
// The join of allocator/ and backend/: one allocator per simulated device, registered with torch as
// the c10::DeviceAllocator of PrivateUse1.
// Invariant: nothing here takes the GIL; a block may be freed on any thread, at any time, also
// after main() has returned (the allocators are never destroyed).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <string>

#include "allocator/allocator.h"

namespace torch_npusim {

// device_allocator() is the object registered with c10::SetAllocator.
c10::DeviceAllocator* device_allocator() noexcept;

// live_allocator() validates device and initialises the simulator on first use.
npusim::alloc::LiveAllocator& live_allocator(c10::DeviceIndex device);

// allocate_block() returns nullptr for bytes == 0; throws c10::OutOfMemoryError. The block belongs
// to the current stream and pool of `device` on this thread.
npusim::alloc::Block* allocate_block(std::size_t bytes, c10::DeviceIndex device);

// allocate_on_device() wraps allocate_block(); the DataPtr's context is the Block.
c10::DataPtr allocate_on_device(std::size_t bytes, c10::DeviceIndex device);

// free_block_deleter() returns a Block (passed as the DataPtr's context) to its allocator.
void free_block_deleter(void* block) noexcept;

// block_of() returns nullptr unless data was made by allocate_on_device().
npusim::alloc::Block* block_of(const c10::DataPtr& data) noexcept;

// release_cached_memory() gives the cached segments of all devices back: of the default pool and of
// private pools without users, or of one private pool if that has none.
void release_cached_memory(npusim::alloc::PoolId pool = {});

// A frame description for a gathered context id; set by the Python bindings (memory history).
using ContextGatherer = npusim::alloc::ContextId (*)();
void set_context_gatherer(ContextGatherer gatherer) noexcept;
npusim::alloc::ContextId gather_context();  // 0 without a gatherer

void register_device_allocator();

}  // namespace torch_npusim
