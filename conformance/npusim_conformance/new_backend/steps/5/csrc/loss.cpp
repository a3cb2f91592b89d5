// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy: log_softmax over the last dimension of a matrix and nll_loss, with gradients.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>

#include <cmath>

#include "operators.h"

namespace mychip {
namespace {

struct Rows {
  float* out;
  const float *a, *b;
  std::int64_t rows, columns;
};

void log_softmax_kernel(const void* given) {
  const auto& [out, self, unused, rows, columns] = *static_cast<const Rows*>(given);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* in = self + row * columns;
    float largest = in[0];
    for (std::int64_t k = 1; k < columns; ++k) {
      if (in[k] > largest || std::isnan(in[k])) largest = in[k];
    }
    double sum = 0.0;
    for (std::int64_t k = 0; k < columns; ++k) sum += std::exp(in[k] - largest);
    const auto log_of_sum = static_cast<float>(std::log(sum));
    for (std::int64_t k = 0; k < columns; ++k) {
      out[row * columns + k] = in[k] - largest - log_of_sum;
    }
  }
}

void log_softmax_backward_kernel(const void* given) {
  const auto& [out, grad, output, rows, columns] = *static_cast<const Rows*>(given);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t first = row * columns;
    double sum = 0.0;
    for (std::int64_t k = 0; k < columns; ++k) sum += grad[first + k];
    for (std::int64_t k = 0; k < columns; ++k) {
      out[first + k] = grad[first + k] - std::exp(output[first + k]) * static_cast<float>(sum);
    }
  }
}

bool is_matrix_of_rows(const at::Tensor& tensor, std::int64_t dim) {
  return tensor.dim() == 2 && (dim == 1 || dim == -1) && tensor.is_contiguous() &&
         tensor.numel() > 0;
}

at::Tensor& log_softmax_out(const at::Tensor& self, std::int64_t dim, bool half_to_float,
                            at::Tensor& out) {
  if (!is_for_chip(out, {self}) || !is_matrix_of_rows(self, dim) || !out.is_contiguous()) {
    return ON_CPU(_log_softmax_out, self, dim, half_to_float, out);
  }
  resize_out(out, self.sizes());
  launch(out, &log_softmax_kernel,
         Rows{floats(out), read(self), nullptr, self.size(0), self.size(1)});
  return out;
}

at::Tensor& log_softmax_backward_out(const at::Tensor& grad, const at::Tensor& output,
                                     std::int64_t dim, at::ScalarType dtype, at::Tensor& out) {
  if (!is_for_chip(out, {grad, output}) || !is_matrix_of_rows(grad, dim) ||
      !output.is_contiguous() || !out.is_contiguous()) {
    return ON_CPU(_log_softmax_backward_data_out, grad, output, dim, dtype, out);
  }
  resize_out(out, grad.sizes());
  launch(out, &log_softmax_backward_kernel,
         Rows{floats(out), read(grad), read(output), grad.size(0), grad.size(1)});
  return out;
}

struct Nll {
  const float* self;  // forward: log probabilities; backward: the gradient of the loss
  const std::int64_t* target;
  float *loss, *total;  // backward: the gradient of the probabilities, unused
  std::int64_t rows, columns, ignored;
  bool is_mean;
  bool* is_wrong;  // a target that is no class
};

void nll_forward_kernel(const void* given) {
  const auto& nll = *static_cast<const Nll*>(given);
  double sum = 0.0;
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < nll.rows; ++row) {
    const std::int64_t target = nll.target[row];
    if (target == nll.ignored) continue;
    if (target < 0 || target >= nll.columns) {
      *nll.is_wrong = true;
      return;
    }
    sum -= nll.self[row * nll.columns + target];
    ++count;
  }
  *nll.loss = static_cast<float>(nll.is_mean ? sum / static_cast<double>(count) : sum);
  *nll.total = static_cast<float>(count);
}

void nll_backward_kernel(const void* given) {
  const auto& nll = *static_cast<const Nll*>(given);
  const float scale = nll.is_mean ? *nll.self / *nll.total : *nll.self;
  for (std::int64_t row = 0; row < nll.rows; ++row) {
    const std::int64_t target = nll.target[row];
    for (std::int64_t k = 0; k < nll.columns; ++k) nll.loss[row * nll.columns + k] = 0.0f;
    if (target != nll.ignored) nll.loss[row * nll.columns + target] = -scale;
  }
}

constexpr std::int64_t kMean = 1, kSum = 2;  // at::Reduction

bool is_plain(const at::Tensor& self, const at::Tensor& target,
              const std::optional<at::Tensor>& weight, std::int64_t reduction) {
  return !(weight && weight->defined()) && (reduction == kMean || reduction == kSum) &&
         is_matrix_of_rows(self, 1) && target.dim() == 1 && target.size(0) == self.size(0) &&
         target.scalar_type() == at::kLong && target.is_contiguous() &&
         target.device() == self.device();
}

std::tuple<at::Tensor&, at::Tensor&> nll_forward(const at::Tensor& self, const at::Tensor& target,
                                                 const std::optional<at::Tensor>& weight,
                                                 std::int64_t reduction, std::int64_t ignored,
                                                 at::Tensor& out, at::Tensor& total) {
  if (!is_for_chip(out, {self}) || !is_plain(self, target, weight, reduction)) {
    return ON_CPU(nll_loss_forward_output, self, target, weight, reduction, ignored, out, total);
  }
  resize_out(out, {});
  resize_out(total, {});
  bool is_wrong = false;  // a chip of its own would write it to its memory
  launch(out, &nll_forward_kernel,
         Nll{read(self), target.const_data_ptr<std::int64_t>(), floats(out), floats(total),
             self.size(0), self.size(1), ignored, reduction == kMean, &is_wrong});
  TORCH_CHECK_INDEX(!is_wrong, "Target out of bounds: there are ", self.size(1), " classes");
  return {out, total};
}

at::Tensor& nll_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight, std::int64_t reduction,
                         std::int64_t ignored, const at::Tensor& total, at::Tensor& out) {
  if (!is_for_chip(out, {grad, self}) || !is_plain(self, target, weight, reduction) ||
      !out.is_contiguous()) {
    return ON_CPU(nll_loss_backward_grad_input, grad, self, target, weight, reduction, ignored,
                  total, out);
  }
  resize_out(out, self.sizes());
  launch(out, &nll_backward_kernel,
         Nll{read(grad), target.const_data_ptr<std::int64_t>(), floats(out), floats(total),
             self.size(0), self.size(1), ignored, reduction == kMean, nullptr});
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_log_softmax.out", &log_softmax_out);
  m.impl("_log_softmax_backward_data.out", &log_softmax_backward_out);
  m.impl("nll_loss_forward.output", &nll_forward);
  m.impl("nll_loss_backward.grad_input", &nll_backward);
}

}  // namespace
}  // namespace mychip
