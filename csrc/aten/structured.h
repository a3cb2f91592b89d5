// SPDX-License-Identifier: BSD-3-Clause
// Route ii for operators with a structured class: torch's meta() and impl() run on host views of
// the operands, and the outputs that meta() asks for are device tensors from the start. Cheaper
// than HostKernel, which has to adopt what the CPU kernel allocated; same bits, same peak memory.
//
//   using Sum = StructuredKernel<at::_ops::sum_dim_IntList, at::native::structured_sum_out>;
//   register_structured<Sum>(m);
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>

#include <array>
#include <type_traits>
#include <utility>

#include "csrc/aten/dense_call.h"
#include "csrc/aten/device_empty.h"
#include "csrc/aten/host_kernel.h"
#include "csrc/aten/view_pool.h"

namespace torch_npusim {

// OnViews: one call of a structured class; `outputs` device tensors are made.
template <class Structured, std::size_t outputs>
class OnViews final : public Structured {
 public:
  explicit OnViews(c10::DeviceIndex device) : device_(device) {}
  ~OnViews() {
    for (at::Tensor& view : views_) give_view(std::move(view));
  }

  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    const auto i = static_cast<std::size_t>(index);
    const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    const auto format = options.memory_format_opt().value_or(at::MemoryFormat::Contiguous);
    made_[i] = strides.empty() ? device_empty(sizes, dtype, device_, format)
                               : device_empty_strided(sizes, strides, dtype, device_);
    views_[i] = take_fresh_view(*made_[i].unsafeGetTensorImpl());
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options);
    }
  }
  const at::Tensor& maybe_get_output(int64_t index) override {
    return views_[static_cast<std::size_t>(index)];
  }

  at::Tensor take(std::size_t index) { return std::move(made_[index]); }

 private:
  c10::DeviceIndex device_;
  std::array<at::Tensor, outputs> made_;
  std::array<at::Tensor, outputs> views_;
};

namespace structured {

// What stands for an argument of the operator while its class runs, and what meta() and impl()
// take.
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

template <class Result>
constexpr std::size_t outputs_of = 1;
template <class... Results>
constexpr std::size_t outputs_of<std::tuple<Results...>> = sizeof...(Results);

}  // namespace structured

template <class Op_, class Class, class CostModel = ElementwiseCost,
          class Schema = typename Op_::schema>
struct StructuredKernel;

template <class Op_, class Class, class CostModel, class Result, class... Args>
struct StructuredKernel<Op_, Class, CostModel, Result(Args...)> {
  using Op = Op_;
  using OnHost = HostKernel<Op, CostModel>;
  static constexpr std::size_t outputs = structured::outputs_of<Result>;

  static Result call(Args... args) {
    if (C10_UNLIKELY(!fast_routes() || strict_align() == StrictAlign::copy)) {
      return OnHost::call(args...);
    }
    return OnHost::command(
        [](c10::DeviceIndex device, HostCall& call, Args... arguments) -> Result {
          OnViews<Class, outputs> kernel(device);
          run(kernel, std::make_index_sequence<outputs>(), structured::hold(arguments)...);
          call.finish();
          return results(kernel, std::make_index_sequence<outputs>());
        },
        args...);
  }

 private:
  template <class Kernel, std::size_t... index, class... Held>
  static void run(Kernel& kernel, std::index_sequence<index...>, const Held&... held) {
    kernel.meta(structured::argument(held)...);
    kernel.impl(structured::argument(held)..., kernel.maybe_get_output(index)...);
  }
  template <class Kernel, std::size_t... index>
  static Result results(Kernel& kernel, std::index_sequence<index...>) {
    return Result(kernel.take(index)...);
  }
};

template <class... Kernels>
void register_structured(torch::Library& m) {
  (m.impl(qualified_name<typename Kernels::Op>().c_str(), TORCH_FN(Kernels::call)), ...);
}

}  // namespace torch_npusim
