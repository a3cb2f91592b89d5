// SPDX-License-Identifier: BSD-3-Clause
// Arguments of an operator on the way to its structured class (structured.h). hold() makes the host
// view of an argument, which the caller keeps for the length of the call; argument() is the form in
// which meta() and impl() take it. Symbolic numbers become plain ones: kernels need values.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

#include "csrc/operands/view_cache.h"

namespace torch_npusim {

namespace structured {

template <class Argument>
const Argument& hold(const Argument& argument) {
  return argument;
}
inline FreshView hold(const at::Tensor& tensor) { return FreshView(tensor); }
inline std::optional<FreshView> hold(const std::optional<at::Tensor>& tensor) {
  const bool given = tensor.has_value() && tensor->defined();
  return given ? std::optional<FreshView>(std::in_place, *tensor)
               : std::optional<FreshView>(std::nullopt);
}

template <class Held>
const Held& argument(const Held& held) {
  return held;
}
inline const at::Tensor& argument(const FreshView& view) { return *view; }
inline at::OptionalTensorRef argument(const std::optional<FreshView>& view) {
  return view.has_value() ? at::OptionalTensorRef(**view) : at::OptionalTensorRef();
}
inline int64_t argument(const c10::SymInt& number) { return number.guard_int(__FILE__, __LINE__); }
inline at::IntArrayRef argument(const c10::SymIntArrayRef& numbers) {
  return C10_AS_INTARRAYREF_SLOW(numbers);
}

// Tensors: the tensors of one call and their common device, without the price of CallOperands.
// `simple` is false for calls that need its checks.
template <std::size_t capacity>
struct Tensors {
  std::array<const at::TensorBase*, capacity> all{};
  std::size_t count = 0;
  c10::DeviceIndex device = -1;
  bool simple = true;                       // on one device, but for wrapped numbers
  std::array<int64_t, capacity> numbers{};  // for the account: integer arguments, but no lists
  std::size_t number_count = 0;
  std::optional<bool> zero;  // for the account: whether the first Scalar argument is 0

  template <class Argument>
  void add(const Argument&) {}
  void add(const int64_t& number) { numbers[number_count++] = number; }
  void add(const at::Scalar& number) {
    if (!zero.has_value()) zero = !number.isSymbolic() && number.equal(0);
  }
  void add(const c10::SymInt& number) {
    if (const auto known = number.maybe_as_int()) add(*known);
  }
  void add(const at::Tensor& tensor) {
    all[count++] = &tensor;
    if (tensor.is_privateuseone()) {
      const c10::DeviceIndex index = tensor.device().index();
      simple &= device < 0 || device == index;
      device = index;
    } else {
      simple &= tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
    }
  }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor.has_value() && tensor->defined()) add(*tensor);
  }
};

template <class Result>
constexpr std::size_t outputs_of = 1;
template <class... Results>
constexpr std::size_t outputs_of<std::tuple<Results...>> = sizeof...(Results);

}  // namespace structured

}  // namespace torch_npusim
