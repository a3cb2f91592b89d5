// SPDX-License-Identifier: BSD-3-Clause
// Comparisons of two tensors, or of a tensor and a number. Cost: one operation per element.
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/ne_ops.h>
#include <torch/library.h>

#include <cmath>

#include "csrc/routes/pointwise.h"

namespace torch_npusim {

namespace {

// Numbers that every dtype of their category holds; core refuses to compare with one that the
// tensor's dtype cannot.
bool fits_any_dtype(const at::Scalar& number) {
  if (number.type() == at::kLong) return -128 <= number.toLong() && number.toLong() < 128;
  return number.isFloatingPoint() && std::abs(number.toDouble()) < 1e4;
}

template <class Op, auto& stub>
at::Tensor compare_with_number(const at::Tensor& self, const at::Scalar& number) {
  DenseCall dense(kFloats | dtype_set(at::kLong));
  if (!number.isComplex() && !number.isSymbolic() && fits_any_dtype(number)) {
    const at::Tensor& wrapped = wrapped_number(number);
    dense.add(self);
    dense.add(wrapped);
    if (dense.takes()) {
      return dense.run(kQualifiedName<Op>.c_str(), /*bool_result=*/true,
                       [](DenseIterator& iter) { run_stub<stub>(iter); });
    }
  }
  return CpuKernel<Op>::call(self, number);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define NPUSIM_COMPARISON(name)                                                                  \
  register_pointwise<Pointwise<at::_ops::name##_Tensor, at::native::name##_stub, kReals | kBool, \
                               PointwiseResult::boolean>>(m);                                    \
  m.impl(#name ".Scalar", &compare_with_number<at::_ops::name##_Scalar, at::native::name##_stub>);
  NPUSIM_COMPARISON(eq)
  NPUSIM_COMPARISON(ne)
  NPUSIM_COMPARISON(lt)
  NPUSIM_COMPARISON(le)
  NPUSIM_COMPARISON(gt)
  NPUSIM_COMPARISON(ge)
#undef NPUSIM_COMPARISON
}

}  // namespace torch_npusim
