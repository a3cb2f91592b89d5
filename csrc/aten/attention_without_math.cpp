// SPDX-License-Identifier: BSD-3-Clause
// Attention where math is ruled out: the choice among CUDA's kernels, and the operators of
// efficient and cuDNN attention. Conditions are those of
// ATen/native/transformers/cuda/sdp_utils.cpp as torch 2.6 and a later state of its main branch
// have them; where these differ, the wider one. Conditions that all devices share are torch's own
// functions. cuDNN is one of 9.11 or later. The operators are the CPU's fused attention under
// CUDA's names, so commands, saved tensors and selective checkpoints are named as on CUDA. Bits are
// the CPU's. The CPU's kernel lacks dropout, masks that want a gradient, values of another width
// and grouped heads: attention.cpp sends these to torch's composite of matmul and softmax.
#include "csrc/aten/attention_without_math.h"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <initializer_list>

#include "csrc/aten/cuda_attention.h"
#include "csrc/operands/device_empty.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/on_host_views.h"

namespace torch_npusim {

namespace {

using sdp::sdp_params;
using Condition = bool (*)(const sdp_params&, bool debug);

std::atomic<int> g_capability{0};  // 10 * major + minor
int capability() noexcept { return g_capability.load(std::memory_order_relaxed); }

template <class... Words>
bool refuse(bool debug, const Words&... words) {
  if (debug) TORCH_WARN(words...);
  return false;
}

c10::SymInt width(const at::Tensor& tensor) { return tensor.sym_size(-1); }

bool is_half(const sdp_params& params) {
  const at::ScalarType dtype = params.query.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

template <class... Dtypes>
bool has_dtype(const sdp_params& params, bool debug, Dtypes... dtypes) {
  return sdp::check_tensor_dtype(params, std::array<at::ScalarType, sizeof...(dtypes)>{dtypes...},
                                 debug);
}

bool low_precision(const sdp_params& params, bool debug) {
  return capability() >= 80 ? has_dtype(params, debug, at::kHalf, at::kBFloat16)
                            : has_dtype(params, debug, at::kHalf);
}

bool efficient_dtype(const sdp_params& params, bool debug) {
  return capability() >= 80 ? has_dtype(params, debug, at::kHalf, at::kFloat, at::kBFloat16)
                            : has_dtype(params, debug, at::kHalf, at::kFloat);
}

bool flash_width(const sdp_params& params, bool debug) {
  const c10::SymInt query = width(params.query), key = width(params.key);
  const c10::SymInt value = width(params.value);
  if (query == key && query == value && query <= 256) return true;
  return refuse(debug,
                "Flash attention requires q,k,v to have the same last dimension and to be less "
                "than or equal to 256. Got Query.size(-1): ",
                query, ", Key.size(-1): ", key, ", Value.size(-1): ", value, " instead.");
}

bool flash_chip(const sdp_params& /*params*/, bool debug) {
  if (capability() >= 80) return true;
  return refuse(debug,
                "Flash attention only supports gpu architectures in the range [sm80, sm121]. "
                "Attempting to run on a sm ",
                capability() / 10, ".", capability() % 10, " gpu.");
}

bool flash_training(const sdp_params& params, bool debug) {
  const bool small = (capability() >= 86 && capability() <= 89) || capability() >= 120;
  const c10::SymInt head = width(params.query);
  if (!small || !sdp::input_requires_grad(params) || head <= 192) return true;
  if (params.dropout == 0 && head > 224) return true;
  return refuse(debug,
                "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or "
                "(head_dim ∈ (224, 256] and dropout > 0.0) on gpu architectures in the "
                "range[sm86, sm89].Attempting to run with dropout set to: ",
                params.dropout, "and head_dim: ", head, " on a sm ", capability() / 10, ".",
                capability() % 10, " gpu.");
}

bool flash_causal(const sdp_params& params, bool debug) {
  const c10::SymInt queries = params.query.sym_size(-2), keys = params.key.sym_size(-2);
  if (!params.is_causal || queries == keys) return true;
  return refuse(debug,
                "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. "
                "Got seqlen_q: ",
                queries, " seqlen_k: ", keys,
                ". If you would like to use causal attention with non-square masks, please see "
                "CausalAttnMask.");
}

bool efficient_width(const sdp_params& params, bool debug) {
  int alignment = 1;
  if (capability() >= 80) {
    alignment = is_half(params) ? 8 : 4;
  } else if (capability() >= 70 && is_half(params)) {
    alignment = 8;
  }
  const c10::SymInt query = width(params.query), key = width(params.key);
  const c10::SymInt value = width(params.value);
  if (query == key && query % alignment == 0 && query > 0 && value % alignment == 0 && value > 0) {
    return true;
  }
  return refuse(debug,
                "Mem efficient attention requires last dimension of inputs to be divisible by ",
                alignment, ". Got Query.size(-1): ", query, ", Key.size(-1): ", key,
                ", Value.size(-1): ", value, " instead.");
}

bool cudnn_enabled(const sdp_params& /*params*/, bool debug) {
  if (at::globalContext().userEnabledCuDNNSDP()) return true;
  return refuse(debug, "cuDNN attention has been runtime disabled.");
}

bool cudnn_width(const sdp_params& params, bool debug) {
  const c10::SymInt keys = width(params.query), values = width(params.value);
  const bool large = capability() == 90 || (capability() >= 100 && capability() < 110);
  const int limit = large && keys == 192 && values == 128 ? 192 : 128;
  if (keys > limit || values > limit) {
    return refuse(debug, "head_dim should be no more than ", limit);
  }
  if (keys % 8 == 0 && values % 8 == 0) return true;
  return refuse(debug, "head_dim should be a multiple of 8");
}

bool cudnn_length(const sdp_params& params, bool debug) {
  if (params.key.sym_size(2) != 1) return true;
  return refuse(debug, "cudnn SDPA does not support key/value sequence length 1.");
}

bool cudnn_deterministic(const sdp_params& /*params*/, bool debug) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || context.deterministicAlgorithmsWarnOnly()) return true;
  return refuse(debug, "cuDNN SDPA is not deterministic.");
}

bool cudnn_chip(const sdp_params& /*params*/, bool debug) {
  if (capability() >= 80) return true;
  return refuse(debug,
                "cuDNN MHA only supports gpu architectures in the range [sm80, sm121]. Attempting "
                "to run on a sm ",
                capability() / 10, ".", capability() % 10, " gpu.");
}

bool holds(std::initializer_list<Condition> conditions, const sdp_params& params, bool debug) {
  return std::all_of(conditions.begin(), conditions.end(),
                     [&](Condition condition) { return condition(params, debug); });
}

bool flash_takes(const sdp_params& params, bool debug) {
  return holds(
      {sdp::check_runtime_disabled_flash, sdp::check_tensor_shapes, sdp::check_for_attn_mask,
       flash_width, flash_chip, flash_training, flash_causal, low_precision,
       sdp::check_batch_size_and_num_heads_dense<true>, sdp::check_nonzero_sequence_lengths_dense,
       sdp::check_last_dim_stride_equals_1_dense<true>},
      params, debug);
}

bool efficient_takes(const sdp_params& params, bool debug) {
  return holds(
      {sdp::check_runtime_disabled_mem_efficient, sdp::check_tensor_shapes, efficient_width,
       sdp::check_nonzero_sequence_lengths_dense, sdp::check_last_dim_stride_equals_1_dense<false>,
       sdp::check_batch_size_and_num_heads_dense<true>, efficient_dtype},
      params, debug);
}

bool cudnn_takes(const sdp_params& params, bool debug) {
  return holds({cudnn_enabled, sdp::check_tensor_shapes, cudnn_deterministic, low_precision,
                sdp::check_attn_mask_shape, cudnn_chip, sdp::check_nonzero_sequence_lengths_dense,
                sdp::check_last_dim_stride_equals_1_dense<true>,
                sdp::check_batch_size_and_num_heads_dense<true, false>, cudnn_width, cudnn_length},
               params, debug);
}

}  // namespace

