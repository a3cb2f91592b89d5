// SPDX-License-Identifier: BSD-3-Clause
// Activation functions and their derivatives. gelu() stays on route ii: the CPU hands it to oneDNN,
// which wants tensors. Cost: one operation per element.
#include <ATen/core/Tensor.h>
#include <ATen/native/Activation.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/hardshrink_backward_ops.h>
#include <ATen/ops/hardshrink_ops.h>
#include <ATen/ops/hardsigmoid_backward_ops.h>
#include <ATen/ops/hardsigmoid_ops.h>
#include <ATen/ops/hardswish_backward_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_backward_ops.h>
#include <ATen/ops/leaky_relu_backward_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/mish_backward_ops.h>
#include <ATen/ops/mish_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/softplus_backward_ops.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <torch/library.h>

#include "csrc/routes/pointwise.h"

namespace torch_npusim {

namespace {

// self <= threshold ? 0 : grad; the loop wants self first.
at::Tensor threshold_backward(const at::Tensor& grad, const at::Tensor& self,
                              const at::Scalar& threshold) {
  DenseCall dense(kFloats);
  dense.add(self);
  dense.add(grad);
  dense.add(threshold);
  if (!dense.takes()) {
    return CpuKernel<at::_ops::threshold_backward>::call(grad, self, threshold);
  }
  return dense.run("aten::threshold_backward", /*bool_result=*/false, [&](DenseIterator& iter) {
    run_stub<at::native::threshold_stub>(iter, threshold, at::Scalar(0));
  });
}

// The result of the in-place form tells what self was only if the slope is not negative.
at::Tensor leaky_relu_backward(const at::Tensor& grad, const at::Tensor& self,
                               const at::Scalar& slope, bool self_is_result) {
  DenseCall dense(kFloats);
  dense.add(self);
  dense.add(grad);
  dense.add(slope);
  if (self_is_result || !dense.takes()) {
    return CpuKernel<at::_ops::leaky_relu_backward>::call(grad, self, slope, self_is_result);
  }
  return dense.run("aten::leaky_relu_backward", /*bool_result=*/false, [&](DenseIterator& iter) {
    run_stub<at::native::leaky_relu_backward_stub>(iter, slope);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
  m.impl("threshold_backward", &threshold_backward);
  m.impl("leaky_relu_backward", &leaky_relu_backward);
  register_cpu_kernels<at::_ops::gelu, at::_ops::gelu_, at::_ops::gelu_backward>(m);
  register_pointwise<
      Pointwise<at::_ops::elu, elu_stub, kFloats>, Pointwise<at::_ops::elu_, elu_stub, kFloats>,
      Pointwise<at::_ops::hardshrink, hardshrink_stub, kFloats>,
      Pointwise<at::_ops::hardshrink_backward, shrink_backward_stub, kFloats>,
      Pointwise<at::_ops::hardsigmoid, hardsigmoid_stub, kFloats>,
      Pointwise<at::_ops::hardsigmoid_, hardsigmoid_stub, kFloats>,
      Pointwise<at::_ops::hardsigmoid_backward, hardsigmoid_backward_stub, kFloats>,
      Pointwise<at::_ops::hardswish, hardswish_stub, kFloats>,
      Pointwise<at::_ops::hardswish_, hardswish_stub, kFloats>,
      Pointwise<at::_ops::hardswish_backward, hardswish_backward_stub, kFloats>,
      Pointwise<at::_ops::hardtanh_backward, hardtanh_backward_stub, kFloats>,
      Pointwise<at::_ops::leaky_relu, leaky_relu_stub, kFloats>,
      Pointwise<at::_ops::leaky_relu_, leaky_relu_stub, kFloats>,
      Pointwise<at::_ops::mish, mish_stub, kFloats>, Pointwise<at::_ops::mish_, mish_stub, kFloats>,
      Pointwise<at::_ops::mish_backward, mish_backward_stub, kFloats>,
      Pointwise<at::_ops::silu, silu_stub, kFloats>, Pointwise<at::_ops::silu_, silu_stub, kFloats>,
      Pointwise<at::_ops::silu_backward, silu_backward_stub, kFloats>,
      Pointwise<at::_ops::softplus, softplus_stub, kFloats>,
      Pointwise<at::_ops::softplus_backward, softplus_backward_stub, kFloats>>(m);
}

}  // namespace torch_npusim
