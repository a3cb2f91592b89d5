// SPDX-License-Identifier: BSD-3-Clause
// A device that is lost for a reason of its own, beside the faults that are injected (fault.h).
#pragma once

#include <string>

namespace npusim {

// lose_device() makes `text` what the device reports at its next synchronising call, and from then
// on at every call, as a `device` fault does (rule F5), until clear_faults(). A fault that is not
// reported yet outweighs it.
void lose_device(int device, const std::string& text);

}  // namespace npusim
