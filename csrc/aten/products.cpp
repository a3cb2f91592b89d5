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

#include <type_traits>

#include "csrc/routes/structured.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/cuda_names.h"

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

// Product<kernel>::call() is kernel(), and keeps what cuBLAS would keep.
template <auto kernel>
struct Product;

template <class Result, class... Args, Result (*kernel)(Args...)>
struct Product<kernel> {
  static Result call(Args... args) {
    // What is written stays as it was where there is no memory; a new result comes first.
    constexpr bool kWrites = (std::is_same_v<Args, at::Tensor&> || ...);
    if (kWrites && is_called_cuda()) keep(args...);
    Result made = kernel(args...);
    if (!kWrites && is_called_cuda()) keep(args...);
    return made;
  }

 private:
  static void keep(const Args&... args) {
    c10::SmallVector<const at::TensorBase*, 4> operands;
    const auto add = [&](const auto& argument) {
      if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, at::Tensor>) {
        operands.push_back(&argument);
      }
    };
    (add(args), ...);
    if (!operands.back()->is_privateuseone()) return;
    keep_workspaces_of_product(operands, operands.back()->device().index());
  }
};

template <class Op, auto kernel>
void register_product(torch::Library& m) {
  m.impl(qualified_name<Op>().c_str(), &Product<kernel>::call);
}
template <class Kernel>
void register_structured_product(torch::Library& m) {
  register_product<typename Kernel::Op, &Kernel::call>(m);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::_ops;
  register_structured_product<StructuredKernel<mm, at::native::structured_mm_out_cpu>>(m);
  register_structured_product<StructuredKernel<bmm, at::native::structured_bmm_out_cpu>>(m);
  register_structured_product<StructuredKernel<addmm, at::native::structured_addmm_out_cpu>>(m);
  register_structured_product<StructuredKernel<addmv, at::native::structured_addmv_out_cpu>>(m);
  register_structured_product<StructuredKernel<baddbmm, at::native::structured_baddbmm_out_cpu>>(m);
  register_product<addmm_, &CpuKernel<addmm_>::call>(m);
  register_product<addbmm, &CpuKernel<addbmm>::call>(m);
  register_product<at::_ops::mv, &torch_npusim::mv>(m);
  register_product<dot, &inner_product<dot>>(m);
  register_product<vdot, &inner_product<vdot>>(m);
  register_cpu_kernels<addmv_out, addr_>(m);
}

}  // namespace torch_npusim
