// SPDX-License-Identifier: BSD-3-Clause
// set_sync_debug_mode: report operations that make the host wait for the device.
#pragma once

#include <cstdint>

namespace torch_npusim {

enum class SyncDebugMode : std::uint8_t { off = 0, warn = 1, error = 2 };

SyncDebugMode sync_debug_mode() noexcept;
void set_sync_debug_mode(SyncDebugMode mode) noexcept;

// note_host_sync() is called where the host is about to wait; `what` names the operation.
void note_host_sync(const char* what);

}  // namespace torch_npusim
