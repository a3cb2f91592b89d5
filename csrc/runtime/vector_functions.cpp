// SPDX-License-Identifier: BSD-3-Clause
// First calls of MKL's vector functions.
#include "csrc/runtime/vector_functions.h"

#include <ATen/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/from_blob.h>

namespace torch_npusim {

void settle_vector_functions() {
  using namespace at::native;
  // Those of ATen/cpu/vml.h in torch: tests/ops/test_torch_faults.py compares the names.
  const auto settle = [](at::Tensor result, const at::Tensor& x) {
    auto iter = at::TensorIterator::unary_op(result, x);
    acos_stub(at::kCPU, iter);
    asin_stub(at::kCPU, iter);
    atan_stub(at::kCPU, iter);
    cos_stub(at::kCPU, iter);
    erf_stub(at::kCPU, iter);
    erfc_stub(at::kCPU, iter);
    erfinv_stub(at::kCPU, iter);
    exp_stub(at::kCPU, iter);
    log_stub(at::kCPU, iter);
    log10_stub(at::kCPU, iter);
    log2_stub(at::kCPU, iter);
    sin_stub(at::kCPU, iter);
    sqrt_stub(at::kCPU, iter);
    tan_stub(at::kCPU, iter);
    tanh_stub(at::kCPU, iter);
    trunc_stub(at::kCPU, iter);
  };
  // Tensors of memory on the stack: nothing is dispatched, so modes of the caller see no call.
  double wide = 0.5;
  double wide_result = 0;
  settle(at::from_blob(&wide_result, {1}, at::kDouble), at::from_blob(&wide, {1}, at::kDouble));
  float narrow = 0.5F;
  float narrow_result = 0;
  settle(at::from_blob(&narrow_result, {1}, at::kFloat), at::from_blob(&narrow, {1}, at::kFloat));
}

}  // namespace torch_npusim
