// SPDX-License-Identifier: BSD-3-Clause
// Attention in a dry run that allocates as CUDA does: the choice among CUDA's kernels, under the
// names that CUDA has for them, so that selective checkpointing finds them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include <tuple>

#include "csrc/cost/account.h"

namespace torch_npusim {

// begin_cuda_attention() registers these kernels for npusim, and those of recurrent layers;
// end_cuda_attention() removes them.
void begin_cuda_attention();
void end_cuda_attention();

// The kernels of efficient and of cuDNN's attention in such a run.
using Efficient = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
Efficient dry_efficient_attention(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, bool logsumexp_too, bool causal);
Efficient dry_efficient_attention_backward(const at::Tensor& grad_out, const at::Tensor& query,
                                           const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& bias, const at::Tensor& out,
                                           const at::Tensor& logsumexp, bool bias_too, bool causal);

// The kernels of flash and of cuDNN's attention return this.
using Flash = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                         at::Tensor, at::Tensor, at::Tensor>;
Flash dry_cudnn_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          bool logsumexp_too, bool causal);
std::tuple<at::Tensor, at::Tensor, at::Tensor> dry_cudnn_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp, bool causal);

// cuda_sdp_backend() is the at::SDPBackend that CUDA takes on the device of the query; math for
// nested tensors.
int64_t cuda_sdp_backend(const sdp::sdp_params& params);

// attention_cost() is the cost of so many products of queries with keys and with values.
npusim::Cost attention_cost(npusim::Work work, TensorPointers operands, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value, double key_products,
                            double value_products, bool causal = false);

}  // namespace torch_npusim
