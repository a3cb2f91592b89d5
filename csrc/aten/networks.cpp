// SPDX-License-Identifier: BSD-3-Clause
// Normalisation, losses, pooling and resampling on route ii.
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_native_batch_norm_legit_ops.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/binary_cross_entropy_backward_ops.h>
#include <ATen/ops/binary_cross_entropy_ops.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/max_pool3d_with_indices_backward_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_native.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/nll_loss2d_backward_ops.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/smooth_l1_loss_backward_ops.h>
#include <ATen/ops/smooth_l1_loss_native.h>
#include <ATen/ops/smooth_l1_loss_ops.h>
#include <ATen/ops/upsample_bilinear2d_backward_ops.h>
#include <ATen/ops/upsample_bilinear2d_ops.h>
#include <ATen/ops/upsample_nearest2d_backward_ops.h>
#include <ATen/ops/upsample_nearest2d_ops.h>
#include <torch/library.h>

#include "csrc/observers/observe.h"
#include "csrc/observers/route_taken.h"
#include "csrc/operands/device_empty.h"
#include "csrc/routes/cpu_kernel.h"
#include "csrc/routes/structured.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using NormOperand = std::optional<Tensor>;
using NormResult = std::tuple<Tensor, Tensor, Tensor>;

// The CPU lays results of batch norms out in the input's memory format. The meta kernel keeps
// strides, as CUDA does.
void lay_out(NormResult& result, const Tensor& input) {
  if (C10_LIKELY(!npusim::dry()) || as_cuda()) return;
  Tensor& first = std::get<0>(result);
  if (!first.defined()) return;
  first = at::empty(first.sizes(), first.options().memory_format(input.suggest_memory_format()));
}

// The end of a batch norm's command: its kernel on views, whose first result lies as `input`.
template <class Op, class... Views>
NormResult normed(CpuCall& call, const Tensor& input, Views&&... views) {
  note_route(Route::cpu_kernel);
  NormResult result =
      Op::redispatch(kernel_for(call, CpuKernel<Op>::traits()), std::forward<Views>(views)...);
  call.finish();
  lay_out(result, input);
  return cpu_kernel::on_device(call, std::move(result));
}

template <class Op, class Schema = typename Op::schema>
struct BatchNorm;

template <class Op, class... Args>
struct BatchNorm<Op, NormResult(Args...)> {
  static NormResult call(Args... args) {
    const auto body = [](c10::DeviceIndex, CpuCall& call, Args... arguments) {
      return normed<Op>(call, std::get<0>(std::tie(arguments...)),
                        cpu_kernel::view(call, arguments)...);
    };
    return CpuKernel<Op>::command(body, args...);
  }
};

// Kernels of CUDA take parameters in the input's half precision beside running statistics in float.
// Those of the CPU want parameters of the statistics' type.
bool are_narrower(const NormOperand& weight, const NormOperand& running_mean) {
  return weight && running_mean && c10::isReducedFloatingType(weight->scalar_type()) &&
         running_mean->scalar_type() == at::kFloat;
}

NormOperand widened(NormOperand parameter, bool narrower) {
  return narrower && parameter ? parameter->to(at::kFloat) : parameter;
}

// The schema does not say that training changes the running statistics.
NormResult native_batch_norm(const Tensor& input, const NormOperand& weight,
                             const NormOperand& bias, const NormOperand& running_mean,
                             const NormOperand& running_var, bool training, double momentum,
                             double eps) {
  using Op = at::_ops::native_batch_norm;
  const bool narrower = are_narrower(weight, running_mean);
  const auto body = [&](c10::DeviceIndex, CpuCall& call, const Tensor& x, const NormOperand& gain,
                        const NormOperand& shift, const auto&... rest) {
    c10::SmallVector<const Tensor*, 2> changed;
    for (const NormOperand* statistics : {&running_mean, &running_var}) {
      if (training && statistics->has_value()) changed.push_back(&**statistics);
    }
    for (const Tensor* statistics : changed) note_use(*statistics, Use::writes);
    note_route(Route::cpu_kernel);
    NormResult result = Op::redispatch(
        kernel_for(call, CpuKernel<Op>::traits()), cpu_kernel::view(call, x),
        widened(cpu_kernel::view(call, gain), narrower),
        widened(cpu_kernel::view(call, shift), narrower), cpu_kernel::view(call, rest)...);
    call.finish();
    if (C10_UNLIKELY(npusim::command_failed())) {
      for (const Tensor* statistics : changed) spoil(*statistics);
    }
    lay_out(result, input);
    return cpu_kernel::on_device(call, std::move(result));
  };
  return CpuKernel<Op>::command(body, input, weight, bias, running_mean, running_var, training,
                                momentum, eps);
}

