// SPDX-License-Identifier: BSD-3-Clause
// The choice among CUDA's attention kernels where the program leaves no way out: sdpa_kernel()
// without MATH. Otherwise math serves whatever the others refuse, and the choice is the CPU's.
#pragma once

#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace torch_npusim {

// set_sdp_capability() says whose conditions hold; major 0: nobody's, the choice is the CPU's.
void set_sdp_capability(int major, int minor) noexcept;

// chooses_as_cuda() is whether somebody's conditions hold for tensors of these kinds.
bool chooses_as_cuda(const sdp::sdp_params& params);

// choose_as_cuda() is the first backend of torch's order that CUDA would take. Raises CUDA's error,
// after its warnings, where there is none.
at::SDPBackend choose_as_cuda(const sdp::sdp_params& params);

// can_take() is whether CUDA's kernel of that name takes these operands; `debug` warns why not.
bool can_take(at::SDPBackend backend, const sdp::sdp_params& params, bool debug);

}  // namespace torch_npusim
