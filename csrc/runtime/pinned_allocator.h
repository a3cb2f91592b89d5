// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory: torch's caching host allocator over the simulator's pinned memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_npusim {

// pinned_allocator() is the object registered with at::setHostAllocator.
at::HostAllocator* pinned_allocator() noexcept;

void register_pinned_allocator();

// record_pinned_stream() is record_stream() of pinned memory: the block is not handed out again
// before the work that `stream` has so far (an asynchronous copy from or to it) is done.
void record_pinned_stream(const c10::DataPtr& host_data, const c10::Stream& stream);

}  // namespace torch_npusim
