// SPDX-License-Identifier: BSD-3-Clause
// violations(): an independent judge of an allocator's state. It recomputes everything the slow way
// from the picture alone and shares no code with the allocator. Tests call it after every event;
// the lab on demand. (validate() of config.h judges settings, this judges state.)
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "allocator/snapshot.h"

namespace npusim::alloc {

// violations() lists what is wrong, in words; empty means every invariant holds. `lent`, if given,
// is what the provider believes it has lent: address -> bytes.
std::vector<std::string> violations(const Snapshot& picture,
                                    const std::map<Address, std::size_t>* lent = nullptr);

}  // namespace npusim::alloc
