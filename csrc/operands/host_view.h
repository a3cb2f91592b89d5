// SPDX-License-Identifier: BSD-3-Clause
// Host views: a CPU tensor over the same bytes as a device tensor, for CPU kernels to work on.
// Invariant: a view lives no longer than the call it was made for; what outlives the call goes
// through CpuCall::result().
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_npusim {

// host_view() copies sizes, strides, offset, conj and neg bits and the wrapped-number flag. Dense,
// quantized, strided nested, sparse COO and sparse compressed tensors; others raise
// NotImplementedError.
// A tensor that is not on the device is returned as it is.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace torch_npusim
