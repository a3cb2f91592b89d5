// SPDX-License-Identifier: BSD-3-Clause
// Device indices as torch passes them: -1 for "the current one", unchecked by core.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "backend/backend.h"

namespace torch_npusim {

// checked_device() resolves -1 to the current device and raises for an index that does not exist
// or in a forked child; initialises the simulator.
c10::DeviceIndex checked_device(c10::DeviceIndex device);
c10::DeviceIndex checked_device(const std::optional<c10::Device>& device);

// backend_stream() returns the simulator's stream behind a torch stream.
npusim::Stream& backend_stream(const c10::Stream& stream);
c10::Stream torch_stream(const npusim::Stream& stream);

}  // namespace torch_npusim
