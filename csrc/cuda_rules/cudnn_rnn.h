// SPDX-License-Identifier: BSD-3-Clause
// Refusals of cuDNN for RNNs (aten/src/ATen/native/cudnn/RNN.cpp): states that are not contiguous,
// a backward pass of an RNN that ran in eval(), a second one, and one of batched gradients, for
// which functorch has no rule (functorch/BatchedFallback.cpp). Every build of torch for CUDA
// gives its RNNs to cuDNN unless torch.backends.cudnn.enabled is False.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch_npusim {

// cudnn_runs_rnns() is whether CUDA would give an RNN of this input to cuDNN: the rules for CUDA
// are in force, the user has not disabled it, and it has the dtype.
bool cudnn_runs_rnns(const at::Tensor& input);

// check_cudnn_states() raises for a state of an RNN that is not contiguous. An undefined `cell`
// has no error.
void check_cudnn_states(const at::Tensor& hidden, const at::Tensor& cell);

// as_operands_of_cudnn() are the tensors as aliases whose gradients raise where cuDNN has none: all
// of them if the RNN does not `train`, else those of gradients. Tensors without gradients come back
// as they are.
std::vector<at::Tensor> as_operands_of_cudnn(at::TensorList tensors, bool train);

}  // namespace torch_npusim
