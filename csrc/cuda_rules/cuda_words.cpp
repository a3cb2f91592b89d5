// SPDX-License-Identifier: BSD-3-Clause
// The names of kernels in errors about dtypes. Most differ by "cpu" and "cuda"; the others are
// rows. A kernel of the CPU that several operators share has a row per operator.
#include "csrc/cuda_rules/cuda_words.h"

#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "backend/backend.h"

namespace torch_npusim {

namespace {

struct Name {
  std::string_view cpu;
  std::string_view cuda;
  std::string_view op = {};  // only in commands whose name begins with this
};

// From aten/src/ATen/native/{cpu,cuda}; an H100 with torch 2.11 said so (docs/reference/truth.md).
constexpr std::array kNames = {
    Name{"GeluKernelImpl", "GeluCUDAKernelImpl"},
    Name{"_segment_reduce_cpu", "segment_reduce_cuda"},
    Name{"adaptive_avg_pool2d", "adaptive_avg_pool2d_cuda"},
    Name{"adaptive_max_pool2d", "adaptive_max_pool2d_cuda"},
    Name{"add_stub", "ufunc_add_CUDA"},
    Name{"addcdiv_cpu_out", "addcdiv_cuda"},
    Name{"addcmul_cpu_out", "addcmul_cuda"},
    Name{"addmm_impl_cpu_", "addmm_cuda"},
    Name{"avg_pool2d", "avg_pool2d_out_cuda_frame"},
    Name{"avg_pool3d_out_frame", "avg_pool3d_out_cuda"},
    Name{"baddbmm", "baddbmm_cuda"},
    Name{"binary_cross_entropy", "binary_cross_entropy_out_cuda"},
    Name{"bmm", "baddbmm_cuda"},
    Name{"cdist", "cdist_cuda"},
    Name{"cholesky_cpu", "cholesky_cusolver"},
    Name{"cholesky_inverse_out_cpu", "cholesky_cuda_potri"},
    Name{"clamp_min_scalar_cpu", "clamp_scalar_cuda"},
    Name{"compute_index_ranges_weights", "upsample_bilinear2d_out_frame"},
    Name{"compute_indices_weights_cubic", "upsample_bicubic2d_out_frame"},
    Name{"compute_indices_weights_linear", "upsample_trilinear3d_out_frame",
         "aten::upsample_trilinear3d"},
    Name{"compute_indices_weights_linear", "upsample_linear1d_out_frame"},
    Name{"compute_indices_weights_nearest", "upsample_nearest1d_out_frame",
         "aten::upsample_nearest1d"},
    Name{"compute_indices_weights_nearest", "upsample_nearest1d_out_frame",
         "aten::_upsample_nearest_exact1d"},
    Name{"cross", "cross_cuda"},
    Name{"cumprod_out_cpu", "cumprod_cuda"},
    Name{"cumsum_out_cpu", "cumsum_cuda"},
    Name{"digamma", "digamma_cuda"},
    Name{"exp2", "exp2_cuda"},
    Name{"fractional_max_pool2d_out_frame", "fractional_max_pool2d_out_cuda_frame"},
    Name{"ge_cpu", "compare_cuda"},
    Name{"grid_sampler3d_cpu", "grid_sampler_3d_cuda"},
    Name{"grid_sampler_2d_cpu_kernel_impl", "grid_sampler_2d_cuda"},
    Name{"gt_cpu", "compare_cuda"},
    Name{"histogram_cpu", "histc", "aten::histc"},
    Name{"index_add_", "index_add"},
    Name{"index_func_", "index_reduce"},
    Name{"index_reduce_func_exclude_input_init", "index_reduce_func_cuda_exclude_input_init"},
    Name{"ldl_factor_kernel_cpu", "ldl_factor_looped_cusolver"},
    Name{"le_cpu", "compare_cuda"},
    Name{"lerp_kernel_scalar", "lerp_cuda"},
    Name{"linalg_svd_cpu", "svd_cuda_gesvdjBatched"},
    Name{"linspace_cpu", "histc", "aten::histc"},
    Name{"log_sigmoid_cpu", "log_sigmoid_forward_cuda"},
    Name{"log_softmax_kernel_impl", "host_softmax"},
    Name{"log_softmax_lastdim_kernel_impl", "host_softmax"},
    Name{"logcumsumexp_out_cpu", "logcumsumexp_cuda"},
    Name{"lt_cpu", "compare_cuda"},
    Name{"lu_cpu", "lu_factor_magma_batched"},
    Name{"masked_fill", "masked_fill_"},
    Name{"masked_scatter", "masked_scatter_"},
    Name{"masked_select", "index_cuda"},
    Name{"max_all", "max_all_cuda"},
    Name{"max_pool2d", "max_pool2d_with_indices_out_cuda_frame"},
    Name{"max_pool3d", "max_pool3d_with_indices_out_frame"},
    Name{"maximum_cpu", "max_elementwise_cuda"},
    Name{"median_out", "median_out_impl"},
    Name{"min_all", "min_all_cuda"},
    Name{"minimum_cpu", "min_elementwise_cuda"},
    Name{"mode_cpu", "cuda_mode"},
    Name{"mul_cpu_reduced_float", "mul_cuda"},
    Name{"multi_margin_loss_cpu_kernel", "multi_margin_loss_cuda"},
    Name{"multilabel_margin_loss_forward_out_frame", "multilabel_margin_loss_forward_kernel"},
    Name{"nan_to_num", "nan_to_num_cuda"},
    Name{"nll_loss_out_frame", "nll_loss_forward_no_reduce_cuda_kernel"},
    Name{"nonzero_count_cpu", "nonzero_cuda"},
    Name{"polygamma", "polygamma_cuda"},
    Name{"pow", "pow_cuda"},
    Name{"prod_out_cpu", "prod_cuda"},
    Name{"reflection_pad1d", "reflection_pad1d_out"},
    Name{"replication_pad1d", "replication_pad1d_cuda"},
    Name{"replication_pad2d", "replication_pad2d_cuda"},
    Name{"rms_norm", "LayerNormKernelImpl"},
    Name{"scatter_gather_tensor_cpu", "cuda_scatter_gather_base_kernel_func"},
    Name{"scatter_gather_tensor_cpu_reduce_amax", "cuda_scatter_gather_base_kernel_func"},
    Name{"scatter_gather_tensor_cpu_reduce_amin", "cuda_scatter_gather_base_kernel_func"},
    Name{"scatter_gather_tensor_cpu_reduce_mean", "cuda_scatter_gather_base_kernel_func"},
    Name{"sigmoid_cpu_reduced_float", "sigmoid_cuda"},
    Name{"softmax_kernel_impl", "host_softmax"},
    Name{"softmax_lastdim_kernel_impl", "host_softmax"},
    Name{"sum_cpu", "mean_cuda", "aten::mean"},
    Name{"take_put_cpu", "put_cuda"},
    Name{"topk_cpu", "topk_out_cuda"},
    Name{"trace", "sum_cuda"},
    Name{"trigamma", "trigamma_cuda"},
    Name{"tril", "triu_tril_cuda_template"},
    Name{"triu", "triu_tril_cuda_template"},
    Name{"upsample_bilinear2d_channels_last", "upsample_bilinear2d_out_frame"},
};

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPhrases = {{
    {"but got torch.", "but got torch.cuda."},
    {"but got CPU", "but got CUDA"},
    {"expected m1 and m2 to have", "expected mat1 and mat2 to have"},
    {"MKL FFT doesn't support tensors of", "cuFFT doesn't support tensor of"},
}};

void replace(std::string& text, std::string_view what, std::string_view by) {
  const std::size_t place = text.find(what);
  if (place != std::string::npos) text.replace(place, what.size(), by);
}

std::string cuda_name(std::string cpu) {
  const npusim::RunningCommand* command = npusim::detail::t_state.run;
  const std::string_view op = command == nullptr ? "" : command->info().name;
  for (const Name& name : kNames) {
    if (name.cpu == cpu && op.substr(0, name.op.size()) == name.op) return std::string(name.cuda);
  }
  replace(cpu, "_vml_cpu", "_cpu");
  replace(cpu, "_cpu", "_cuda");
  return cpu;
}

}  // namespace

std::string with_cuda_types(std::string text) {
  constexpr std::string_view kDevice = "cuda", kType = "Type";
  for (std::size_t at = text.find(kDevice); at != std::string::npos; at = text.find(kDevice, at)) {
    at += kDevice.size();
    std::size_t end = at;
    while (end < text.size() && std::isalpha(static_cast<unsigned char>(text[end])) != 0) ++end;
    const std::string name = text.substr(at, end - at);
    const bool is_type = name.size() > kType.size() && name.ends_with(kType) &&
                         std::isupper(static_cast<unsigned char>(name[0])) != 0;
    if (!is_type) continue;
    text.replace(at - kDevice.size(), kDevice.size() + name.size(),
                 "torch.cuda." + name.substr(0, name.size() - kType.size()) + "Tensor");
  }
  return text;
}

std::string in_cuda_words(std::string text) {
  constexpr std::string_view kRefused = "\" not implemented for '";
  const std::size_t end = text.find(kRefused);
  if (text.empty() || text.front() != '"' || end == std::string::npos) {
    for (const auto& [cpu, cuda] : kPhrases) replace(text, cpu, cuda);
    return text;
  }
  return '"' + cuda_name(text.substr(1, end - 1)) + text.substr(end);
}

}  // namespace torch_npusim
