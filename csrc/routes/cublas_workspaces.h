// SPDX-License-Identifier: BSD-3-Clause
// Where the workspaces of cuBLAS are that csrc/routes/cuda_temporaries.cpp allocates and keeps.
#pragma once

#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace torch_npusim {

// cublas_workspaces() returns device and address of those that the dry run holds now.
std::vector<std::pair<c10::DeviceIndex, const void*>> cublas_workspaces();

}  // namespace torch_npusim
