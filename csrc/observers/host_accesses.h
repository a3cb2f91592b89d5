// SPDX-License-Identifier: BSD-3-Clause
// Operators of the host on pinned memory, told to the observers: a copy may still use that memory.
// Limit: reads and writes through a pointer (NumPy, a file) are not seen.
#pragma once

namespace torch_npusim {

// watch_host_accesses() begins a watch, or ends it with nullptr. `settle` is called after an
// access, where nothing may be thrown. Operators pay for it once there is pinned memory.
void watch_host_accesses(void (*settle)());

// watch_pinned_memory() is called when pinned memory is first allocated.
void watch_pinned_memory();

}  // namespace torch_npusim
