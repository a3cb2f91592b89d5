// SPDX-License-Identifier: BSD-3-Clause
// Which devices this process sees. As CUDA does, it looks at the variable again until it uses a
// device: programs set it after their imports.
#pragma once

#include <vector>

namespace npusim {

// visible_devices() maps a device's number to the configured one; throws as config() does.
const std::vector<int>& visible_devices();

// visible_devices_now() is what the variables say.
std::vector<int> visible_devices_now();

// follow_cuda() says whether the CUDA alias is on: CUDA_VISIBLE_DEVICES is one of them then, as it
// is with NPUSIM_AS_CUDA=1.
void follow_cuda(bool on) noexcept;

}  // namespace npusim
