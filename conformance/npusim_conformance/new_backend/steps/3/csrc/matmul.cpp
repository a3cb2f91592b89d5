// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices: mm, and addmm, which is a linear layer.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include "operators.h"

namespace mychip {
namespace {

struct Matrix {
  const float* data;
  std::int64_t rows, columns, row_stride, column_stride;
};

Matrix matrix(const at::Tensor& tensor) {
  return {read(tensor), tensor.size(0), tensor.size(1), tensor.stride(0), tensor.stride(1)};
}

struct Arguments {
  float* result;            // where out lies
  Matrix out, a, b, added;  // out = beta * added + alpha * a @ b
  float beta, alpha;
};

void kernel(const void* given) {
  const auto& [result, out, a, b, added, beta, alpha] = *static_cast<const Arguments*>(given);
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < out.columns; ++j) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < a.columns; ++k) {
        sum += static_cast<double>(a.data[i * a.row_stride + k * a.column_stride]) *
               b.data[k * b.row_stride + j * b.column_stride];
      }
      // As torch has it, what is multiplied with beta = 0 is not read: it may be NaN.
      float value = alpha * static_cast<float>(sum);
      if (beta != 0.0f) value += beta * added.data[i * added.row_stride + j * added.column_stride];
      result[i * out.row_stride + j * out.column_stride] = value;
    }
  }
}

void check_shapes(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "mat1 and mat2 must be matrices");
  TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
              a.size(1), " and ", b.size(0), "x", b.size(1), ")");
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  check_shapes(a, b);
  if (!is_for_chip(out, {a, b})) return ON_CPU(mm_out, a, b, out);
  resize_out(out, {a.size(0), b.size(1)});
  at::assert_no_overlap(out, a);
  at::assert_no_overlap(out, b);
  launch(out, &kernel,
         Arguments{floats(out), matrix(out), matrix(a), matrix(b), matrix(out), 0.0f, 1.0f});
  return out;
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  check_shapes(a, b);
  if (!is_for_chip(out, {self, a, b})) return ON_CPU(addmm_out, self, a, b, beta, alpha, out);
  const at::Tensor added = there(self, out).expand({a.size(0), b.size(1)});
  resize_out(out, added.sizes());
  at::assert_no_overlap(out, a);
  at::assert_no_overlap(out, b);
  launch(out, &kernel,
         Arguments{floats(out), matrix(out), matrix(a), matrix(b), matrix(added), beta.toFloat(),
                   alpha.toFloat()});
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm.out", &mm_out);
  m.impl("addmm.out", &addmm_out);
}

}  // namespace
}  // namespace mychip
