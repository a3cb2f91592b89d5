// SPDX-License-Identifier: BSD-3-Clause
// convolution and convolution_backward (with the _overrideable pair that torch's own composite
// calls): at::convolution and at::convolution_backward on host views, so the CPU's choice among its
// convolution libraries, its memory formats and its bits are the device's. Double backward is
// torch's composite of the two. Cost: two operations per multiply-add, every tensor moved once.
//
// `convolution` itself is registered, not only the overrideable pair, because the composite in
// front of the pair prepares its operands for CUDA (1-d as 2-d, expanded weights) before the CPU
// code could choose.
#include <ATen/Context.h>
#include <ATen/TracerMode.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include "csrc/aten/host_op.h"

namespace torch_npusim {

namespace {

struct Geometry {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

// Multiply-adds of the forward pass; 0 for shapes that at::convolution is about to refuse.
double multiply_adds(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  const auto spatial = static_cast<std::size_t>(std::max<int64_t>(input.dim() - 2, 0));
  if (spatial == 0 || weight.dim() != input.dim() || weight.size(0) == 0) return 0;
  const auto macs_per_position = static_cast<double>(weight.numel());
  if (g.transposed) {
    return static_cast<double>(input.numel()) * macs_per_position /
           static_cast<double>(weight.size(0));
  }
  double positions = static_cast<double>(input.size(0));
  const auto along = [](at::IntArrayRef values, std::size_t d) {
    return values.empty() ? 1 : values[std::min(d, values.size() - 1)];
  };
  for (std::size_t d = 0; d < spatial; ++d) {
    const auto dim = static_cast<int64_t>(d) + 2;
    const int64_t reach = along(g.dilation, d) * (weight.size(dim) - 1) + 1;
    const int64_t room = input.size(dim) + 2 * along(g.padding, d) - reach;
    if (room < 0 || along(g.stride, d) <= 0) return 0;
    positions *= static_cast<double>(room / along(g.stride, d) + 1);
  }
  return positions * macs_per_position;
}

npusim::Cost cost_of(Operands operands, double macs, double passes) {
  npusim::Cost cost = elementwise_cost(operands);
  cost.flops = 2.0 * macs * passes;
  return cost;
}

// The CPU takes other code when a gradient will be asked for (inference-only Winograd on aarch64).
// The flag goes to a view of this call: autograd is excluded, so nothing records it.
void keep_gradient_request(const at::Tensor& operand, const at::Tensor& view) {
  if (operand.requires_grad()) view.unsafeGetTensorImpl()->set_requires_grad(true);
}

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                    at::IntArrayRef output_padding, int64_t groups) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  const at::Tensor no_bias;
  const std::array<const at::TensorBase*, 3> operands = {&input, &weight,
                                                         bias.has_value() ? &*bias : &no_bias};
  const auto cost = cost_of(operands, multiply_adds(input, weight, geometry), 1.0);
  return on_host_views("aten::convolution", operands, cost, [&](HostCall& call) {
    const at::Tensor input_view = call.view(input, /*written=*/false);
    const at::Tensor weight_view = call.view(weight, /*written=*/false);
    keep_gradient_request(input, input_view);
    keep_gradient_request(weight, weight_view);
    at::Tensor out = at::convolution(input_view, weight_view, view_of(call, bias), stride, padding,
                                     dilation, transposed, output_padding, groups);
    call.finish();
    return call.result(out);
  });
}

// torch.jit.trace passes over `convolution` and writes down the `_convolution` that it expects
// inside; without that call it would write down what happens on the host views.
at::Tensor convolve_or_trace(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                             at::IntArrayRef output_padding, int64_t groups) {
  if (!at::tracer::impl::is_dispatch_enabled()) {
    return convolve(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                    groups);
  }
  at::Context& context = at::globalContext();
  return at::_convolution(input, weight, bias, stride, padding, dilation, transposed,
                          output_padding, groups, context.benchmarkCuDNN(),
                          context.deterministicCuDNN() || context.deterministicAlgorithms(),
                          context.userEnabledCuDNN(), context.allowTF32CuDNN(at::Float32Op::CONV));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  const std::array<const at::TensorBase*, 3> operands = {&grad_output, &input, &weight};
  const double passes = (output_mask[0] ? 1.0 : 0.0) + (output_mask[1] ? 1.0 : 0.0);
  const auto cost = cost_of(operands, multiply_adds(input, weight, geometry), passes);
  return on_host_views("aten::convolution_backward", operands, cost, [&](HostCall& call) {
    auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
        call.view(grad_output, false), call.view(input, false), call.view(weight, false),
        bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask);
    call.finish();
    return std::make_tuple(call.result(grad_input), call.result(grad_weight),
                           call.result(grad_bias));
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward_overrideable(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask) {
  const std::array<int64_t, 1> bias_sizes = {transposed ? weight.size(1) * groups : weight.size(0)};
  return convolve_backward(grad_output, input, weight, at::IntArrayRef(bias_sizes), stride, padding,
                           dilation, transposed, output_padding, groups, output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution", TORCH_FN(convolve_or_trace));
  m.impl("convolution_backward", TORCH_FN(convolve_backward));
  m.impl("convolution_overrideable", TORCH_FN(convolve));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolve_backward_overrideable));
}

}  // namespace torch_npusim
