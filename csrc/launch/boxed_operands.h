// SPDX-License-Identifier: BSD-3-Clause
// BoxedOperands: the operands among the arguments of a boxed call. Its constructor moves tensors
// and lists of tensors off the stack, so that they live as long as this object; `operands` points
// into it. The numbers, flags and devices that cost and checks need are copied; their places on the
// stack stay as they are. The caller puts tensors back before it calls the operator again.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/stack.h>

#include "csrc/launch/op_traits.h"

namespace torch_npusim {

class BoxedOperands {
 public:
  BoxedOperands(torch::jit::Stack& stack, const OpTraits& traits)
      : stack_(stack), traits_(traits), first_(stack.size() - traits.written.size()) {
    tensors_.reserve(traits.written.size());  // the operands point into it
    for (std::size_t i = 0; i < traits.written.size(); ++i) collect(i);
  }

  CallOperands operands;

 protected:
  using Role = CallOperands::Role;
  template <class Value>
  using Placed = std::pair<std::size_t, Value>;

  torch::jit::Stack& stack_;
  const OpTraits& traits_;
  std::size_t first_;  // the position of the first argument on the stack
  c10::SmallVector<Placed<at::Tensor>, 8> tensors_;
  c10::SmallVector<Placed<c10::IValue>, 2> lists_;
  std::optional<std::size_t> device_;  // the position of an npusim device

 private:
  void collect(std::size_t position) {
    c10::IValue& value = stack_[first_ + position];
    const Role role = traits_.written[position] ? Role::written : Role::read;
    if (value.isTensor()) {
      tensors_.emplace_back(position, std::move(value).toTensor());
      operands.add(tensors_.back().second, role);
    } else if (value.isInt()) {
      if (position == traits_.output_size) operands.set_size_is_known();
      operands.add_number(value.toInt());
    } else if (value.isBool()) {
      operands.add_flag(value.toBool());
    } else if (value.isBoolList()) {
      for (const bool flag : value.toBoolList()) operands.add_mask(flag);
    } else if (value.isIntList()) {
      for (const int64_t number : value.toIntVector()) operands.add_number(number);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const bool indices = value.isOptionalTensorList();
      lists_.emplace_back(position, std::move(value));
      int64_t covered = 0;  // dimensions up to the last index
      int64_t place = 0;
      for (const c10::IValue& item : lists_.back().second.toListRef()) {
        ++place;
        if (!item.isTensor()) continue;
        operands.add(item.toTensor(), indices ? Role::index : role);
        covered = place;
      }
      if (indices) operands.add_number(covered);
    } else if (value.isDevice()) {
      operands.set_device(value.toDevice());
      if (value.toDevice().is_privateuseone()) device_ = position;
    }
  }
};

}  // namespace torch_npusim
