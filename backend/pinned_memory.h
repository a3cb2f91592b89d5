// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory: ordinary memory whose addresses are remembered, so that copies from and to it
// may be asynchronous (rule M6). Invariant: nothing is locked in RAM; pinning is simulated.
#pragma once

#include <cstddef>

namespace npusim {

// pinned_allocate() returns `bytes` > 0 aligned to 64 bytes. Thread-safe. Throws OutOfMemory when
// the host cannot back them, InvalidArgument for 0 bytes or in a forked child.
void* pinned_allocate(std::size_t bytes);

// pinned_free() takes a pointer from pinned_allocate() or nullptr. Does nothing in a forked child;
// another pointer is reported on stderr and ignored.
void pinned_free(void* pointer) noexcept;

// is_pinned() is true for every address inside a live pinned allocation; false in a forked child.
bool is_pinned(const void* pointer) noexcept;

// note_pinned_allocations() tells the observers of all live pinned allocations.
void note_pinned_allocations();

// pinned_bytes() is the sum of live pinned allocations.
std::size_t pinned_bytes() noexcept;

}  // namespace npusim
