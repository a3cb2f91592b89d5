// SPDX-License-Identifier: BSD-3-Clause
// Time of the host for a command beside its launch: of a layer above, which this one does not know.
#pragma once

#include <cstdint>

#include "backend/slow_path.h"

namespace npusim {

namespace detail {
// Of slow_path.h: a layer is set.
inline constexpr auto kHostLayer = static_cast<SlowPath>(1U << 9);
}  // namespace detail

// set_host_layer() lets layer() nanoseconds pass on the host before each command that a program
// launches itself; nullptr: none do. The replay of a graph and its capture have no such time.
using HostLayer = std::int64_t (*)();
void set_host_layer(HostLayer layer) noexcept;

}  // namespace npusim
