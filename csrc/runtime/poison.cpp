// SPDX-License-Identifier: BSD-3-Clause
// Fills behind the allocator; one relaxed load when off.
#include "csrc/runtime/poison.h"

#include <atomic>
#include <cstring>

namespace torch_npusim {

namespace {
std::atomic<npusim::PoisonMode> g_mode{npusim::PoisonMode::off};
}  // namespace

npusim::PoisonMode poison_mode() noexcept { return g_mode.load(std::memory_order_relaxed); }

void set_poison_mode(npusim::PoisonMode mode) noexcept {
  g_mode.store(mode, std::memory_order_relaxed);
}

void poison_fresh(void* device_address, std::size_t bytes) noexcept {
  const npusim::PoisonMode mode = poison_mode();
  if (mode != npusim::PoisonMode::fresh && mode != npusim::PoisonMode::all) return;
  std::memset(npusim::kernel_alias(device_address), npusim::kPoisonFresh, bytes);
}

void poison_freed(void* device_address, std::size_t bytes) noexcept {
  const npusim::PoisonMode mode = poison_mode();
  if (mode != npusim::PoisonMode::freed && mode != npusim::PoisonMode::all) return;
  std::memset(npusim::kernel_alias(device_address), npusim::kPoisonFreed, bytes);
}

}  // namespace torch_npusim