// The CPU's kernel reads channels that are last as rows where the stride of a dimension of one
// element hides the format (docs/reference/torch_faults.md): such an operand is copied first.
Tensor in_rows(Tensor view) {
  const bool last = view.is_contiguous(at::MemoryFormat::ChannelsLast) ||
                    view.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  if (C10_LIKELY(!last || view.is_contiguous() || npusim::dry())) return view;
  const bool hidden = view.suggest_memory_format() == at::MemoryFormat::Contiguous;
  return hidden ? at::clone(view, at::MemoryFormat::Contiguous) : view;
}

// CUDA's backward of input, weight and bias in one kernel wants statistics of the weight's type. It
// is that of inputs whose channels are not last.
NormResult native_batch_norm_backward(const Tensor& grad, const Tensor& input,
                                      const NormOperand& weight, const NormOperand& running_mean,
                                      const NormOperand& running_var, const NormOperand& save_mean,
                                      const NormOperand& save_invstd, bool train, double eps,
                                      std::array<bool, 3> mask) {
  using Op = at::_ops::native_batch_norm_backward;
  const auto body = [](c10::DeviceIndex, CpuCall& call, const Tensor& gradient, const Tensor& x,
                       const auto&... rest) {
    return normed<Op>(call, x, in_rows(cpu_kernel::view(call, gradient)),
                      in_rows(cpu_kernel::view(call, x)), cpu_kernel::view(call, rest)...);
  };
  if (C10_LIKELY(!are_narrower(weight, running_mean))) {
    return CpuKernel<Op>::command(body, grad, input, weight, running_mean, running_var, save_mean,
                                  save_invstd, train, eps, mask);
  }
  const bool channels_last = input.is_contiguous(at::MemoryFormat::ChannelsLast) ||
                             input.is_contiguous(at::MemoryFormat::ChannelsLast3d) ||
                             (input.is_contiguous() && input.stride(1) == 1);
  TORCH_CHECK(channels_last || !mask[0] || !(train || mask[1] || mask[2]),
              "Expected running_mean to have type ", weight->scalar_type(), " but got ",
              running_mean->scalar_type());
  const NormOperand wide = weight->to(at::kFloat);
  NormResult result = CpuKernel<Op>::command(body, grad, input, wide, running_mean, running_var,
                                             save_mean, save_invstd, train, eps, mask);
  for (Tensor* of_parameter : {&std::get<1>(result), &std::get<2>(result)}) {
    if (of_parameter->defined()) *of_parameter = of_parameter->to(weight->scalar_type());
  }
  return result;
}

