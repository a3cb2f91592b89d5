// SPDX-License-Identifier: BSD-3-Clause
// A device that is lost for a reason of the layer above (a device-side assert), without an injected
// fault (fault.h).
#pragma once

#include <string>

namespace npusim {

// lose_device() makes the device report `text` at its next synchronising call, and from then on at
// every call, as a `device` fault does (rule F5), until clear_faults(). A pending fault is kept
// instead. Thread-safe. Throws InvalidArgument in a forked child.
void lose_device(int device, const std::string& text);

}  // namespace npusim
