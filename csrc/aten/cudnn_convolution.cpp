// SPDX-License-Identifier: BSD-3-Clause
// The operators by which CUDA's convolutions reach cuDNN, for programs that call them by name: the
// convolution itself, whose derivative torch has.
#include <ATen/ops/convolution.h>
#include <torch/library.h>

namespace torch_npusim {

namespace {

at::Tensor cudnn_convolve(const at::Tensor& self, const at::Tensor& weight, at::IntArrayRef padding,
                          at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups,
                          bool /*benchmark*/, bool /*deterministic*/, bool /*allow_tf32*/) {
  const std::vector<int64_t> none(padding.size(), 0);
  return at::convolution(self, weight, {}, stride, padding, dilation, false, none, groups);
}

at::Tensor cudnn_transposed(const at::Tensor& self, const at::Tensor& weight,
                            at::IntArrayRef padding, at::IntArrayRef output_padding,
                            at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups,
                            bool /*benchmark*/, bool /*deterministic*/, bool /*allow_tf32*/) {
  return at::convolution(self, weight, {}, stride, padding, dilation, true, output_padding, groups);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cudnn_convolution", &cudnn_convolve);
  m.impl("cudnn_convolution_transpose", &cudnn_transposed);
}

}  // namespace torch_npusim
