// SPDX-License-Identifier: BSD-3-Clause
// The choice among CUDA's attention kernels, of torch 2.13 on a chip of some capability. Dry runs
// that allocate as CUDA does ask for each call. Elsewhere sdpa_kernel() without MATH asks: math
// would serve whatever the others refuse, and the choice is the CPU's.
#pragma once

#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace torch_npusim {

// A capability is 10 * major + minor. choose_as_cuda() is the first backend of torch's order that
// CUDA takes, math among them where the program allows it. Raises CUDA's error, after its warnings,
// where there is none.
at::SDPBackend choose_as_cuda(const sdp::sdp_params& params, int capability);

// can_take() is whether CUDA's kernel of that name takes these operands; `debug` warns why not.
bool can_take(at::SDPBackend backend, const sdp::sdp_params& params, int capability, bool debug);

}  // namespace torch_npusim
