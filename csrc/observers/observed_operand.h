// SPDX-License-Identifier: BSD-3-Clause
// Tensors described as operands for observers. Kernels include observe.h instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "backend/observer.h"
#include "csrc/observers/observe.h"

namespace torch_npusim {

// DescribedOperand describes `tensor`, whose bytes are in `storage`, to observers; get() is nullptr
// if it has no bytes. It borrows the sizes of `tensor` and owns its strides in bytes.
class DescribedOperand {
 public:
  DescribedOperand(const c10::TensorImpl& tensor, const void* storage, Use use);
  const npusim::Operand* get() const { return empty_ ? nullptr : &operand_; }

 private:
  bool empty_;
  c10::SmallVector<int64_t, 5> strides_;
  npusim::Operand operand_{};
};

// CopyOperands: the operands of a copy between two tensors, for its length.
class CopyOperands {
 public:
  CopyOperands(const at::TensorBase& to, const at::TensorBase& from) {
    if (C10_UNLIKELY(npusim::observed())) scope_.emplace(to, from);
  }

 private:
  struct Scope {
    Scope(const at::TensorBase& to, const at::TensorBase& from);
    std::array<DescribedOperand, 2> both;
    npusim::OperandScope operands;
  };
  std::optional<Scope> scope_;
};

}  // namespace torch_npusim
