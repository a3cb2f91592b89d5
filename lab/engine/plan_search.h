// SPDX-License-Identifier: BSD-3-Clause
// Lowers a plan: takes the problem apart, and searches for a placement of each part within less.
//
//   - What lives as long as all others of a part stands below them: a part without it.
//   - Where no buffer lives across a moment, what is before and after it are two parts.
//   - A part whose heuristic plan is too high is searched (valley_search.h), glued and as it is,
//     mode after mode, with larger limits each round. Glued problems are small and mostly enough;
//     only the problem as it is can prove that there is no placement.
#pragma once

#include <optional>
#include <span>

#include "lab/engine/plan.h"

namespace npusim::lab {

// search_lower() replaces `plan` by a lower one where it finds one: within the capacity, if one is
// asked for, otherwise as low as it can. Heights below a capacity are searched first, so that a
// plan found for less is found for more. It raises plan.at_least by what it proves.
void search_lower(std::span<const Buffer> buffers, std::optional<std::uint64_t> capacity,
                  const PlanEffort& effort, Plan& plan);

}  // namespace npusim::lab
