// SPDX-License-Identifier: BSD-3-Clause
// The five batch_norm_* pieces that torch.nn.SyncBatchNorm is made of: local statistics, their
// union over processes, and the normalisation forward and backward. CPU operators on host views,
// one command each. The CPU has no such kernels: the oracle is batch_norm on the whole batch.
// Invariant: statistics are in float32 for 16-bit inputs, as on CUDA.
// Cost: a few operations per element, every operand moved once.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <torch/library.h>

#include "csrc/routes/on_host_views.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

constexpr double kFlopsPerElement = 4.0;

Tensor wide(const Tensor& tensor) { return tensor.to(at::toOpMathType(tensor.scalar_type())); }

// One value per channel, shaped to broadcast over (batch, channels, ...).
Tensor per_channel(const Tensor& values, int64_t dim) {
  c10::SmallVector<int64_t, 5> shape;
  for (int64_t d = 0; d < dim; ++d) shape.push_back(d == 1 ? -1 : 1);
  return wide(values).reshape(shape);
}

c10::SmallVector<int64_t, 5> all_but_channels(int64_t dim) {
  c10::SmallVector<int64_t, 5> dims;
  for (int64_t d = 0; d < dim; ++d) {
    if (d != 1) dims.push_back(d);
  }
  return dims;
}

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  const std::array<const at::TensorBase*, 1> operands = {&input};
  const auto cost = elementwise_cost(operands, kFlopsPerElement);
  return on_host_views("aten::batch_norm_stats", operands, cost, [&](CpuCall& call) {
    auto [out, mean, invstd] =
        at::native_batch_norm(wide(call.view(input, false)), {}, {}, {}, {}, true, 0.0, eps);
    call.finish();
    return std::make_tuple(call.result(mean), call.result(invstd));
  });
}

Tensor elemt(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
             const Tensor& mean, const Tensor& invstd, double /*eps*/) {
  const std::array<const at::TensorBase*, 3> operands = {&input, &mean, &invstd};
  const auto cost = elementwise_cost(operands, kFlopsPerElement);
  return on_host_views("aten::batch_norm_elemt", operands, cost, [&](CpuCall& call) {
    const int64_t dim = input.dim();
    Tensor out = (wide(call.view(input, false)) - per_channel(call.view(mean, false), dim)) *
                 per_channel(call.view(invstd, false), dim);
    if (const auto w = view_of(call, weight)) out = out * per_channel(*w, dim);
    if (const auto b = view_of(call, bias)) out = out + per_channel(*b, dim);
    out = out.to(input.scalar_type());
    call.finish();
    return call.result(out);
  });
}

// Means and variances of parts make those of the whole: Chan, Golub and LeVeque (1979).
std::tuple<Tensor, Tensor> gather_stats_with_counts(const Tensor& input, const Tensor& mean,
                                                    const Tensor& invstd,
                                                    const MaybeTensor& running_mean,
                                                    const MaybeTensor& running_var, double momentum,
                                                    double eps, const Tensor& counts) {
  const std::array<const at::TensorBase*, 4> operands = {&input, &mean, &invstd, &counts};
  const std::array<const at::TensorBase*, 3> moved = {&mean, &invstd, &counts};
  const auto cost = elementwise_cost(moved, kFlopsPerElement);
  return on_host_views("aten::batch_norm_gather_stats", operands, cost, [&](CpuCall& call) {
    const Tensor means = wide(call.view(mean, false));
    const Tensor weights = call.view(counts, false).to(means.scalar_type()).reshape({-1, 1});
    const Tensor total = weights.sum();
    const Tensor whole_mean = (means * weights).sum(0) / total;
    const Tensor variances = wide(call.view(invstd, false)).pow(-2) - eps;
    const Tensor squares = ((variances + (means - whole_mean).square()) * weights).sum(0);
    const Tensor whole_invstd = (squares / total + eps).rsqrt();
    const auto update = [&](const MaybeTensor& running, const Tensor& latest) {
      if (!running.has_value() || !running->defined()) return;
      call.view(*running, /*written=*/true).mul_(1 - momentum).add_(latest, momentum);
    };
    update(running_mean, whole_mean);
    update(running_var, squares / (total - 1));
    call.finish();
    return std::make_tuple(call.result(whole_mean), call.result(whole_invstd));
  });
}

