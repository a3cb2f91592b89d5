// SPDX-License-Identifier: BSD-3-Clause
// The launchers of the devices, for compiled code and for extensions without tensors.
#pragma once

#include "torch_npusim/include/torch_npusim/launcher.h"

namespace torch_npusim {

// device_launcher() returns the launcher of `device`, which lives as long as the process.
// Initialises the simulator; raises c10::Error if there is no such device.
const DeviceLauncher& device_launcher(int device);

}  // namespace torch_npusim
