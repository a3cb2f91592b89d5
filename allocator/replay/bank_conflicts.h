// SPDX-License-Identifier: BSD-3-Clause
// Banks: memory whose addresses go round a number of banks, a stride at a time. What one operation
// reads and writes together should begin in different banks. A conflict is a pair of an allocation
// and one of the `window` allocations before it, still live, that begin in the same bank.
#pragma once

#include <cstdint>
#include <span>

#include "allocator/provider.h"
#include "allocator/replay/trace.h"

namespace npusim::alloc {

struct Banks {
  std::uint64_t count = 32;
  std::uint64_t stride_bytes = 512;
  std::uint64_t window = 3;
  std::uint64_t of(Address address) const noexcept { return address / stride_bytes % count; }
};

struct BankConflicts {
  std::uint64_t pairs = 0;
  std::uint64_t conflicts = 0;
};

// count_bank_conflicts() judges the placements of any policy: addresses per malloc, 0 where it
// failed.
BankConflicts count_bank_conflicts(const Trace& trace, std::span<const std::uint64_t> addresses,
                                   const Banks& banks);

}  // namespace npusim::alloc
