// SPDX-License-Identifier: BSD-3-Clause
// Types of allocator/ keep their names in the laboratory: Address, Config, SegmentInfo and so on.
#pragma once

namespace npusim::alloc {}

namespace npusim::lab {

using namespace alloc;

}  // namespace npusim::lab
