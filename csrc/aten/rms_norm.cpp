// SPDX-License-Identifier: BSD-3-Clause
// rms_norm: torch's composite for every device but CUDA, which has kernels of its own
// (layer_norm_kernel.cu: _fused_rms_norm_cuda). A kernel under that name here makes autograd keep
// what CUDA keeps, the input, the weight and a number per row, instead of the composite's five
// tensors. Values are those of the composite and of its backward pass on the CPU, operation by
// operation; results and their order are CUDA's.
// Cost: as a layer norm without its mean.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <torch/library.h>

#include "csrc/operands/device_empty.h"
#include "csrc/routes/cuda_kernels.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/on_host_views.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

npusim::Cost rms_norm_cost(Operands operands, double flops_per_element) {
  npusim::Cost cost = elementwise_cost(operands);
  cost.work = npusim::Work::normalization;
  cost.flops = flops_per_element * static_cast<double>(operands.back()->numel());
  return cost;
}

// The sizes of `input`, 1 in normalised dimensions.
c10::SmallVector<int64_t, 5> sizes_of_rows(const Tensor& input, at::IntArrayRef normalized) {
  const auto rows = input.dim() - static_cast<int64_t>(normalized.size());
  TORCH_CHECK(!normalized.empty() && rows >= 0 &&
                  input.sizes().slice(static_cast<std::size_t>(rows)) == normalized,
              "Given normalized_shape=", normalized, ", expected input with shape [*, ", normalized,
              "], but got input of size", input.sizes());
  c10::SmallVector<int64_t, 5> sizes(input.sizes().begin(), input.sizes().end());
  std::fill(sizes.begin() + rows, sizes.end(), 1);
  return sizes;
}

// The copy that CUDA's kernels make of an operand that is not contiguous.
c10::DataPtr cuda_copy(const Tensor& tensor, c10::DeviceIndex device) {
  const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
  return as_cuda() && !tensor.is_contiguous() ? allocate_on_device(bytes, device) : c10::DataPtr();
}

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& input, at::IntArrayRef normalized,
                                            const MaybeTensor& weight, std::optional<double> eps) {
  const auto rows = sizes_of_rows(input, normalized);
  const Tensor no_weight;
  const std::array<const at::TensorBase*, 2> operands = {weight.has_value() ? &*weight : &no_weight,
                                                         &input};
  return on_host_views(
      "aten::_fused_rms_norm", operands, rms_norm_cost(operands, 4), [&](CpuCall& call) {
        if (as_cuda()) count_kernels("aten::_fused_rms_norm", operands, {});
        const auto copy = cuda_copy(input, call.device());
        const at::ScalarType wide = at::toOpMathType(input.scalar_type());
        const Tensor out = device_empty(input.sizes(), input.scalar_type(), call.device());
        const Tensor rstd = device_empty(rows, wide, call.device());
        const Tensor x = call.view(input, false);
        const MaybeTensor w = view_of(call, weight);
        const Tensor to = call.view(out, true), rstd_to = call.view(rstd, true);
        if (!npusim::dry()) {
          const auto [host, host_rstd] = at::_fused_rms_norm(x, normalized, w, eps);
          to.copy_(host);
          rstd_to.copy_(host_rstd);
        }
        call.finish();
        return std::make_tuple(out, rstd);
      });
}

// LaunchGammaBetaBackwardCUDAKernel: many short rows have a partial sum for each 32 of them.
void take_partial_sums(int64_t rows, int64_t width, const Tensor& weight, c10::DeviceIndex device) {
  constexpr int64_t kMany = 64 * 1024, kWarp = 32, kRowsPerBlock = 32, kBlocks = 32 * 1024;
  if (rows <= kMany || width / kWarp >= npusim::device_spec(device).multiprocessor_count / 2) {
    return;
  }
  const int64_t across = (width + kWarp - 1) / kWarp;
  const int64_t down = std::min(kBlocks / across, (rows + kRowsPerBlock - 1) / kRowsPerBlock);
  allocated_together({static_cast<double>(down * width) * static_cast<double>(weight.itemsize())},
                     device);
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_out, const Tensor& input,
                                             at::IntArrayRef normalized, const Tensor& rstd,
                                             const MaybeTensor& weight,
                                             std::array<bool, 2> wanted) {
  const auto rows = sizes_of_rows(input, normalized);
  const bool weighted = weight.has_value() && weight->defined();
  const Tensor no_weight;
  const std::array<const at::TensorBase*, 4> operands = {weighted ? &*weight : &no_weight, &rstd,
                                                         &grad_out, &input};
  return on_host_views(
      "aten::_fused_rms_norm_backward", operands, rms_norm_cost(operands, 7), [&](CpuCall& call) {
        if (as_cuda()) count_kernels("aten::_fused_rms_norm_backward", operands, {});
        const auto copy_of_grad = cuda_copy(grad_out, call.device());
        const auto copy = cuda_copy(input, call.device());
        Tensor grad_input, grad_weight;
        const auto made = [&](const Tensor& like) {
          return device_empty(like.sizes(), like.scalar_type(), call.device());
        };
        if (wanted[0]) grad_input = made(input);
        if (wanted[1] && weighted) grad_weight = made(*weight);
        if (as_cuda() && grad_weight.defined()) {
          const int64_t width = c10::multiply_integers(normalized);
          take_partial_sums(input.numel() / std::max<int64_t>(width, 1), width, *weight,
                            call.device());
        }
        const at::ScalarType wide = at::toOpMathType(input.scalar_type());
        const Tensor given = call.view(grad_out, false), narrow = call.view(input, false);
        const Tensor scale = call.view(rstd, false);
        const MaybeTensor w = view_of(call, weight);
        const Tensor to = grad_input.defined() ? call.view(grad_input, true) : Tensor();
        const Tensor weight_to = grad_weight.defined() ? call.view(grad_weight, true) : Tensor();
        if (!npusim::dry()) {
          // Autograd's formulas of the composite: mul, mul, rsqrt, mean, pow.
          const Tensor grad = given.to(wide), x = narrow.to(wide);
          if (weight_to.defined()) weight_to.copy_(at::sum_to(grad * (x * scale), weight->sizes()));
          if (to.defined()) {
            const Tensor of_product = w.has_value() ? grad * *w : grad;
            const Tensor of_scale = at::sum_to(of_product * x, at::IntArrayRef(rows));
            const Tensor of_mean = -0.5 * of_scale * scale.pow(3);
            const Tensor of_square = of_mean.expand(x.sizes()) / c10::multiply_integers(normalized);
            to.copy_(of_product * scale + of_square * (2 * x.pow(1)));
          }
        }
        call.finish();
        return std::make_tuple(grad_input, grad_weight);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_rms_norm", &rms_norm_forward);
  m.impl("_fused_rms_norm_backward", &rms_norm_backward);
}

}  // namespace torch_npusim
