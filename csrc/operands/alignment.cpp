// SPDX-License-Identifier: BSD-3-Clause
// Strict alignment of operands.
#include "csrc/operands/alignment.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "backend/backend.h"

namespace torch_npusim {

namespace {

std::atomic<StrictAlign> g_mode{StrictAlign::off};
std::atomic<std::int64_t> g_realigned{0};

bool misaligned(const at::TensorBase& operand) {
  if (!operand.is_privateuseone() || !operand.has_storage() || operand.numel() == 0) return false;
  return reinterpret_cast<std::uintptr_t>(operand.const_data_ptr()) % kAlignmentBytes != 0;
}

}  // namespace

StrictAlign strict_align() noexcept { return g_mode.load(std::memory_order_relaxed); }

void set_strict_align(StrictAlign mode) noexcept { g_mode.store(mode, std::memory_order_relaxed); }

void check_alignment(const char* op, const at::TensorBase& operand) {
  if (C10_LIKELY(strict_align() != StrictAlign::error) || !misaligned(operand)) return;
  const auto address = reinterpret_cast<std::uintptr_t>(operand.const_data_ptr());
  TORCH_CHECK(false, op, ": an operand of shape ", operand.sizes(), " and dtype ", operand.dtype(),
              " starts at device address 0x", std::hex, address, std::dec, ", which is ",
              address % kAlignmentBytes, " bytes past a ", kAlignmentBytes,
              "-byte boundary (storage offset ", operand.storage_offset(),
              "). NPUSIM_STRICT_ALIGN=error refuses it. Begin the view at a multiple of ",
              kAlignmentBytes / operand.element_size(),
              " elements: pad what lies before it; or have it copied: NPUSIM_STRICT_ALIGN=copy, or "
              "torch_npusim.sim.alignment.use_mode(\"copy\") around this line.");
}

bool must_realign(const at::TensorBase& operand) {
  if (C10_LIKELY(strict_align() != StrictAlign::copy) || !misaligned(operand)) return false;
  g_realigned.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::int64_t realigned_count() noexcept { return g_realigned.load(std::memory_order_relaxed); }

}  // namespace torch_npusim
