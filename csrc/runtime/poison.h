// SPDX-License-Identifier: BSD-3-Clause
// Poisoning of device memory (NPUSIM_POISON): fresh blocks are filled with 0xD0, freed ones with
// 0xDF, so that reads of uninitialised or freed memory show.
#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace torch_npusim {

npusim::PoisonMode poison_mode() noexcept;
void set_poison_mode(npusim::PoisonMode mode) noexcept;

void poison_fresh(void* device_address, std::size_t bytes) noexcept;
void poison_freed(void* device_address, std::size_t bytes) noexcept;

}  // namespace torch_npusim
