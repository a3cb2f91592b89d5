// SPDX-License-Identifier: BSD-3-Clause
// skyline_plan(): the best-fit heuristic for dynamic storage allocation (Sekiyama and others,
// 2018).
//
//   offset |      ####                  The skyline is how high each moment is filled. Its lowest
//          |  ########____ ##           line (here "____") takes, of the buffers that live within
//          |##############________      it, the longest-lived one; a line that none fits rises to
//          +----------------------> t   the lower of its neighbours.
#pragma once

#include <cstdint>
#include <span>

#include "lab/engine/plan.h"

namespace npusim::lab {

// What a line prefers among the buffers that fit.
enum class SkylineChoice : std::uint8_t {
  lifetime,  // the longest-lived
  bytes,
  area,
  snug,  // one that ends where the line ends, best at the height of its neighbour there
};

Plan skyline_plan(std::span<const Buffer> buffers, SkylineChoice choice);

}  // namespace npusim::lab
