// SPDX-License-Identifier: BSD-3-Clause
// The policies that need nothing but a device, one file each. make_live_policy() of
// placement_policy.h finds them by name; nobody else needs this header.
#pragma once

#include <memory>
#include <string_view>

#include "allocator/placement/placement_policy.h"

namespace npusim::alloc {

using PolicyPointer = std::unique_ptr<PlacementPolicy>;

PolicyPointer make_bfc_policy(PolicySettings&, PlacementDevice&);
PolicyPointer make_buddy_policy(PolicySettings&, PlacementDevice&);
PolicyPointer make_banked_policy(PolicySettings&, PlacementDevice&);
// Five in fit_policy.cpp.
PolicyPointer make_best_fit_policy(PolicySettings&, PlacementDevice&);
PolicyPointer make_first_fit_policy(PolicySettings&, PlacementDevice&);
PolicyPointer make_next_fit_policy(PolicySettings&, PlacementDevice&);
PolicyPointer make_tlsf_policy(PolicySettings&, PlacementDevice&);
PolicyPointer make_bins_policy(PolicySettings&, PlacementDevice&);

// release_lent() releases the segment that begins at an address, for policies that are not trusted
// to name one: any other address is refused.
void release_lent(PlacementDevice& device, Address address);

// load_policy() takes the path of a shared library that implements policy_abi.h.
PolicyPointer load_policy(std::string_view path, std::string_view settings, PlacementDevice&);

}  // namespace npusim::alloc
