// SPDX-License-Identifier: BSD-3-Clause
// sum and mean over dimensions, and matrix products, on route ii: CPU kernels split a reduction
// over threads by building new iterators from its tensors, so they must meet host views only.
// Cost: one operation per input element; a matrix product 2*m*n*k.
#include <ATen/ops/addmm_native.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mean_native.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_native.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/sum_native.h>
#include <ATen/ops/sum_ops.h>
#include <torch/library.h>

#include "csrc/aten/fallback.h"
#include "csrc/aten/structured.h"
#include "csrc/runtime/pool_allocator.h"

namespace torch_npusim {

namespace {

template <class... Operands>
bool takes(const Operands&... operands) {
  return fast_routes() && strict_align() != StrictAlign::copy &&
         (operands.is_privateuseone() && ...);
}

template <class Structured, class... Args>
at::Tensor run_on_views(c10::DeviceIndex device, const Args&... args) {
  const c10::impl::ExcludeDispatchKeyGuard no_wrappers(wrapper_keys());
  const PoolScope pool(device);  // the kernel's temporaries are device memory
  OnViews<Structured> call(device);
  call.meta(args...);
  call.impl(args..., call.maybe_get_output(0));
  return call.take();
}

at::Tensor sum(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
               std::optional<at::ScalarType> dtype) {
  if (!takes(self)) return run_boxed<at::_ops::sum_dim_IntList>(self, dim, keepdim, dtype);
  return launch("aten::sum.dim_IntList", {&self}, HostScalars::refused, [&](auto device) {
    return run_on_views<at::native::structured_sum_out>(device, host_view(self), dim, keepdim,
                                                        dtype);
  });
}

at::Tensor mean(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                std::optional<at::ScalarType> dtype) {
  if (!takes(self)) return run_boxed<at::_ops::mean_dim>(self, dim, keepdim, dtype);
  return launch("aten::mean.dim", {&self}, HostScalars::refused, [&](auto device) {
    return run_on_views<at::native::structured_mean_out>(device, host_view(self), dim, keepdim,
                                                         dtype);
  });
}

// Multiplications and additions per element of the left operand: 2n for (m, k) x (k, n).
double product_flops(const at::Tensor& right) {
  return right.dim() < 2 ? 2.0 : 2.0 * static_cast<double>(right.size(-1));
}

at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2) {
  if (!takes(self, mat2)) return run_boxed<at::_ops::mm>(self, mat2);
  return launch(
      "aten::mm", {&self, &mat2}, HostScalars::refused,
      [&](auto device) {
        return run_on_views<at::native::structured_mm_out_cpu>(device, host_view(self),
                                                               host_view(mat2));
      },
      product_flops(mat2));
}

at::Tensor bmm(const at::Tensor& self, const at::Tensor& mat2) {
  if (!takes(self, mat2)) return run_boxed<at::_ops::bmm>(self, mat2);
  return launch(
      "aten::bmm", {&self, &mat2}, HostScalars::refused,
      [&](auto device) {
        return run_on_views<at::native::structured_bmm_out_cpu>(device, host_view(self),
                                                                host_view(mat2));
      },
      product_flops(mat2));
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  if (!takes(self, mat1, mat2)) {
    return run_boxed<at::_ops::addmm>(self, mat1, mat2, beta, alpha);
  }
  return launch(
      "aten::addmm", {&self, &mat1, &mat2}, HostScalars::refused,
      [&](auto device) {
        return run_on_views<at::native::structured_addmm_out_cpu>(
            device, host_view(self), host_view(mat1), host_view(mat2), beta, alpha);
      },
      product_flops(mat2));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("sum.dim_IntList", TORCH_FN(sum));
  m.impl("mean.dim", TORCH_FN(mean));
  m.impl("mm", TORCH_FN(mm));
  m.impl("bmm", TORCH_FN(bmm));
  m.impl("addmm", TORCH_FN(addmm));
}

}  // namespace torch_npusim
