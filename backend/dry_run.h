// SPDX-License-Identifier: BSD-3-Clause
// Dry runs: commands are launched, charged and observed, but nothing is computed and device memory
// has no backing (rules Y1-Y3). submit() skips its body; run_now() runs it, because results have to
// be made, and the body asks dry() before it touches memory.
#pragma once

#include "backend/slow_path.h"
#include "backend/spec.h"

namespace npusim {

// dry() is whether a dry run is on, of the whole process.
inline bool dry() noexcept { return detail::takes_slow_path(detail::kDry); }

// begin_dry() turns it on: until end_dry() all devices are as `spec` says. No other thread may use
// the devices during either call. Throws InvalidArgument if a dry run is on.
void begin_dry(const DeviceSpec& spec);
void end_dry();

}  // namespace npusim
