// SPDX-License-Identifier: BSD-3-Clause
// Arguments and results of a typed kernel (cpu_kernel.h), by overload on the argument's C++ type:
//
//   collect()     adds the tensors, numbers and devices of an argument to CallOperands
//   view()        is what the CPU kernel gets in the argument's place; it lives as long as the call
//   on_device()   turns a result of the CPU kernel into a device tensor
//   written()     is the argument that an in-place or out= form returns
//
// A type without an overload is passed on as it is: an operator with a new kind of tensor argument
// needs one here, or its kernel would get the device tensor.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>

#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/launch/op_traits.h"
#include "csrc/routes/cpu_call.h"
#include "csrc/runtime/generator.h"

namespace torch_npusim {

namespace cpu_kernel {

using Role = CallOperands::Role;

// --- Operands: the tensors among the arguments -------------------------------------------------

template <class Argument>
void collect(CallOperands&, const Argument&) {}
inline void collect(CallOperands& operands, const at::Tensor& tensor) {
  operands.add(tensor, Role::read);
}
inline void collect(CallOperands& operands, at::Tensor& tensor) {
  operands.add(tensor, Role::written);
}
inline void collect(CallOperands& operands, const std::optional<at::Tensor>& tensor) {
  if (tensor.has_value()) operands.add(*tensor, Role::read);
}
inline void collect(CallOperands& operands, at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) operands.add(tensor, Role::read);
}
inline void collect(CallOperands& operands, const at::ITensorListRef& tensors) {
  for (const at::Tensor& tensor : tensors) operands.add(tensor, Role::read);
}
inline void collect(CallOperands& operands, const c10::List<std::optional<at::Tensor>>& tensors) {
  int64_t covered = 0;  // dimensions up to the last index
  int64_t position = 0;
  for (const c10::IValue& item : c10::IValue(tensors).toListRef()) {
    ++position;
    if (!item.isTensor()) continue;
    operands.add(item.toTensor(), Role::index);
    covered = position;
  }
  operands.add_number(covered);
}
inline void collect(CallOperands& operands, const int64_t& number) { operands.add_number(number); }
inline void collect(CallOperands& operands, const bool& flag) { operands.add_flag(flag); }
template <std::size_t count>
void collect(CallOperands& operands, const std::array<bool, count>& mask) {
  for (const bool flag : mask) operands.add_mask(flag);
}
inline void collect(CallOperands& operands, const at::Scalar& number) {
  operands.add_scalar(number);
}
inline void collect(CallOperands& operands, const c10::SymInt& number) {
  if (const auto known = number.maybe_as_int()) operands.add_number(*known);
}
inline void collect(CallOperands& operands, const at::IntArrayRef& numbers) {
  for (const int64_t number : numbers) operands.add_number(number);
}
inline void collect(CallOperands& operands, const std::optional<at::Device>& device) {
  if (device.has_value()) operands.set_device(*device);
}

// Whether the operator writes no argument. Only void operators have writable lists.
template <class Result, class... Args>
constexpr bool only_reads = !std::is_void_v<Result> && !(std::is_same_v<Args, at::Tensor&> || ...);

// --- Views: what the CPU kernel gets in an argument's place ------------------------------------

// Keeps the views of a list alive for the length of the call expression.
struct ViewList {
  std::vector<at::Tensor> views;
  operator at::TensorList() const { return views; }
  operator at::ITensorListRef() const { return at::TensorList(views); }
};

template <class Argument>
const Argument& view(CpuCall&, const Argument& argument) {
  return argument;
}
inline const at::Tensor& view(CpuCall& call, const at::Tensor& tensor) {
  return call.shown(tensor, /*written=*/false);
}
inline std::optional<at::Tensor> view(CpuCall& call, const std::optional<at::Tensor>& tensor) {
  if (!tensor.has_value()) return std::nullopt;
  return call.view(*tensor, /*written=*/false);
}
inline ViewList view(CpuCall& call, const at::ITensorListRef& tensors) {
  ViewList list;
  list.views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) list.views.push_back(call.view(tensor, false));
  return list;
}
inline ViewList view(CpuCall& call, at::TensorList tensors) {
  return view(call, at::ITensorListRef(tensors));
}
inline c10::List<std::optional<at::Tensor>> view(
    CpuCall& call, const c10::List<std::optional<at::Tensor>>& tensors) {
  c10::List<std::optional<at::Tensor>> views;
  views.reserve(tensors.size());
  for (const std::optional<at::Tensor> tensor : tensors) views.push_back(view(call, tensor));
  return views;
}
inline std::optional<at::Device> view(CpuCall& call, const std::optional<at::Device>& device) {
  if (!device.has_value() || !device->is_privateuseone()) return device;
  return c10::dispatchKeyToDeviceType(call.kernel());
}
inline std::optional<at::Generator> view(CpuCall& call,
                                         const std::optional<at::Generator>& generator) {
  return cpu_generator_for(generator, call.device());
}

inline at::Tensor& view(CpuCall& call, at::Tensor& tensor) {
  return call.shown(tensor, /*written=*/true);
}

// --- Results -----------------------------------------------------------------------------------

template <class Result>
Result on_device(CpuCall&, Result&& result) {
  return std::forward<Result>(result);
}
inline at::Tensor on_device(CpuCall& call, at::Tensor&& result) {
  return call.result(std::move(result));
}
inline std::vector<at::Tensor> on_device(CpuCall& call, std::vector<at::Tensor>&& results) {
  for (at::Tensor& result : results) result = call.result(std::move(result));
  return std::move(results);
}
template <class... Results>
std::tuple<Results...> on_device(CpuCall& call, std::tuple<Results...>&& results) {
  return std::apply(
      [&](auto&... result) {
        return std::tuple<Results...>{on_device(call, std::move(result))...};
      },
      results);
}

// The arguments that an in-place or out= form returns.
template <class Argument>
std::tuple<> written(const Argument&) {
  return {};
}
inline std::tuple<at::Tensor&> written(at::Tensor& tensor) { return std::tie(tensor); }

template <class Result>
constexpr bool returns_arguments = std::is_lvalue_reference_v<Result>;
template <class... Results>
constexpr bool returns_arguments<std::tuple<Results...>> =
    sizeof...(Results) > 0 && (std::is_lvalue_reference_v<Results> && ...);

}  // namespace cpu_kernel

}  // namespace torch_npusim
