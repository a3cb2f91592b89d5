// SPDX-License-Identifier: BSD-3-Clause
// Buffers that may stand together as one: two stacked, two in a row, or four around a fifth.
//
// The patterns are those of plan_reduction.h, but nothing is decided: all that may be are listed,
// also of those listed before, and overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lab/engine/plan.h"

namespace npusim::lab {

struct Composition {
  Buffer whole;
  std::vector<std::uint32_t> members = {};  // buffers, and behind them compositions listed before
  std::vector<std::uint64_t> offsets = {};  // of the members, in the whole
};

// compositions() lists at most so many of plain buffers. Pairs are looked for in so many rounds,
// fours around a fifth until there are no others.
std::vector<Composition> compositions(std::span<const Buffer> buffers, unsigned rounds_of_pairs,
                                      std::size_t most);

}  // namespace npusim::lab
