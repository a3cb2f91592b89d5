// SPDX-License-Identifier: BSD-3-Clause
// A device that is lost for a reason of the layer above (a device-side assert), without an injected
// fault (fault.h).
#pragma once

#include <string>
#include <vector>

namespace npusim {

// lose_device() makes the device report `text` at its next synchronising call, and from then on at
// every call, as a `device` fault does (rule F5), until clear_faults(); `told`: at every call from
// now on. A pending fault is kept instead. Thread-safe. Throws InvalidArgument in a forked child.
void lose_device(int device, const std::string& text, bool told = false);

// revive_devices() gives those devices back that were lost so, and returns them.
struct LostDevice {
  int device;
  std::string text;
  bool told;  // some call has reported it
};
std::vector<LostDevice> revive_devices();

}  // namespace npusim
