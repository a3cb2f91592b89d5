// SPDX-License-Identifier: BSD-3-Clause
// Observers of out-of-memory errors, as torch has them for CUDA: called before the error is raised,
// on the thread that asked for memory, with no lock of the allocator. One that throws has its own
// exception raised instead. None is ever detached.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "allocator/allocator.h"

namespace torch_npusim {

using OutOfMemoryObserver =
    std::function<void(const npusim::alloc::OutOfMemoryReport& report, c10::DeviceIndex device)>;
void attach_out_of_memory_observer(OutOfMemoryObserver observer);
void tell_out_of_memory_observers(const npusim::alloc::OutOfMemoryReport& report,
                                  c10::DeviceIndex device);

// The words replace the allocator's own advice, unless they are empty. It must not throw.
using OutOfMemoryAdviser = std::function<std::string(const npusim::alloc::OutOfMemoryReport& report,
                                                     c10::DeviceIndex device)>;
void set_out_of_memory_adviser(OutOfMemoryAdviser adviser);
std::string out_of_memory_advice(const npusim::alloc::OutOfMemoryReport& report,
                                 c10::DeviceIndex device);

}  // namespace torch_npusim