void set_sdp_capability(int major, int minor) noexcept { g_capability = 10 * major + minor; }

bool chooses_as_cuda(const sdp_params& params) {
  return capability() != 0 && !sdp::has_for_nested_inputs(params);
}

bool can_take(at::SDPBackend backend, const sdp_params& params, bool debug) {
  return (backend == at::SDPBackend::flash_attention && flash_takes(params, debug)) ||
         (backend == at::SDPBackend::efficient_attention && efficient_takes(params, debug)) ||
         (backend == at::SDPBackend::cudnn_attention && cudnn_takes(params, debug));
}

at::SDPBackend choose_as_cuda(const sdp_params& params) {
  const at::Context& context = at::globalContext();
  TORCH_CHECK(context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP() ||
                  context.userEnabledCuDNNSDP(),
              "No viable backend for scaled_dot_product_attention was found. ",
              "This is likely due to turning off both the math kernel and the fused kernels.");
  for (const at::SDPBackend backend : at::globalContext().sDPPriorityOrder()) {
    if (can_take(backend, params, false)) return backend;
  }
  TORCH_WARN("Memory efficient kernel not used because:");
  efficient_takes(params, true);
  TORCH_WARN("Flash attention kernel not used because:");
  flash_takes(params, true);
  TORCH_WARN("cuDNN attention kernel not used because:");
  cudnn_takes(params, true);
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Scale = std::optional<double>;

void check_has_no_dropout(const char* op, double dropout) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0, op,
                              " on npusim has no dropout; got dropout_p=", dropout,
                              ". torch.nn.functional.scaled_dot_product_attention computes it.");
}

