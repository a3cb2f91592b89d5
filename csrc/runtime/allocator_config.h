// SPDX-License-Identifier: BSD-3-Clause
// Which rules the live allocators run under: NPUSIM_ALLOCATOR, then PYTORCH_ALLOC_CONF.
#pragma once

#include "allocator/allocator.h"

namespace torch_npusim {

// configured_allocator() reads "preset[,key:value...]" from NPUSIM_ALLOCATOR and applies the keys
// of PYTORCH_ALLOC_CONF on top. Raises, naming the variable, for a text that is not understood.
npusim::alloc::Config configured_allocator();

}  // namespace torch_npusim
