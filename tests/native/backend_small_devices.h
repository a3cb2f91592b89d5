// SPDX-License-Identifier: BSD-3-Clause
// Two devices of 64 MiB for the tests of memory; at the end of a test nothing may be alive.
#pragma once

#include <cstdlib>
#include <optional>

#include "backend/backend.h"
#include "backend/ram_budget.h"
#include "tests/native/check.h"

namespace npusim {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kCapacity = 64 * kMiB;

struct SmallDevices {
  SmallDevices() {
    setenv("NPUSIM_DEVICE_MEMORY", "64MiB", 1);
    initialize();
  }
  ~SmallDevices() noexcept(false) {
    clear_faults();
    set_ram_budget_for_testing(std::nullopt);
    for (const int device : {0, 1}) CHECK_EQ(memory_info(device).free_bytes, kCapacity);
    CHECK_EQ(touched_bytes(), 0);
  }
};

inline void* pointer(Address address) { return reinterpret_cast<void*>(address); }

inline char* bytes_of(Address address) {
  return static_cast<char*>(kernel_alias(pointer(address)));
}

}  // namespace npusim
