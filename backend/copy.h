// SPDX-License-Identifier: BSD-3-Clause
// Copies between host and device, within a device and between devices, as commands (rule S6).
// Invariant: the kind of a copy follows from the two addresses; translation happens here only.
#pragma once

#include <cstddef>

#include "backend/command.h"

namespace npusim {

// copy_kind() tells the kind from the addresses. Throws InvalidArgument when both are of the host.
CommandKind copy_kind(const void* dst, const void* src);

// copy() copies `bytes` in stream order. `blocking` waits for the stream; so does, always, a copy
// from the device to host memory that is not pinned. Within one device the ranges may overlap.
// Zero bytes are a no-op. Throws InvalidArgument, or DeviceFault where it waits.
void copy(void* dst, const void* src, std::size_t bytes, Stream& stream, bool blocking);

}  // namespace npusim
