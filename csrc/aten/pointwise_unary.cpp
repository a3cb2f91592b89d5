// SPDX-License-Identifier: BSD-3-Clause
// Pointwise operators of one tensor. Adding an operator is its name in the table and one include.
// Cost: one operation per element.
#include <ATen/core/Tensor.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/acos_ops.h>
#include <ATen/ops/acosh_ops.h>
#include <ATen/ops/asin_ops.h>
#include <ATen/ops/asinh_ops.h>
#include <ATen/ops/atan_ops.h>
#include <ATen/ops/atanh_ops.h>
#include <ATen/ops/bitwise_not_ops.h>
#include <ATen/ops/ceil_ops.h>
#include <ATen/ops/conj_physical_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cosh_ops.h>
#include <ATen/ops/digamma_ops.h>
#include <ATen/ops/erf_ops.h>
#include <ATen/ops/erfc_ops.h>
#include <ATen/ops/exp2_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expm1_ops.h>
#include <ATen/ops/floor_ops.h>
#include <ATen/ops/isnan_ops.h>
#include <ATen/ops/lgamma_ops.h>
#include <ATen/ops/log10_ops.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log2_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/round_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sign_ops.h>
#include <ATen/ops/signbit_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sinh_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/tan_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/trunc_ops.h>
#include <torch/library.h>

#include "csrc/routes/pointwise.h"

namespace torch_npusim {

namespace {

// clang-format off
// X(operator): its own stub, out of place and in place, for floating dtypes. Integers promote, or
// are copied by ceil() and its like, on route ii.
#define NPUSIM_UNARY(X) \
  X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(cos) X(cosh) X(digamma) X(erf) X(erfc) \
  X(exp) X(exp2) X(expm1) X(lgamma) X(log) X(log10) X(log1p) X(log2) X(reciprocal) \
  X(rsqrt) X(sigmoid) X(sin) X(sinh) X(sqrt) X(tan) X(tanh) X(ceil) X(floor) X(round) X(trunc)
// clang-format on

template <class Op, auto& stub, Dtypes dtypes>
using Unary = Pointwise<Op, stub, dtypes>;

// x != x, as core defines it.
at::Tensor isnan(const at::Tensor& self) {
  DenseCall dense(kFloats);
  dense.add(self);
  dense.add(self);
  if (!dense.takes()) return CpuKernel<at::_ops::isnan>::call(self);
  return dense.run("aten::isnan", /*bool_result=*/true,
                   [](DenseIterator& iter) { run_stub<at::native::ne_stub>(iter); });
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
#define NPUSIM_REGISTER(name)                                     \
  register_pointwise<Unary<at::_ops::name, name##_stub, kFloats>, \
                     Unary<at::_ops::name##_, name##_stub, kFloats>>(m);
  NPUSIM_UNARY(NPUSIM_REGISTER)
#undef NPUSIM_REGISTER
  register_pointwise<
      Unary<at::_ops::abs, abs_stub, kReals>, Unary<at::_ops::abs_, abs_stub, kReals>,
      Unary<at::_ops::neg, neg_stub, kReals>, Unary<at::_ops::neg_, neg_stub, kReals>,
      Unary<at::_ops::sign, sign_stub, kReals>, Unary<at::_ops::sign_, sign_stub, kReals>,
      Unary<at::_ops::sgn, sign_stub, kReals>, Unary<at::_ops::sgn_, sign_stub, kReals>,
      Unary<at::_ops::bitwise_not, bitwise_not_stub, kInts | kBool>,
      Unary<at::_ops::bitwise_not_, bitwise_not_stub, kInts | kBool>,
      Unary<at::_ops::logical_not, logical_not_stub, kBool>,
      Pointwise<at::_ops::signbit, signbit_stub, kFloats, PointwiseResult::boolean>>(m);
  m.impl("isnan", &isnan);
  // Core's in-place form would call the stub on the device.
  register_cpu_kernels<at::_ops::conj_physical_>(m);
}

}  // namespace torch_npusim
