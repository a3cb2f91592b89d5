// SPDX-License-Identifier: BSD-3-Clause
// The errors this layer raises, split by what the caller can do about them. Running out of memory
// is not one of them: it is an expected outcome and comes back as a value (out_of_memory.h).
// Whatever is thrown, the allocator is as it was before the call.
#pragma once

#include <stdexcept>

namespace npusim::alloc {

// The caller asked for something that makes no sense: a bad setting, a block freed twice, a foreign
// pointer. The text names what was given, what was expected and what to do.
struct InvalidArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

}  // namespace npusim::alloc
