// SPDX-License-Identifier: BSD-3-Clause
// The observer of host synchronisations.
#include "csrc/runtime/host_sync.h"

#include <c10/macros/Macros.h>

#include <atomic>

namespace torch_npusim {

namespace {
std::atomic<SyncObserver> g_observer{nullptr};

void tell_observer(const char* what, bool hidden) {
  const SyncObserver observer = g_observer.load(std::memory_order_acquire);
  if (C10_UNLIKELY(observer != nullptr)) observer(what, hidden);
}
}  // namespace

void set_sync_observer(SyncObserver observer) noexcept {
  g_observer.store(observer, std::memory_order_release);
}

void before_hidden_wait(const char* what) { tell_observer(what, /*hidden=*/true); }
void before_explicit_wait(const char* what) { tell_observer(what, /*hidden=*/false); }

}  // namespace torch_npusim
