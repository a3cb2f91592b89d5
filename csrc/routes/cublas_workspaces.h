// SPDX-License-Identifier: BSD-3-Clause
// Where the workspaces of cuBLAS are that csrc/routes/cuda_temporaries.cpp allocates and keeps.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <utility>
#include <vector>

namespace torch_npusim {

// cublas_workspaces() returns device and address of those that the dry run holds now.
std::vector<std::pair<c10::DeviceIndex, const void*>> cublas_workspaces();

// cublas_workspace_bytes() is the size of the next one on a device. A size that is chosen counts
// before the variable CUBLAS_WORKSPACE_CONFIG; std::nullopt takes the choice back.
std::size_t cublas_workspace_bytes(c10::DeviceIndex device);
void choose_cublas_workspace_bytes(std::optional<std::size_t> bytes);

// clear_cublas_workspaces() gives back those that the dry run holds.
void clear_cublas_workspaces();

}  // namespace torch_npusim
