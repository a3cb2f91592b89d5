// SPDX-License-Identifier: BSD-3-Clause
// Operators of the host on pinned memory, told to the observers: what the host does while a copy is
// under way. Operators only; whoever reads through a pointer (NumPy, a file) is not seen.
#pragma once

namespace torch_npusim {

// watch_host_accesses() begins a watch, or ends it with nullptr. `settle` is called after an
// access, where nothing may be thrown. Operators pay for it once there is pinned memory.
void watch_host_accesses(void (*settle)());

// note_pinned_memory() says that there is pinned memory.
void note_pinned_memory();

}  // namespace torch_npusim
