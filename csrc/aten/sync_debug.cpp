// SPDX-License-Identifier: BSD-3-Clause
// Host synchronisation reports.
#include "csrc/aten/sync_debug.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace torch_npusim {

namespace {
std::atomic<SyncDebugMode> g_mode{SyncDebugMode::off};
}  // namespace

SyncDebugMode sync_debug_mode() noexcept { return g_mode.load(std::memory_order_relaxed); }

void set_sync_debug_mode(SyncDebugMode mode) noexcept {
  g_mode.store(mode, std::memory_order_relaxed);
}

void note_host_sync(const char* what) {
  const SyncDebugMode mode = sync_debug_mode();
  if (C10_LIKELY(mode == SyncDebugMode::off)) return;
  TORCH_CHECK(mode != SyncDebugMode::error, "called a synchronizing npusim operation: ", what);
  TORCH_WARN("called a synchronizing npusim operation: ", what);
}

}  // namespace torch_npusim
