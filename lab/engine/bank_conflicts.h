// SPDX-License-Identifier: BSD-3-Clause
// The metric of placement in interleaved banks (placement/banks.h), for any policy.
#pragma once

#include <cstdint>
#include <span>

#include "allocator/placement/banks.h"
#include "lab/engine/names.h"
#include "lab/engine/trace.h"

namespace npusim::lab {

// count_bank_conflicts() judges the placements of a replay: addresses per malloc, 0 where it
// failed.
BankConflicts count_bank_conflicts(const Trace& trace, std::span<const std::uint64_t> addresses,
                                   const Banks& banks);

}  // namespace npusim::lab
