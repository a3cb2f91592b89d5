// SPDX-License-Identifier: BSD-3-Clause
// Hooks of autograd stand for cuDNN's backward kernel: they run where it would.
#include "csrc/cuda_rules/cudnn_rnn.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "csrc/cuda_rules/cuda_rules.h"

namespace torch_npusim {

namespace {

using at::Tensor;

// Of torch.vmap(), and of torch.autograd.grad(is_grads_batched=True).
constexpr c10::DispatchKeySet kBatched{c10::DispatchKey::FuncTorchBatched,
                                       c10::DispatchKey::Batched};

// A gradient whose own derivative raises.
Tensor without_derivative(const Tensor& gradient) {
  const Tensor marked = at::alias(gradient);
  marked.register_hook([](const Tensor&) -> Tensor {
    C10_THROW_ERROR(
        NotImplementedError,
        "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not "
        "supported for CuDNN RNNs due to limitations in the CuDNN API. To run double backwards, "
        "please disable the CuDNN backend temporarily while running the forward pass of your RNN. "
        "For example: \nwith torch.backends.cudnn.flags(enabled=False):\n"
        "    output = model(inputs)");
  });
  return marked;
}

Tensor as_operand(const Tensor& tensor, bool train) {
  if (!tensor.defined() || !tensor.requires_grad()) return tensor;
  const Tensor operand = at::alias(tensor);
  operand.register_hook([train](const Tensor& gradient) -> Tensor {
    TORCH_CHECK(!gradient.key_set().has_any(kBatched),
                "Batching rule not implemented for aten::_cudnn_rnn_backward. We could not "
                "generate a fallback.");
    TORCH_CHECK(train, "cudnn RNN backward can only be called in training mode");
    const bool again = at::GradMode::is_enabled() && gradient.requires_grad();
    return again ? without_derivative(gradient) : gradient;
  });
  return operand;
}

// Transforms of functorch differentiate by other means than hooks.
bool is_transformed() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

}  // namespace

bool cudnn_runs_rnns(const Tensor& input) {
  if (!are_cuda_rules_in_force() || !at::globalContext().userEnabledCuDNN()) return false;
  const at::ScalarType dtype = input.scalar_type();
  const bool has_dtype = dtype == at::kHalf || dtype == at::kFloat || dtype == at::kDouble;
  return has_dtype && input.numel() != 0;
}

void check_cudnn_states(const Tensor& hidden, const Tensor& cell) {
  TORCH_CHECK(hidden.is_contiguous(), "rnn: hx is not contiguous");
  TORCH_CHECK(!cell.defined() || cell.is_contiguous(), "rnn: cx is not contiguous");
}

std::vector<Tensor> as_operands_of_cudnn(at::TensorList tensors, bool train) {
  std::vector<Tensor> operands = tensors.vec();
  if (!at::GradMode::is_enabled() || is_transformed()) return operands;
  for (Tensor& tensor : operands) tensor = as_operand(tensor, train);
  return operands;
}

}  // namespace torch_npusim
