// SPDX-License-Identifier: BSD-3-Clause
// mm, bmm, addmm and baddbmm with out_dtype: 16-bit operands, float32 result. The CPU has no such
// kernels; here the operands are widened first, which is exact, and the CPU's float32 product is
// the result. torch has no derivative for them on any device.
// Also _resize_output_ (torch's own).
#include <ATen/native/Resize.h>
#include <ATen/ops/_resize_output_native.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "csrc/routes/on_host_views.h"

namespace torch_npusim {

namespace {

using at::Tensor;

void check_dtypes(const char* op, const Tensor& operand, at::ScalarType out_dtype) {
  const at::ScalarType dtype = operand.scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  TORCH_CHECK(out_dtype == dtype || (out_dtype == at::kFloat && narrow), op,
              ": out_dtype must be the operands' dtype, or float32 for float16 and bfloat16 "
              "operands; got operands of ",
              dtype, " and out_dtype ", out_dtype);
}

// One command of the precision of the operands: a device with matrix units widens nothing.
template <class Product>
Tensor as_one_command(const char* op, const char* costed_as, Operands operands,
                      at::ScalarType out_dtype, const Product& product) {
  check_dtypes(op, Tensor(*operands.back()), out_dtype);
  const Account account({.formula = cost_formula(costed_as)}, operands);
  const npusim::CommandInfo info{op, npusim::CommandKind::kernel, account.cost()};
  return launch(info, common_device(op, operands, HostScalars::refused), [&] {
    const NoWrappers no_wrappers;
    Tensor result = product();
    account.settle(result);
    return result;
  });
}

Tensor mm_dtype(const Tensor& self, const Tensor& mat2, at::ScalarType out_dtype) {
  return as_one_command("aten::mm.dtype", "aten::mm", {&self, &mat2}, out_dtype,
                        [&] { return at::mm(self.to(out_dtype), mat2.to(out_dtype)); });
}

Tensor bmm_dtype(const Tensor& self, const Tensor& mat2, at::ScalarType out_dtype) {
  return as_one_command("aten::bmm.dtype", "aten::bmm", {&self, &mat2}, out_dtype,
                        [&] { return at::bmm(self.to(out_dtype), mat2.to(out_dtype)); });
}

Tensor addmm_dtype(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                   at::ScalarType out_dtype, const at::Scalar& beta, const at::Scalar& alpha) {
  return as_one_command("aten::addmm.dtype", "aten::addmm", {&self, &mat1, &mat2}, out_dtype, [&] {
    return at::addmm(self.to(out_dtype), mat1.to(out_dtype), mat2.to(out_dtype), beta, alpha);
  });
}

Tensor baddbmm_dtype(const Tensor& self, const Tensor& batch1, const Tensor& batch2,
                     at::ScalarType out_dtype, const at::Scalar& beta, const at::Scalar& alpha) {
  return as_one_command("aten::baddbmm.dtype", "aten::baddbmm", {&self, &batch1, &batch2},
                        out_dtype, [&] {
                          return at::baddbmm(self.to(out_dtype), batch1.to(out_dtype),
                                             batch2.to(out_dtype), beta, alpha);
                        });
}

// The out= forms: the result, copied into a tensor that the user gave.
template <auto functional, class... Args>
Tensor& into_out(Args... args, Tensor& out) {
  const Tensor result = functional(args...);
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), "expected out to have dtype ",
              result.scalar_type(), " (the out_dtype given), got ", out.scalar_type());
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm.dtype", &mm_dtype);
  m.impl("bmm.dtype", &bmm_dtype);
  m.impl("addmm.dtype", &addmm_dtype);
  m.impl("baddbmm.dtype", &baddbmm_dtype);
  using Product = const Tensor&;
  using Factor = const at::Scalar&;
  m.impl("mm.dtype_out", &into_out<mm_dtype, Product, Product, at::ScalarType>);
  m.impl("bmm.dtype_out", &into_out<bmm_dtype, Product, Product, at::ScalarType>);
  m.impl("addmm.dtype_out",
         &into_out<addmm_dtype, Product, Product, Product, at::ScalarType, Factor, Factor>);
  m.impl("baddbmm.dtype_out",
         &into_out<baddbmm_dtype, Product, Product, Product, at::ScalarType, Factor, Factor>);
  m.impl("_resize_output_", &at::native::_resize_output_);
}

}  // namespace torch_npusim
