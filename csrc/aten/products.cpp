// SPDX-License-Identifier: BSD-3-Clause
// Matrix and vector products on route ii.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/addbmm_ops.h>
#include <ATen/ops/addmm_native.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_native.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/addr_ops.h>
#include <ATen/ops/baddbmm_native.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/mm_native.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/vdot_ops.h>
#include <torch/library.h>

#include "csrc/routes/structured.h"

namespace torch_npusim {

namespace {

// A tensor of zeros without memory makes a product of zeros without memory, as on the CPU.
template <class Op>
at::Tensor inner_product(const at::Tensor& self, const at::Tensor& other) {
  if (C10_UNLIKELY(self._is_zerotensor() || other._is_zerotensor())) {
    return at::_efficientzerotensor({}, self.options());
  }
  return CpuKernel<Op>::call(self, other);
}

// As core defines it; its own form would dispatch to the out= form of the device.
at::Tensor mv(const at::Tensor& self, const at::Tensor& vector) {
  using OnHost = CpuKernel<at::_ops::mv>;
  if (!fast_routes() || strict_align() == StrictAlign::copy || self.dim() != 2) {
    return OnHost::call(self, vector);
  }
  return OnHost::command(
      [](c10::DeviceIndex device, CpuCall& call, const at::Tensor& matrix, const at::Tensor& vec) {
        at::Tensor out = device_empty({matrix.size(0)}, vec.scalar_type(), device);
        FreshView result(out, Use::writes);
        const FreshView left(matrix);
        const FreshView right(vec);
        if (C10_LIKELY(!npusim::dry())) {
          at::_ops::addmv_out::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), *result,
                                          *left, *right, 0, 1, *result);
        }
        call.finish();
        return out;
      },
      self, vector);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_structured<StructuredKernel<at::_ops::mm, at::native::structured_mm_out_cpu>,
                      StructuredKernel<at::_ops::bmm, at::native::structured_bmm_out_cpu>,
                      StructuredKernel<at::_ops::addmm, at::native::structured_addmm_out_cpu>,
                      StructuredKernel<at::_ops::addmv, at::native::structured_addmv_out_cpu>,
                      StructuredKernel<at::_ops::baddbmm, at::native::structured_baddbmm_out_cpu>>(
      m);
  register_cpu_kernels<at::_ops::addmm_, at::_ops::addbmm, at::_ops::addmv_out, at::_ops::addr_>(m);
  m.impl("mv", TORCH_FN(mv));
  m.impl("dot", TORCH_FN(inner_product<at::_ops::dot>));
  m.impl("vdot", TORCH_FN(inner_product<at::_ops::vdot>));
}

}  // namespace torch_npusim