std::tuple<Tensor, Tensor> forward(const char* op, const Tensor& query, const Tensor& key,
                                   const Tensor& value, const MaybeTensor& bias, double dropout,
                                   bool causal, Scale scale) {
  check_has_no_dropout(op, dropout);
  const Tensor no_bias;
  const std::array<const at::TensorBase*, 4> operands = {&query, &key, &value,
                                                         bias.has_value() ? &*bias : &no_bias};
  const auto cost = attention_cost(npusim::Work::attention, operands, query, key, value, 1, 1);
  return on_host_views(op, operands, cost, [&](CpuCall& call) {
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        call.view(query, false), call.view(key, false), call.view(value, false), 0, causal,
        view_of(call, bias), scale);
    call.finish();
    return std::tuple<Tensor, Tensor>{call.result(out), call.result(logsumexp)};
  });
}

std::tuple<Tensor, Tensor, Tensor> backward(const char* op, const Tensor& grad_out,
                                            const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& bias,
                                            const Tensor& out, const Tensor& logsumexp,
                                            double dropout, bool causal, Scale scale) {
  check_has_no_dropout(op, dropout);
  const std::array<const at::TensorBase*, 7> operands = {&grad_out, &query, &key,      &value,
                                                         &bias,     &out,   &logsumexp};
  const auto cost =
      attention_cost(npusim::Work::attention_backward, operands, query, key, value, 3, 2);
  return on_host_views(op, operands, cost, [&](CpuCall& call) {
    auto [grad_query, grad_key, grad_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            call.view(grad_out, false), call.view(query, false), call.view(key, false),
            call.view(value, false), call.view(out, false), call.view(logsumexp, false), 0, causal,
            view_of(call, bias), scale);
    call.finish();
    return std::tuple<Tensor, Tensor, Tensor>{call.result(grad_query), call.result(grad_key),
                                              call.result(grad_value)};
  });
}

// Seeds and offsets are of a dropout that there is not.
Tensor no_number() { return at::empty({}, at::dtype(at::kLong)); }

Efficient efficient(const Tensor& query, const Tensor& key, const Tensor& value,
                    const MaybeTensor& bias, bool logsumexp_too, double dropout, bool causal,
                    Scale scale) {
  if (as_cuda()) return dry_efficient_attention(query, key, value, logsumexp_too);
  auto [out, logsumexp] = forward("aten::_scaled_dot_product_efficient_attention", query, key,
                                  value, bias, dropout, causal, scale);
  return {out, logsumexp, no_number(), no_number()};
}

Efficient efficient_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                             const Tensor& value, const Tensor& bias, const Tensor& out,
                             const Tensor& logsumexp, const Tensor& /*seed*/,
                             const Tensor& /*offset*/, double dropout, std::array<bool, 4> wanted,
                             bool causal, Scale scale) {
  if (!grad_out.defined()) return {};
  if (as_cuda()) {
    return dry_efficient_attention_backward(grad_out, query, key, value, bias, out, logsumexp,
                                            wanted[3]);
  }
  constexpr char kOp[] = "aten::_scaled_dot_product_efficient_attention_backward";
  TORCH_CHECK_NOT_IMPLEMENTED(!wanted[3] || !bias.defined(), kOp,
                              " on npusim has no gradient of attn_bias; ",
                              "torch.nn.functional.scaled_dot_product_attention computes it.");
  auto [grad_query, grad_key, grad_value] =
      backward(kOp, grad_out, query, key, value, bias, out, logsumexp, dropout, causal, scale);
  return {grad_query, grad_key, grad_value, Tensor()};
}

Flash cudnn(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias,
            bool logsumexp_too, double dropout, bool causal, bool /*debug_mask*/, Scale scale) {
  if (as_cuda()) return dry_cudnn_attention(query, key, value, logsumexp_too);
  auto [out, logsumexp] = forward("aten::_scaled_dot_product_cudnn_attention", query, key, value,
                                  bias, dropout, causal, scale);
  return {out,         logsumexp,   Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
          no_number(), no_number(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, const Tensor& /*seed*/, const Tensor& /*offset*/,
    const Tensor& bias, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout, bool causal, Scale scale) {
  if (!grad_out.defined()) return {};
  if (as_cuda()) {
    return dry_cudnn_attention_backward(grad_out, query, key, value, out, logsumexp);
  }
  return backward("aten::_scaled_dot_product_cudnn_attention_backward", grad_out, query, key, value,
                  bias, out, logsumexp, dropout, causal, scale);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient));
  m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_backward));
  m.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(cudnn));
  m.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(cudnn_backward));
}

}  // namespace torch_npusim
