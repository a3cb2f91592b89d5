// SPDX-License-Identifier: BSD-3-Clause
// Pointwise operators of two tensors, or of a tensor and a number that core wrapped in one. Adding
// an operator is one line and one include. Cost: one operation per element.
#include <ATen/core/Tensor.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Pow.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/atan2_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/bitwise_xor_ops.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/fmax_ops.h>
#include <ATen/ops/fmin_ops.h>
#include <ATen/ops/fmod_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_or_ops.h>
#include <ATen/ops/logical_xor_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/remainder_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/xlogy_ops.h>
#include <torch/library.h>

#include "csrc/routes/pointwise.h"
#include "csrc/routes/structured.h"

namespace torch_npusim {

namespace {

// self + alpha * other. Core refuses a boolean alpha, and a floating one for integers.
bool may_scale(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  const bool floating = at::isFloatingType((self.is_privateuseone() ? self : other).scalar_type());
  return !alpha.isBoolean() && (floating || alpha.isIntegral(/*includeBool=*/false));
}

enum class Sign { plus, minus };

// A difference is a sum of the negated alpha. Negated only once it is known to be a number that has
// a negative: for a boolean core raises an error of its own.
template <class Op, Sign sign>
at::Tensor sum_of(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                  const at::Tensor* in_place) {
  DenseCall dense(kReals, Mixed::promoted);
  dense.add(self);
  dense.add(other);
  dense.add(alpha);
  if (!dense.takes(in_place) || !may_scale(self, other, alpha)) return {};
  return dense.run(kQualifiedName<Op>.c_str(), /*bool_result=*/false,
                   [factor = sign == Sign::plus ? alpha : -alpha](DenseIterator& iter) {
                     run_stub<at::native::add_stub>(iter, factor);
                   });
}

at::Tensor add(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  using Op = at::_ops::add_Tensor;
  at::Tensor out = sum_of<Op, Sign::plus>(self, other, alpha, nullptr);
  using OnHost = StructuredKernel<Op, at::native::structured_ufunc_add_CPU>;
  return out.defined() ? out : OnHost::call(self, other, alpha);
}
at::Tensor& add_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  using Op = at::_ops::add__Tensor;
  if (sum_of<Op, Sign::plus>(self, other, alpha, &self).defined()) return self;
  return CpuKernel<Op>::call(self, other, alpha);
}
at::Tensor sub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  using Op = at::_ops::sub_Tensor;
  at::Tensor out = sum_of<Op, Sign::minus>(self, other, alpha, nullptr);
  using OnHost = StructuredKernel<Op, at::native::structured_sub_out>;
  return out.defined() ? out : OnHost::call(self, other, alpha);
}
at::Tensor& sub_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  using Op = at::_ops::sub__Tensor;
  if (sum_of<Op, Sign::minus>(self, other, alpha, &self).defined()) return self;
  return CpuKernel<Op>::call(self, other, alpha);
}

// Exponents 0 and 1 are a fill and a copy on the CPU.
bool is_trivial(const at::Scalar& exponent) { return exponent.equal(0.0) || exponent.equal(1.0); }

template <class Op>
at::Tensor power_of(const at::Tensor& self, const at::Scalar& exponent,
                    const at::Tensor* in_place) {
  DenseCall dense(kFloats);
  dense.add(self);
  dense.add(exponent);
  if (!dense.takes(in_place) || is_trivial(exponent)) return {};
  return dense.run(kQualifiedName<Op>.c_str(), /*bool_result=*/false, [&](DenseIterator& iter) {
    run_stub<at::native::pow_tensor_scalar_stub>(iter, exponent);
  });
}
at::Tensor pow_scalar(const at::Tensor& self, const at::Scalar& exponent) {
  using Op = at::_ops::pow_Tensor_Scalar;
  at::Tensor out = power_of<Op>(self, exponent, nullptr);
  return out.defined() ? out : CpuKernel<Op>::call(self, exponent);
}
at::Tensor& pow_scalar_(at::Tensor& self, const at::Scalar& exponent) {
  using Op = at::_ops::pow__Scalar;
  if (power_of<Op>(self, exponent, &self).defined()) return self;
  return CpuKernel<Op>::call(self, exponent);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
  m.impl("add.Tensor", &add);
  m.impl("add_.Tensor", &add_);
  m.impl("sub.Tensor", &sub);
  m.impl("sub_.Tensor", &sub_);
  m.impl("pow.Tensor_Scalar", &pow_scalar);
  m.impl("pow_.Scalar", &pow_scalar_);
  constexpr PointwiseResult boolean = PointwiseResult::boolean;
  constexpr Dtypes bits = kInts | kBool;
  constexpr Dtypes all = kReals | kBool;
  register_pointwise<
      Pointwise<at::_ops::mul_Tensor, mul_stub, all, PointwiseResult::same_dtype,
                StructuredKernel<at::_ops::mul_Tensor, structured_mul_out>, Mixed::promoted>,
      Pointwise<at::_ops::mul__Tensor, mul_stub, all, PointwiseResult::same_dtype,
                CpuKernel<at::_ops::mul__Tensor>, Mixed::promoted>,
      Pointwise<at::_ops::div_Tensor, div_true_stub, kFloats, PointwiseResult::same_dtype,
                StructuredKernel<at::_ops::div_Tensor, structured_div_out>, Mixed::promoted>,
      Pointwise<at::_ops::div__Tensor, div_true_stub, kFloats, PointwiseResult::same_dtype,
                CpuKernel<at::_ops::div__Tensor>, Mixed::promoted>,
      Pointwise<at::_ops::maximum, maximum_stub, all>,
      Pointwise<at::_ops::minimum, minimum_stub, all>,
      Pointwise<at::_ops::fmax, fmax_stub, kFloats>, Pointwise<at::_ops::fmin, fmin_stub, kFloats>,
      Pointwise<at::_ops::fmod_Tensor, fmod_stub, kReals>,
      Pointwise<at::_ops::remainder_Tensor, remainder_stub, kReals>,
      Pointwise<at::_ops::atan2, atan2_stub, kFloats>,
      Pointwise<at::_ops::pow_Tensor_Tensor, pow_tensor_tensor_stub, kFloats>,
      Pointwise<at::_ops::xlogy_Tensor, xlogy_stub, kFloats>,
      Pointwise<at::_ops::bitwise_and_Tensor, bitwise_and_stub, bits>,
      Pointwise<at::_ops::bitwise_and__Tensor, bitwise_and_stub, bits>,
      Pointwise<at::_ops::bitwise_or_Tensor, bitwise_or_stub, bits>,
      Pointwise<at::_ops::bitwise_or__Tensor, bitwise_or_stub, bits>,
      Pointwise<at::_ops::bitwise_xor_Tensor, bitwise_xor_stub, bits>,
      Pointwise<at::_ops::bitwise_xor__Tensor, bitwise_xor_stub, bits>,
      Pointwise<at::_ops::logical_and, logical_and_stub, all, boolean>,
      Pointwise<at::_ops::logical_or, logical_or_stub, all, boolean>,
      Pointwise<at::_ops::logical_xor, logical_xor_stub, all, boolean>,
      Pointwise<at::_ops::sigmoid_backward, sigmoid_backward_stub, kFloats>,
      Pointwise<at::_ops::tanh_backward, tanh_backward_stub, kFloats>>(m);
}

}  // namespace torch_npusim
