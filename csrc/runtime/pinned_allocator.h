// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory: torch's caching host allocator over the simulator's pinned memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_npusim {

// pinned_allocator() is the object registered with at::setHostAllocator.
at::HostAllocator* pinned_allocator() noexcept;

void register_pinned_allocator();

// note_pinned_use() tells the allocator that `stream` uses a pinned host tensor until the work
// queued so far is done (an asynchronous copy from or to it).
void note_pinned_use(const c10::DataPtr& host_data, const c10::Stream& stream);

}  // namespace torch_npusim
