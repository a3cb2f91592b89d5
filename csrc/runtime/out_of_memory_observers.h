// SPDX-License-Identifier: BSD-3-Clause
// Observers of out-of-memory errors, as torch has them for CUDA: called before the error is raised,
// on the thread that asked for memory, with no lock of the allocator. One that throws has its own
// exception raised instead. None is ever detached.
#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "allocator/allocator.h"

namespace torch_npusim {

using OutOfMemoryObserver =
    std::function<void(const npusim::alloc::OutOfMemoryReport& report, c10::DeviceIndex device)>;
void attach_out_of_memory_observer(OutOfMemoryObserver observer);
void tell_out_of_memory_observers(const npusim::alloc::OutOfMemoryReport& report,
                                  c10::DeviceIndex device);

}  // namespace torch_npusim
