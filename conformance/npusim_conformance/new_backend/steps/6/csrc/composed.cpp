// SPDX-License-Identifier: BSD-3-Clause
// Operators that torch leaves to every backend, made of others: convolutions, the running
// statistics of batch norm, cells of LSTM and GRU. A chip with units of its own for them replaces
// these.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>

#include "operators.h"

namespace mychip {
namespace {

using Maybe = std::optional<at::Tensor>;

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const Maybe& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       bool transposed, at::IntArrayRef output_padding, std::int64_t groups) {
  return ON_CPU(convolution, input, weight, bias, stride, padding, dilation, transposed,
                output_padding, groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  const std::int64_t channels = grad.size(1);
  return ON_CPU(convolution_backward, grad, input, weight, at::IntArrayRef(channels), stride,
                padding, dilation, transposed, output_padding, groups, wanted);
}

// Its schema does not say that it writes to the running statistics, so a fallback loses them. That
// of _native_batch_norm_legit does.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input,
                                                          const Maybe& weight, const Maybe& bias,
                                                          const Maybe& running_mean,
                                                          const Maybe& running_var, bool training,
                                                          double momentum, double eps) {
  if (!running_mean || !running_mean->defined()) {
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
  }
  at::Tensor mean = *running_mean, var = *running_var;
  return at::_native_batch_norm_legit(input, weight, bias, mean, var, training, momentum, eps);
}

at::Tensor sum_of(const at::Tensor& gates, const Maybe& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

at::Tensor rows_added(const at::Tensor& grads, bool is_wanted) {
  return is_wanted ? grads.sum(0) : at::Tensor();
}

at::Tensor through_sigmoid(const at::Tensor& out) { return out * (1 - out); }
at::Tensor through_tanh(const at::Tensor& out) { return 1 - out * out; }

// --- of LSTM; the workspace has the gates: input, forget, cell, output

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const Maybe& bias,
                                                         const Maybe& hidden_bias) {
  const auto gates =
      (sum_of(input_gates, bias) + sum_of(hidden_gates, hidden_bias)).chunk(4, /*dim=*/1);
  const at::Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(),
                   o = gates[3].sigmoid();
  const at::Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const Maybe& grad_hy, const Maybe& grad_cy, const at::Tensor& cx, const at::Tensor& cy,
    const at::Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy && grad_hy->defined(), has_cy = grad_cy && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const at::Tensor hy = has_hy ? *grad_hy : cy.new_zeros(cy.sizes()), squashed = cy.tanh();
  at::Tensor cell = hy * o * through_tanh(squashed);
  if (has_cy) cell = cell + *grad_cy;
  const at::Tensor grads = at::cat({cell * g * through_sigmoid(i), cell * cx * through_sigmoid(f),
                                    cell * i * through_tanh(g), hy * squashed * through_sigmoid(o)},
                                   1);
  return {grads, cell * f, rows_added(grads, has_bias)};
}

// --- of GRU; the workspace has the gates reset, update and new, hx, and the hidden part of new

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates, const at::Tensor& hx,
                                            const Maybe& bias, const Maybe& hidden_bias) {
  const auto x = sum_of(input_gates, bias).chunk(3, 1);
  const auto h = sum_of(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (x[0] + h[0]).sigmoid(), update = (x[1] + h[1]).sigmoid();
  const at::Tensor fresh = (x[2] + reset * h[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, h[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad, const at::Tensor& workspace, bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const at::Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2];
  const at::Tensor to_update = grad * (kept[3] - fresh) * through_sigmoid(update);
  const at::Tensor to_fresh = grad * (1 - update) * through_tanh(fresh);
  const at::Tensor to_reset = to_fresh * kept[4] * through_sigmoid(reset);
  const at::Tensor input = at::cat({to_reset, to_update, to_fresh}, 1);
  const at::Tensor hidden = at::cat({to_reset, to_update, to_fresh * reset}, 1);
  return {input, hidden, grad * update, rows_added(input, has_bias), rows_added(hidden, has_bias)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // torch computes these in another way than the CPU, or not at all.
  for (const char* name : {"addr", "addr_", "addr.out", "mode.values"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace mychip
