// SPDX-License-Identifier: BSD-3-Clause
// Conditions are those of ATen/native/transformers/cuda/sdp_utils.cpp. Conditions of all devices
// are torch's own functions. cuDNN is one of 9.11 or later. Efficient attention takes no grouped
// heads before pytorch#191085.
#include "csrc/aten/cuda_attention_choice.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <initializer_list>

namespace torch_npusim {

namespace {

using at::SDPBackend;
using sdp::sdp_params;

struct Question {
  const sdp_params& params;
  int capability;
  bool debug;
};
using Condition = bool (*)(const Question&);

template <bool (*Check)(const sdp_params&, bool debug)>
bool of_torch(const Question& asked) {
  return Check(asked.params, asked.debug);
}

template <class... Words>
bool refuse(const Question& asked, const Words&... words) {
  if (asked.debug) TORCH_WARN(words...);
  return false;
}

c10::SymInt width(const at::Tensor& tensor) { return tensor.sym_size(-1); }

bool is_half(const Question& asked) {
  const at::ScalarType dtype = asked.params.query.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

template <class... Dtypes>
bool has_dtype(const Question& asked, Dtypes... dtypes) {
  const std::array<at::ScalarType, sizeof...(dtypes)> allowed{dtypes...};
  return sdp::check_tensor_dtype(asked.params, allowed, asked.debug);
}

bool low_precision(const Question& asked) {
  return asked.capability >= 80 ? has_dtype(asked, at::kHalf, at::kBFloat16)
                                : has_dtype(asked, at::kHalf);
}

bool efficient_dtype(const Question& asked) {
  return asked.capability >= 80 ? has_dtype(asked, at::kHalf, at::kFloat, at::kBFloat16)
                                : has_dtype(asked, at::kHalf, at::kFloat);
}

bool flash_width(const Question& asked) {
  const c10::SymInt query = width(asked.params.query), key = width(asked.params.key);
  const c10::SymInt value = width(asked.params.value);
  if (query == key && query == value && query <= 256) return true;
  return refuse(asked,
                "Flash attention requires q,k,v to have the same last dimension and to be less "
                "than or equal to 256. Got Query.size(-1): ",
                query, ", Key.size(-1): ", key, ", Value.size(-1): ", value, " instead.");
}

bool is_sm80(const Question& asked, const char* kernels) {
  if (asked.capability >= 80) return true;
  return refuse(
      asked, kernels,
      " only supports gpu architectures in the range [sm80, sm121]. Attempting to run on a "
      "sm ",
      asked.capability / 10, ".", asked.capability % 10, " gpu.");
}
bool flash_chip(const Question& asked) { return is_sm80(asked, "Flash attention"); }
bool cudnn_chip(const Question& asked) { return is_sm80(asked, "cuDNN MHA"); }

bool flash_training(const Question& asked) {
  const bool small = (asked.capability >= 86 && asked.capability <= 89) || asked.capability >= 120;
  const c10::SymInt head = width(asked.params.query);
  if (!small || !sdp::input_requires_grad(asked.params) || head <= 192) return true;
  if (asked.params.dropout == 0 && head > 224) return true;
  return refuse(asked,
                "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or "
                "(head_dim ∈ (224, 256] and dropout > 0.0) on gpu architectures in the "
                "range[sm86, sm89].Attempting to run with dropout set to: ",
                asked.params.dropout, "and head_dim: ", head, " on a sm ", asked.capability / 10,
                ".", asked.capability % 10, " gpu.");
}

bool flash_causal(const Question& asked) {
  const c10::SymInt queries = asked.params.query.sym_size(-2), keys = asked.params.key.sym_size(-2);
  if (!asked.params.is_causal || queries == keys) return true;
  return refuse(asked,
                "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. "
                "Got seqlen_q: ",
                queries, " seqlen_k: ", keys,
                ". If you would like to use causal attention with non-square masks, please see "
                "CausalAttnMask.");
}

bool efficient_width(const Question& asked) {
  int alignment = 1;
  if (asked.capability >= 80) {
    alignment = is_half(asked) ? 8 : 4;
  } else if (asked.capability >= 70 && is_half(asked)) {
    alignment = 8;
  }
  const c10::SymInt query = width(asked.params.query), key = width(asked.params.key);
  const c10::SymInt value = width(asked.params.value);
  if (query == key && query % alignment == 0 && query > 0 && value % alignment == 0 && value > 0) {
    return true;
  }
  return refuse(asked,
                "Mem efficient attention requires last dimension of inputs to be divisible by ",
                alignment, ". Got Query.size(-1): ", query, ", Key.size(-1): ", key,
                ", Value.size(-1): ", value, " instead.");
}

bool cudnn_enabled(const Question& asked) {
  if (at::globalContext().userEnabledCuDNNSDP()) return true;
  return refuse(asked, "cuDNN attention has been runtime disabled.");
}

bool cudnn_width(const Question& asked) {
  const c10::SymInt keys = width(asked.params.query), values = width(asked.params.value);
  const bool large = asked.capability == 90 || (asked.capability >= 100 && asked.capability < 110);
  const int limit = large && keys == 192 && values == 128 ? 192 : 128;
  if (keys > limit || values > limit) {
    return refuse(asked, "head_dim should be no more than ", limit);
  }
  if (keys % 8 == 0 && values % 8 == 0) return true;
  return refuse(asked, "head_dim should be a multiple of 8");
}

bool cudnn_length(const Question& asked) {
  if (asked.params.key.sym_size(2) != 1) return true;
  return refuse(asked, "cudnn SDPA does not support key/value sequence length 1.");
}

bool cudnn_deterministic(const Question& asked) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || context.deterministicAlgorithmsWarnOnly()) return true;
  return refuse(asked, "cuDNN SDPA is not deterministic.");
}

bool holds(std::initializer_list<Condition> conditions, const Question& asked) {
  return std::all_of(conditions.begin(), conditions.end(),
                     [&](Condition condition) { return condition(asked); });
}

bool flash_takes(const Question& asked) {
  return holds(
      {of_torch<sdp::check_runtime_disabled_flash>, of_torch<sdp::check_tensor_shapes>,
       of_torch<sdp::check_for_attn_mask>, flash_width, flash_chip, flash_training, flash_causal,
       low_precision, of_torch<sdp::check_batch_size_and_num_heads_dense<true>>,
       of_torch<sdp::check_nonzero_sequence_lengths_dense>,
       of_torch<sdp::check_last_dim_stride_equals_1_dense<true>>},
      asked);
}

bool efficient_takes(const Question& asked) {
  return holds(
      {of_torch<sdp::check_runtime_disabled_mem_efficient>, of_torch<sdp::check_tensor_shapes>,
       efficient_width, of_torch<sdp::check_nonzero_sequence_lengths_dense>,
       of_torch<sdp::check_last_dim_stride_equals_1_dense<false>>,
       of_torch<sdp::check_batch_size_and_num_heads_dense<false>>, efficient_dtype},
      asked);
}

bool cudnn_takes(const Question& asked) {
  return holds(
      {cudnn_enabled, of_torch<sdp::check_tensor_shapes>, cudnn_deterministic, low_precision,
       of_torch<sdp::check_attn_mask_shape>, cudnn_chip,
       of_torch<sdp::check_nonzero_sequence_lengths_dense>,
       of_torch<sdp::check_last_dim_stride_equals_1_dense<true>>,
       of_torch<sdp::check_batch_size_and_num_heads_dense<true, false>>, cudnn_width, cudnn_length},
      asked);
}

// torch prefers cuDNN on these chips, unless the program has an order of its own.
auto order_of_backends(int capability) {
  constexpr std::array<SDPBackend, at::num_sdp_backends> kTorchs = {
      SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::math,
      SDPBackend::cudnn_attention, SDPBackend::overrideable};
  auto order = at::globalContext().sDPPriorityOrder();
  if (order == kTorchs && (capability == 90 || capability == 100)) {
    std::rotate(order.begin(), order.begin() + 3, order.begin() + 4);
  }
  return order;
}

bool takes(SDPBackend backend, const Question& asked) {
  switch (backend) {
    case SDPBackend::flash_attention:
      return flash_takes(asked);
    case SDPBackend::efficient_attention:
      return efficient_takes(asked);
    case SDPBackend::cudnn_attention:
      return cudnn_takes(asked);
    case SDPBackend::math:
      return at::globalContext().userEnabledMathSDP();
    default:
      return false;
  }
}

}  // namespace

bool can_take(SDPBackend backend, const sdp_params& params, int capability, bool debug) {
  return takes(backend, {params, capability, debug});
}

SDPBackend choose_as_cuda(const sdp_params& params, int capability) {
  const at::Context& context = at::globalContext();
  TORCH_CHECK(context.userEnabledMathSDP() || context.userEnabledFlashSDP() ||
                  context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP(),
              "No viable backend for scaled_dot_product_attention was found. ",
              "This is likely due to turning off both the math kernel and the fused kernels.");
  for (const SDPBackend backend : order_of_backends(capability)) {
    if (takes(backend, {params, capability, false})) return backend;
  }
  TORCH_WARN("Memory efficient kernel not used because:");
  efficient_takes({params, capability, true});
  TORCH_WARN("Flash attention kernel not used because:");
  flash_takes({params, capability, true});
  TORCH_WARN("cuDNN attention kernel not used because:");
  cudnn_takes({params, capability, true});
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

}  // namespace torch_npusim
