// SPDX-License-Identifier: BSD-3-Clause
// NPUSIM_STRICT_ALIGN: what happens to operands whose first element is not on a 32-byte boundary
// (rule A2). Storages always are; views with an offset need not be.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

#include "backend/backend.h"

namespace torch_npusim {

// The boundary of rule A1, in bytes.
constexpr std::uintptr_t kAlignmentBytes = 32;

using npusim::StrictAlign;

StrictAlign strict_align() noexcept;
void set_strict_align(StrictAlign mode) noexcept;

// check_alignment() raises in error mode when `operand` is misaligned.
void check_alignment(const char* op, const at::TensorBase& operand);

// must_realign() says, in copy mode, that a kernel needs an aligned copy of `operand`; it counts.
bool must_realign(const at::TensorBase& operand);

// realigned_count() is the number of operands copied since the process started.
std::int64_t realigned_count() noexcept;

}  // namespace torch_npusim
