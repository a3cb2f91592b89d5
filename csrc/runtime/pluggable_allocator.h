// SPDX-License-Identifier: BSD-3-Clause
// A user's pair of C functions, where memory comes from instead of the device itself: behind
// torch.npusim.memory.NPUSIMPluggableAllocator. They get device memory from npusim_malloc()
// (torch_npusim/include/torch_npusim/memory.h). Invariant: what they return lies in memory that
// npusim_malloc() has given out on that device; anything else is refused before it is used.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "allocator/allocator.h"

namespace torch_npusim {

struct PluggableFunctions {
  void* (*alloc)(std::int64_t bytes, int device, std::int64_t stream) = nullptr;
  void (*free)(void* address, std::int64_t bytes, int device, std::int64_t stream) = nullptr;
};

// pluggable_provider() acquires and releases through the functions, on the current stream of the
// calling thread. Providers are made once and never destroyed: memory may outlive everything.
npusim::alloc::Provider& pluggable_provider(const PluggableFunctions& functions,
                                            c10::DeviceIndex device);

}  // namespace torch_npusim