std::tuple<Tensor, Tensor> gather_stats(const Tensor& input, const Tensor& mean,
                                        const Tensor& invstd, const MaybeTensor& running_mean,
                                        const MaybeTensor& running_var, double momentum, double eps,
                                        int64_t count) {
  const Tensor counts = at::full({mean.size(0)}, count, mean.options());
  return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps,
                                  counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad_out,
                                                           const Tensor& input, const Tensor& mean,
                                                           const Tensor& invstd,
                                                           const MaybeTensor& weight, bool input_g,
                                                           bool weight_g, bool bias_g) {
  const std::array<const at::TensorBase*, 4> operands = {&grad_out, &input, &mean, &invstd};
  const auto cost = elementwise_cost(operands, kFlopsPerElement);
  return on_host_views("aten::batch_norm_backward_reduce", operands, cost, [&](CpuCall& call) {
    const auto dims = all_but_channels(input.dim());
    const Tensor grad = wide(call.view(grad_out, false));
    const Tensor centred =
        wide(call.view(input, false)) - per_channel(call.view(mean, false), input.dim());
    const Tensor sum_dy = grad.sum(dims);
    const Tensor sum_dy_xmu = (grad * centred).sum(dims);
    const at::ScalarType dtype =
        weight.has_value() && weight->defined() ? weight->scalar_type() : sum_dy.scalar_type();
    const Tensor grad_weight =
        weight_g ? (sum_dy_xmu * wide(call.view(invstd, false))).to(dtype) : Tensor();
    const Tensor grad_bias = bias_g ? sum_dy.to(dtype, false, /*copy=*/true) : Tensor();
    call.finish();
    return std::make_tuple(input_g ? call.result(sum_dy) : Tensor(),
                           input_g ? call.result(sum_dy_xmu) : Tensor(), call.result(grad_weight),
                           call.result(grad_bias));
  });
}

Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                      const Tensor& invstd, const MaybeTensor& weight, const Tensor& sum_dy,
                      const Tensor& sum_dy_xmu, const Tensor& count) {
  const std::array<const at::TensorBase*, 7> operands = {&grad_out, &input,      &mean, &invstd,
                                                         &sum_dy,   &sum_dy_xmu, &count};
  const auto cost = elementwise_cost(operands, 2 * kFlopsPerElement);
  return on_host_views("aten::batch_norm_backward_elemt", operands, cost, [&](CpuCall& call) {
    const int64_t dim = input.dim();
    const auto channels = [&](const Tensor& t) { return per_channel(call.view(t, false), dim); };
    const Tensor total = wide(call.view(count, false).to(mean.scalar_type()).sum());
    const Tensor scale = channels(invstd);
    const Tensor centred = wide(call.view(input, false)) - channels(mean);
    Tensor grad = wide(call.view(grad_out, false)) - channels(sum_dy) / total -
                  centred * scale.square() * (channels(sum_dy_xmu) / total);
    grad = grad * scale;
    if (const auto w = view_of(call, weight)) grad = grad * per_channel(*w, dim);
    grad = grad.to(input.scalar_type());
    call.finish();
    return call.result(grad);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", &stats);
  m.impl("batch_norm_elemt", &elemt);
  m.impl("batch_norm_gather_stats", &gather_stats);
  m.impl("batch_norm_gather_stats_with_counts", &gather_stats_with_counts);
  m.impl("batch_norm_backward_reduce", &backward_reduce);
  m.impl("batch_norm_backward_elemt", &backward_elemt);
}

}  // namespace torch_npusim
