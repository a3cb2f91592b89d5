// SPDX-License-Identifier: BSD-3-Clause
// Reductions, scans and sorting on route ii. CPU kernels split a reduction over threads by
// building new iterators from its tensors, so they must meet host views only. Cost: one operation
// per element.
#include <ATen/core/Tensor.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/all_native.h>
#include <ATen/ops/all_ops.h>
#include <ATen/ops/amax_native.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/amin_native.h>
#include <ATen/ops/amin_ops.h>
#include <ATen/ops/aminmax_native.h>
#include <ATen/ops/aminmax_ops.h>
#include <ATen/ops/any_native.h>
#include <ATen/ops/any_ops.h>
#include <ATen/ops/argmax_native.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/argmin_native.h>
#include <ATen/ops/argmin_ops.h>
#include <ATen/ops/count_nonzero_ops.h>
#include <ATen/ops/cumprod_native.h>
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/cumsum_native.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/linalg_vector_norm_native.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/logsumexp_ops.h>
#include <ATen/ops/max_native.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/mean_native.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/median_ops.h>
#include <ATen/ops/min_native.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/mode_ops.h>
#include <ATen/ops/nansum_ops.h>
#include <ATen/ops/norm_ops.h>
#include <ATen/ops/prod_native.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/sort_native.h>
#include <ATen/ops/sort_ops.h>
#include <ATen/ops/std_mean_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/sum_native.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/topk_native.h>
#include <ATen/ops/topk_ops.h>
#include <ATen/ops/trace_ops.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>
#include <torch/library.h>

#include "csrc/routes/pointwise.h"
#include "csrc/routes/structured.h"

namespace torch_npusim {

namespace {

// Kernels that start from an empty result and resize it get one that has its shape already.
template <class Op, class Out, class Schema = typename Op::schema>
struct Reduction;
template <class Op, class Out, class... Args>
struct Reduction<Op, Out, at::Tensor(const at::Tensor&, at::OptionalIntArrayRef, Args...)> {
  static at::Tensor call(const at::Tensor& self, at::OptionalIntArrayRef dims, Args... args) {
    // The CPU refuses integers, and reduces complex numbers in two steps.
    const bool one_step = at::isFloatingType(self.scalar_type());
    if (!one_step || !fast_routes() || strict_align() == StrictAlign::copy) {
      return CpuKernel<Op>::call(self, dims, args...);
    }
    return CpuKernel<Op>::command(
        [](c10::DeviceIndex device, CpuCall& call, const at::Tensor& operand,
           at::OptionalIntArrayRef along, Args... rest) {
          const bool keepdim = std::get<sizeof...(Args) - 1>(std::tie(rest...));
          const auto reduced = at::native::make_dim_mask(along, operand.dim());
          const at::Tensor out =
              device_empty(at::native::shape_from_dim_mask(operand, reduced, keepdim),
                           operand.scalar_type(), device);
          const FreshView view(operand);
          FreshView result(out, Use::writes);
          if (C10_LIKELY(!npusim::dry())) {
            Out::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), *view, along, rest...,
                            *result);
          }
          call.finish();
          return out;
        },
        self, dims, args...);
  }
};

using Sum = StructuredKernel<at::_ops::sum_dim_IntList, at::native::structured_sum_out>;
using Mean = StructuredKernel<at::_ops::mean_dim, at::native::structured_mean_out>;

int64_t reduced_elements(const at::Tensor& self, at::OptionalIntArrayRef dims) {
  if (!dims.has_value() || dims->empty() || self.dim() == 0) return self.numel();
  int64_t product = 1;
  for (const int64_t dim : *dims) product *= self.size(dim);
  return product;
}

// The CPU sums and then divides in place, which route i does sooner. Reduced precision, which it
// sums in float, and changes of the dtype are left to it.
at::Tensor mean(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                std::optional<at::ScalarType> dtype) {
  const at::ScalarType own = self.scalar_type();
  const bool two_steps = (own == at::kFloat || own == at::kDouble) && dtype.value_or(own) == own;
  if (!two_steps || !fast_routes() || strict_align() != StrictAlign::off) {
    return Mean::call(self, dims, keepdim, dtype);
  }
  return launch("aten::mean.dim", {&self}, [&](c10::DeviceIndex) {
    at::Tensor out = Sum::call(self, dims, keepdim, std::nullopt);
    if (out.numel() == 0) return out;
    DenseCall dense(kFloats);
    dense.add(out);
    dense.add(wrapped_number(reduced_elements(self, dims)));
    TORCH_INTERNAL_ASSERT(dense.takes(&out), "a sum is not dense");
    return dense.compute(/*bool_result=*/false,
                         [](DenseIterator& iter) { run_stub<at::native::div_true_stub>(iter); });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mean.dim", &mean);
  register_structured<
      Sum, StructuredKernel<at::_ops::prod_dim_int, at::native::structured_prod_out>,
      StructuredKernel<at::_ops::amax, at::native::structured_amax_out>,
      StructuredKernel<at::_ops::amin, at::native::structured_amin_out>,
      StructuredKernel<at::_ops::aminmax, at::native::structured_aminmax_out>,
      StructuredKernel<at::_ops::max_dim, at::native::structured_max_out>,
      StructuredKernel<at::_ops::min_dim, at::native::structured_min_out>,
      StructuredKernel<at::_ops::argmax, at::native::structured_argmax_out>,
      StructuredKernel<at::_ops::argmin, at::native::structured_argmin_out>,
      StructuredKernel<at::_ops::all, at::native::structured_all_all_out>,
      StructuredKernel<at::_ops::any, at::native::structured_any_all_out>,
      StructuredKernel<at::_ops::linalg_vector_norm, at::native::structured_linalg_vector_norm_out>,
      StructuredKernel<at::_ops::cumsum, at::native::structured_cumsum_out>,
      StructuredKernel<at::_ops::cumprod, at::native::structured_cumprod_out>,
      StructuredKernel<at::_ops::sort_stable, at::native::structured_sort_stable_out>,
      StructuredKernel<at::_ops::topk, at::native::structured_topk_out_cpu>>(m);
  m.impl("var.correction",
         &Reduction<at::_ops::var_correction, at::_ops::var_correction_out>::call);
  m.impl("std.correction",
         &Reduction<at::_ops::std_correction, at::_ops::std_correction_out>::call);
  register_cpu_kernels<at::_ops::nansum, at::_ops::prod, at::_ops::max, at::_ops::min,
                       at::_ops::all_dim, at::_ops::any_dim, at::_ops::count_nonzero_dim_IntList,
                       at::_ops::var_mean_correction, at::_ops::std_mean_correction,
                       at::_ops::norm_ScalarOpt_dim, at::_ops::logsumexp, at::_ops::median,
                       at::_ops::median_dim, at::_ops::mode_values, at::_ops::trace,
                       at::_ops::cumsum_, at::_ops::cumprod_>(m);
}

}  // namespace torch_npusim
