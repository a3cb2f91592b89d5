// SPDX-License-Identifier: BSD-3-Clause
// Garbage in tensors that a failed command wrote (rule F3).
#pragma once

#include <ATen/core/TensorBase.h>

namespace torch_npusim {

// spoil() overwrites a dense tensor of the device: NaN, -1, 255 (bytes) or True. All other tensors,
// and undefined ones, stay as they are. Call it in the body of the command that failed.
void spoil(const at::TensorBase& written);

}  // namespace torch_npusim
