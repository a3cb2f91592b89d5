// SPDX-License-Identifier: BSD-3-Clause
// Reductions, scans, softmax and sorting on route ii. CPU kernels split a reduction over threads by
// building new iterators from its tensors, so they must meet host views only. Cost: one operation
// per element.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data_native.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_native.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_native.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_native.h>
#include <ATen/ops/_softmax_ops.h>
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
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>
#include <torch/library.h>

#include "csrc/aten/structured.h"

namespace torch_npusim {

namespace {

// Values and indices along one dimension; core wraps the dimension between meta() and impl().
template <class Op, class Class>
struct Extremum {
  using Result = std::tuple<at::Tensor, at::Tensor>;
  static Result call(const at::Tensor& self, int64_t dim, bool keepdim) {
    if (!fast_routes() || strict_align() == StrictAlign::copy) {
      return HostKernel<Op>::call(self, dim, keepdim);
    }
    return HostKernel<Op>::command(
        [](c10::DeviceIndex device, HostCall& call, const at::Tensor& operand, int64_t along,
           bool keep) -> Result {
          const FreshView view(operand);
          OnViews<Class, 2> kernel(device);
          const auto wrapped = kernel.meta(*view, along, keep);
          kernel.impl(*view, wrapped.dim, keep, kernel.maybe_get_output(0),
                      kernel.maybe_get_output(1));
          call.finish();
          return {kernel.take(0), kernel.take(1)};
        },
        self, dim, keepdim);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_structured<
      StructuredKernel<at::_ops::sum_dim_IntList, at::native::structured_sum_out>,
      StructuredKernel<at::_ops::mean_dim, at::native::structured_mean_out>,
      StructuredKernel<at::_ops::prod_dim_int, at::native::structured_prod_out>,
      StructuredKernel<at::_ops::amax, at::native::structured_amax_out>,
      StructuredKernel<at::_ops::amin, at::native::structured_amin_out>,
      StructuredKernel<at::_ops::aminmax, at::native::structured_aminmax_out>,
      StructuredKernel<at::_ops::argmax, at::native::structured_argmax_out>,
      StructuredKernel<at::_ops::argmin, at::native::structured_argmin_out>,
      StructuredKernel<at::_ops::all, at::native::structured_all_all_out>,
      StructuredKernel<at::_ops::any, at::native::structured_any_all_out>,
      StructuredKernel<at::_ops::linalg_vector_norm, at::native::structured_linalg_vector_norm_out>,
      StructuredKernel<at::_ops::cumsum, at::native::structured_cumsum_out>,
      StructuredKernel<at::_ops::cumprod, at::native::structured_cumprod_out>,
      StructuredKernel<at::_ops::_softmax, at::native::structured_softmax_cpu_out>,
      StructuredKernel<at::_ops::_softmax_backward_data,
                       at::native::structured_softmax_backward_cpu_out>,
      StructuredKernel<at::_ops::_log_softmax, at::native::structured_log_softmax_cpu_out>,
      StructuredKernel<at::_ops::_log_softmax_backward_data,
                       at::native::structured_log_softmax_backward_cpu_out>,
      StructuredKernel<at::_ops::sort_stable, at::native::structured_sort_stable_out>,
      StructuredKernel<at::_ops::topk, at::native::structured_topk_out_cpu>>(m);
  m.impl("max.dim", TORCH_FN((Extremum<at::_ops::max_dim, at::native::structured_max_out>::call)));
  m.impl("min.dim", TORCH_FN((Extremum<at::_ops::min_dim, at::native::structured_min_out>::call)));
  register_host_kernels<
      at::_ops::nansum, at::_ops::prod, at::_ops::max, at::_ops::min, at::_ops::all_dim,
      at::_ops::any_dim, at::_ops::count_nonzero_dim_IntList, at::_ops::var_correction,
      at::_ops::std_correction, at::_ops::var_mean_correction, at::_ops::std_mean_correction,
      at::_ops::norm_ScalarOpt_dim, at::_ops::logsumexp, at::_ops::median, at::_ops::median_dim,
      at::_ops::mode_values, at::_ops::cumsum_, at::_ops::cumprod_>(m);
}

}  // namespace torch_npusim
