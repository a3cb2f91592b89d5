// SPDX-License-Identifier: BSD-3-Clause
// _thnn_fused_lstm_cell and _thnn_fused_gru_cell with their backward: one command per cell and
// direction, CPU operators on host views. torch.nn does not come here (see rnn.cpp: the CPU has no
// fused cells); code written for CUDA that calls them does. The CPU has no counterpart to be equal
// to, so the oracle is gradcheck.
// Invariant: the workspace holds what backward needs, and only backward reads it:
// LSTM the activated gates (in, forget, candidate, out); GRU (reset, update, candidate, h, h-new).
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "csrc/routes/on_host_views.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

constexpr double kFlopsPerGate = 10.0;

// gates_of() splits a matrix of gates. torch.nn's cells are checked before they come here, direct
// calls are not.
std::vector<Tensor> gates_of(const char* op, const Tensor& gates, std::int64_t count) {
  TORCH_CHECK(gates.dim() == 2 && gates.size(1) % count == 0, op,
              ": expected a matrix with a multiple of ", count,
              " columns, one block per gate, got ", gates.sizes());
  return gates.chunk(count, 1);
}

Tensor with_bias(CpuCall& call, const Tensor& gates, const Tensor& bias) {
  return bias.defined() ? gates + call.view(bias, false) : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& maybe_input_bias,
                                             const MaybeTensor& maybe_hidden_bias) {
  const Tensor input_bias = maybe_input_bias.value_or(Tensor());
  const Tensor hidden_bias = maybe_hidden_bias.value_or(Tensor());
  const std::array<const at::TensorBase*, 5> operands = {&input_gates, &hidden_gates, &cx,
                                                         &input_bias, &hidden_bias};
  const auto cost = elementwise_cost(operands, kFlopsPerGate);
  return on_host_views("aten::_thnn_fused_lstm_cell", operands, cost, [&](CpuCall& call) {
    Tensor gates = call.view(input_gates, false) + call.view(hidden_gates, false);
    gates = with_bias(call, with_bias(call, gates, input_bias), hidden_bias);
    const auto g = gates_of("aten::_thnn_fused_lstm_cell", gates, 4);
    const Tensor in = g[0].sigmoid(), forget = g[1].sigmoid(), candidate = g[2].tanh(),
                 out = g[3].sigmoid();
    const Tensor cy = forget * call.view(cx, false) + in * candidate;
    const Tensor hy = out * cy.tanh();
    const Tensor workspace = at::cat({in, forget, candidate, out}, 1);
    call.finish();
    return std::make_tuple(call.result(hy), call.result(cy), call.result(workspace));
  });
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy,
                                                      const MaybeTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const Tensor grad_h = grad_hy.value_or(Tensor()), grad_c = grad_cy.value_or(Tensor());
  if (!grad_h.defined() && !grad_c.defined()) return {};
  const std::array<const at::TensorBase*, 5> operands = {&cx, &cy, &workspace, &grad_h, &grad_c};
  const auto cost = elementwise_cost(operands, kFlopsPerGate);
  return on_host_views(
      "aten::_thnn_fused_lstm_cell_backward_impl", operands, cost, [&](CpuCall& call) {
        const auto g =
            gates_of("aten::_thnn_fused_lstm_cell_backward_impl", call.view(workspace, false), 4);
        const Tensor tanh_cy = call.view(cy, false).tanh();
        Tensor grad_cell = grad_c.defined() ? call.view(grad_c, false) : Tensor();
        Tensor grad_out = at::zeros_like(tanh_cy);
        if (grad_h.defined()) {
          const Tensor grad = call.view(grad_h, false);
          grad_out = at::sigmoid_backward(grad * tanh_cy, g[3]);
          const Tensor through_hidden = at::tanh_backward(grad * g[3], tanh_cy);
          grad_cell = grad_cell.defined() ? grad_cell + through_hidden : through_hidden;
        }
        const Tensor grad_gates =
            at::cat({at::sigmoid_backward(grad_cell * g[2], g[0]),
                     at::sigmoid_backward(grad_cell * call.view(cx, false), g[1]),
                     at::tanh_backward(grad_cell * g[0], g[2]), grad_out},
                    1);
        const Tensor grad_cx = grad_cell * g[1];
        const Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
        call.finish();
        return std::make_tuple(call.result(grad_gates), call.result(grad_cx),
                               call.result(grad_bias));
      });
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const MaybeTensor& maybe_input_bias,
                                    const MaybeTensor& maybe_hidden_bias) {
  const Tensor input_bias = maybe_input_bias.value_or(Tensor());
  const Tensor hidden_bias = maybe_hidden_bias.value_or(Tensor());
  const std::array<const at::TensorBase*, 5> operands = {&input_gates, &hidden_gates, &hx,
                                                         &input_bias, &hidden_bias};
  const auto cost = elementwise_cost(operands, kFlopsPerGate);
  constexpr const char* kGruCell = "aten::_thnn_fused_gru_cell";
  return on_host_views(kGruCell, operands, cost, [&](CpuCall& call) {
    const auto in =
        gates_of(kGruCell, with_bias(call, call.view(input_gates, false), input_bias), 3);
    const auto hid =
        gates_of(kGruCell, with_bias(call, call.view(hidden_gates, false), hidden_bias), 3);
    const Tensor h = call.view(hx, false);
    const Tensor reset = (in[0] + hid[0]).sigmoid(), update = (in[1] + hid[1]).sigmoid();
    const Tensor candidate = (in[2] + reset * hid[2]).tanh();
    const Tensor hy = candidate + update * (h - candidate);
    const Tensor workspace = at::cat({reset, update, candidate, h, hid[2]}, 1);
    call.finish();
    return std::make_tuple(call.result(hy), call.result(workspace));
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const std::array<const at::TensorBase*, 2> operands = {&grad_hy, &workspace};
  const auto cost = elementwise_cost(operands, kFlopsPerGate);
  return on_host_views("aten::_thnn_fused_gru_cell_backward", operands, cost, [&](CpuCall& call) {
    const auto w = gates_of("aten::_thnn_fused_gru_cell_backward", call.view(workspace, false), 5);
    const Tensor &reset = w[0], &update = w[1], &candidate = w[2], &h = w[3], &hidden_new = w[4];
    const Tensor grad = call.view(grad_hy, false);
    const Tensor grad_update = at::sigmoid_backward(grad * (h - candidate), update);
    const Tensor grad_new = at::tanh_backward(grad * (1 - update), candidate);
    const Tensor grad_reset = at::sigmoid_backward(grad_new * hidden_new, reset);
    const Tensor grad_input = at::cat({grad_reset, grad_update, grad_new}, 1);
    const Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_new * reset}, 1);
    const Tensor grad_hx = grad * update;
    const Tensor input_bias = has_bias ? grad_input.sum(0) : Tensor();
    const Tensor hidden_bias = has_bias ? grad_hidden.sum(0) : Tensor();
    call.finish();
    return std::make_tuple(call.result(grad_input), call.result(grad_hidden), call.result(grad_hx),
                           call.result(input_bias), call.result(hidden_bias));
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace torch_npusim