// A dilated window may lie between the elements. Its maximum has a place that may be none of the
// input's, and the CPU's kernel writes there (docs/reference/torch_faults.md). CUDA's looks for the
// windows of each element.
template <class Op, int64_t dims>
Tensor max_pool_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef kernel,
                         at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                         bool ceil, const Tensor& indices) {
  const auto body = [&](c10::DeviceIndex, CpuCall& call, const auto&...) {
    note_route(Route::cpu_kernel);
    Tensor given = cpu_kernel::view(call, grad), places = cpu_kernel::view(call, indices);
    const bool dilated =
        std::any_of(dilation.begin(), dilation.end(), [](auto d) { return d > 1; });
    if (C10_UNLIKELY(dilated && !npusim::dry())) {
      const int64_t elements = c10::multiply_integers(input.sizes().slice(input.dim() - dims));
      const Tensor outside = places.ge(elements);
      given = given.masked_fill(outside, 0);
      places = places.masked_fill(outside, 0);
    }
    Tensor result = Op::redispatch(kernel_for(call, CpuKernel<Op>::traits()), given,
                                   cpu_kernel::view(call, input), kernel, stride, padding, dilation,
                                   ceil, places);
    call.finish();
    return cpu_kernel::on_device(call, std::move(result));
  };
  return CpuKernel<Op>::command(body, grad, input, kernel, stride, padding, dilation, ceil,
                                indices);
}

// The reduced loss keeps the storage of the unreduced one, on the CPU as on CUDA. The meta kernel
// does not say so.
Tensor binary_cross_entropy(const Tensor& self, const Tensor& target,
                            const std::optional<Tensor>& weight, int64_t reduction) {
  using Op = at::_ops::binary_cross_entropy;
  const auto body = [&](c10::DeviceIndex device, CpuCall& call, const auto&... arguments) {
    note_route(Route::cpu_kernel);
    Tensor loss = Op::redispatch(kernel_for(call, CpuKernel<Op>::traits()),
                                 cpu_kernel::view(call, arguments)...);
    call.finish();
    if (C10_LIKELY(!npusim::dry())) return cpu_kernel::on_device(call, std::move(loss));
    Tensor made = device_empty(self.sizes(), self.scalar_type(), device);
    if (reduction != at::Reduction::None) made.unsafeGetTensorImpl()->set_sizes_contiguous({});
    note_use(made, Use::writes);
    return made;
  };
  return CpuKernel<Op>::command(body, self, target, weight, reduction);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_cpu_kernels<at::_ops::native_layer_norm, at::_ops::native_layer_norm_backward,
                       at::_ops::native_group_norm, at::_ops::native_group_norm_backward>(m);
  m.impl("native_batch_norm_backward", &native_batch_norm_backward);
  m.impl("_native_batch_norm_legit", &BatchNorm<at::_ops::_native_batch_norm_legit>::call);
  m.impl("_native_batch_norm_legit.no_stats",
         &BatchNorm<at::_ops::_native_batch_norm_legit_no_stats>::call);
  m.impl("native_batch_norm", &native_batch_norm);
  register_cpu_kernels<at::_ops::nll_loss_forward, at::_ops::nll_loss_backward,
                       at::_ops::nll_loss2d_forward, at::_ops::nll_loss2d_backward,
                       at::_ops::mse_loss_backward, at::_ops::binary_cross_entropy_backward,
                       at::_ops::smooth_l1_loss_backward>(m);
  m.impl("binary_cross_entropy", &binary_cross_entropy);
  register_structured<
      StructuredKernel<at::_ops::mse_loss, at::native::structured_mse_loss_out>,
      StructuredKernel<at::_ops::smooth_l1_loss, at::native::structured_smooth_l1_loss_out>>(m);
  m.impl("max_pool2d_with_indices_backward",
         &max_pool_backward<at::_ops::max_pool2d_with_indices_backward, 2>);
  m.impl("max_pool3d_with_indices_backward",
         &max_pool_backward<at::_ops::max_pool3d_with_indices_backward, 3>);
  register_cpu_kernels<at::_ops::max_pool2d_with_indices, at::_ops::avg_pool2d,
                       at::_ops::avg_pool2d_backward, at::_ops::_adaptive_avg_pool2d,
                       at::_ops::_adaptive_avg_pool2d_backward>(m);
  register_cpu_kernels<at::_ops::upsample_nearest2d, at::_ops::upsample_nearest2d_backward,
                       at::_ops::upsample_bilinear2d, at::_ops::upsample_bilinear2d_backward>(m);
}

}  // namespace torch_npusim
