// SPDX-License-Identifier: BSD-3-Clause
// Softmax, log_softmax and their backward on route ii. Along the last dimension of a row-major
// tensor, the CPU's structured class does nothing but run its loop: so does LastDim.
// Cost: three operations per element; a long row is read twice.
#include <ATen/core/Tensor.h>
#include <ATen/native/cpu/SoftmaxKernel.h>
#include <ATen/ops/_log_softmax_backward_data_native.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_native.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_native.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_native.h>
#include <ATen/ops/_softmax_ops.h>
#include <torch/library.h>

#include "csrc/routes/structured.h"

namespace torch_npusim {

namespace {

bool takes(const at::Tensor& self, int64_t dim, bool half_to_float) {
  if (half_to_float || !fast_routes() || strict_align() != StrictAlign::off) return false;
  if (C10_UNLIKELY(!within_storage(self))) return false;  // refused elsewhere, by name
  const int64_t last = self.dim() - 1;
  return last >= 0 && (dim == last || dim == -1) && self.numel() > 0 && self.is_contiguous() &&
         (kFloats & dtype_set(self.scalar_type())) != 0;
}

template <class Op_, auto& stub, class Class>
struct LastDim {
  using Op = Op_;
  using Otherwise = StructuredKernel<Op, Class>;

  static at::Tensor call(const at::Tensor& self, int64_t dim, bool half_to_float) {
    if (!takes(self, dim, half_to_float)) return Otherwise::call(self, dim, half_to_float);
    const c10::DeviceIndex device = self.device().index();
    const OpTraits& about = Otherwise::OnHost::traits();
    const at::TensorBase* const operand = &self;
    const Account account(about.cost, operand, {}, dim);
    return launch({about.name.c_str(), npusim::CommandKind::kernel, account.cost()}, device, [&] {
      const NoWrappers no_wrappers;
      const Temporaries temporaries;
      at::Tensor out = device_empty(self.sizes(), self.scalar_type(), device);
      const FreshView result(out, Use::writes);
      const FreshView view(self);
      if (C10_LIKELY(!npusim::dry())) stub(c10::kCPU, *result, *view);
      account.settle(out);
      return out;
    });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
  register_structured<
      LastDim<at::_ops::_softmax, softmax_lastdim_kernel, structured_softmax_cpu_out>,
      LastDim<at::_ops::_log_softmax, log_softmax_lastdim_kernel, structured_log_softmax_cpu_out>,
      StructuredKernel<at::_ops::_softmax_backward_data, structured_softmax_backward_cpu_out>,
      StructuredKernel<at::_ops::_log_softmax_backward_data,
                       structured_log_softmax_backward_cpu_out>>(m);
}

}  // namespace torch_npusim
