// SPDX-License-Identifier: BSD-3-Clause
// The policies that a replay knows by name: those of placement/, which also run live, and two that
// need the trace, or a device that stitches.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "allocator/placement/placement_policy.h"
#include "lab/engine/names.h"
#include "lab/engine/trace.h"

namespace npusim::lab {

// built_in_policies() lists what make_policy() knows, presets of the caching allocator not
// included.
std::vector<PolicyName> built_in_policies();

// make_policy() takes one of those names, or the path of a shared library. Device and trace must
// outlive the policy. Throws InvalidArgument.
std::unique_ptr<PlacementPolicy> make_policy(std::string_view name, std::string_view settings,
                                             PlacementDevice& device, const Trace& trace);

// For policies.cpp, from the files named like them.
std::unique_ptr<PlacementPolicy> make_stitching_policy(PolicySettings&, PlacementDevice&);
std::unique_ptr<PlacementPolicy> make_planned_policy(PolicySettings&, PlacementDevice&,
                                                     const Trace&);

}  // namespace npusim::lab
