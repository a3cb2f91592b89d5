// SPDX-License-Identifier: BSD-3-Clause
// Counting, for any policy.
#include "lab/engine/bank_conflicts.h"

#include <algorithm>

#include "allocator/error.h"
#include "lab/engine/names.h"

namespace npusim::lab {

BankConflicts count_bank_conflicts(const Trace& trace, std::span<const std::uint64_t> addresses,
                                   const Banks& banks) {
  if (addresses.size() != trace.mallocs()) {
    throw InvalidArgument("bank conflicts: there are " + std::to_string(addresses.size()) +
                          " addresses for " + std::to_string(trace.mallocs()) +
                          " mallocs; expected one each");
  }
  BankConflicts out;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i] == 0) continue;
    const std::int64_t now = trace.malloc_event()[i];
    for (std::size_t back = 1; back <= std::min<std::size_t>(i, banks.window); ++back) {
      if (addresses[i - back] == 0 || trace.free_event()[i - back] < now) continue;
      ++out.pairs;
      out.conflicts += banks.of(addresses[i]) == banks.of(addresses[i - back]);
    }
  }
  return out;
}

}  // namespace npusim::lab
