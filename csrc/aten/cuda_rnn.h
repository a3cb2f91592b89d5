// SPDX-License-Identifier: BSD-3-Clause
// Recurrent layers in a dry run that allocates as CUDA does: cuDNN's, as aten::_cudnn_rnn.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <tuple>

namespace torch_npusim {

// register_cuda_rnn() gives npusim the kernels of aten::_cudnn_rnn and of its backward pass.
void register_cuda_rnn(torch::Library& kernels);

// dry_cudnn_takes() is whether the run allocates as CUDA does, and CUDA gives such an RNN to cuDNN.
bool dry_cudnn_takes(const at::Tensor& input);

// dry_cudnn_rnn() calls aten::_cudnn_rnn: the output and the last states. `mode` is cudnnRNNMode_t:
// relu, tanh, lstm, gru. An undefined `cell` belongs to a cell without one; `batch_sizes` are those
// of a packed sequence.
std::tuple<at::Tensor, at::Tensor, at::Tensor> dry_cudnn_rnn(
    const at::Tensor& input, at::TensorList weights, bool has_biases, const at::Tensor& hidden,
    const at::Tensor& cell, int64_t mode, int64_t layers, bool batch_first, double dropout,
    bool train, bool bidirectional, at::IntArrayRef batch_sizes = {});

}  // namespace torch_npusim
