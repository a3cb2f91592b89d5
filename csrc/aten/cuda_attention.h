// SPDX-License-Identifier: BSD-3-Clause
// Attention in a dry run that allocates as CUDA does: the choice among CUDA's kernels, under the
// names that CUDA has for them, so that selective checkpointing finds them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "csrc/cost/account.h"

namespace torch_npusim {

// begin_cuda_attention() registers these kernels for npusim, end_cuda_attention() removes them.
void begin_cuda_attention();
void end_cuda_attention();

// The kernels of efficient attention in such a run.
using Efficient = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
Efficient dry_efficient_attention(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, bool logsumexp_too);
Efficient dry_efficient_attention_backward(const at::Tensor& grad_out, const at::Tensor& query,
                                           const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& bias, const at::Tensor& out,
                                           const at::Tensor& logsumexp, bool bias_too);

// cuda_sdp_backend() is the at::SDPBackend that CUDA takes on the device of `query`.
int64_t cuda_sdp_backend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool gqa);

// attention_cost() is the cost of so many products of queries with keys and with values.
npusim::Cost attention_cost(npusim::Work work, TensorPointers operands, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value, double key_products,
                            double value_products);

}  // namespace torch_npusim
