// SPDX-License-Identifier: BSD-3-Clause
// Route ii for operators with a structured class: torch's meta() and impl() run on host views of
// the operands, and the outputs that meta() asks for are device tensors from the start. Cheaper
// than CpuKernel, which has to adopt what the CPU kernel allocated; same bits, same peak memory.
// Calls with operands on several devices, misaligned ones under NPUSIM_STRICT_ALIGN, or undefined
// ones go to CpuKernel, whose checks raise.
//
//   using Sum = StructuredKernel<at::_ops::sum_dim_IntList, at::native::structured_sum_out>;
//   register_structured<Sum>(m);
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>

#include <array>
#include <type_traits>
#include <utility>

#include "csrc/observers/route_taken.h"
#include "csrc/operands/device_empty.h"
#include "csrc/operands/view_cache.h"
#include "csrc/routes/cpu_kernel.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/dense_call.h"
#include "csrc/routes/structured_arguments.h"
#include "csrc/runtime/scratch_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

// OnViews: one call of a structured class. meta() calls set_output_raw_strided(), which makes the
// device tensor and the view that impl() writes to; take() then gives the device tensor away.
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
    note_use(made_[i], Use::writes);
    views_[i] = take_fresh_view(*made_[i].unsafeGetTensorImpl());
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options);
    }
  }
  const at::Tensor& maybe_get_output(int64_t index) override {
    return views_[static_cast<std::size_t>(index)];
  }

  at::Tensor take(std::size_t index) {
    c10::TensorImpl& made = *made_[index].unsafeGetTensorImpl();
    const at::Tensor& view = views_[index];
    // Losses shrink the output that meta() asked for, which keeps its storage.
    if (C10_UNLIKELY(made.numel() != view.numel())) made.set_sizes_contiguous(view.sizes());
    return std::move(made_[index]);
  }

 private:
  c10::DeviceIndex device_;
  std::array<at::Tensor, outputs> made_;
  std::array<at::Tensor, outputs> views_;
};

template <class Op_, class Class, class Schema = typename Op_::schema>
struct StructuredKernel;

template <class Op_, class Class, class Result, class... Args>
struct StructuredKernel<Op_, Class, Result(Args...)> {
  using Op = Op_;
  using OnHost = CpuKernel<Op>;
  static constexpr std::size_t outputs = structured::outputs_of<Result>;

  static Result call(Args... args) {
    structured::Tensors<sizeof...(Args)> tensors;
    (tensors.add(args), ...);
    const bool simple = tensors.simple && tensors.device >= 0;
    if (C10_UNLIKELY(!simple || !fast_routes() || strict_align() != StrictAlign::off)) {
      return OnHost::call(args...);
    }
    const OpTraits& about = OnHost::traits();
    for (std::size_t i = 0; i < tensors.count; ++i) {
      check_within_storage(about.name.c_str(), *tensors.all[i]);
    }
    const Account account(about.cost, {tensors.all.data(), tensors.count}, {},
                          {tensors.numbers.data(), tensors.number_count}, /*flag=*/false,
                          tensors.zero.value_or(false));
    const npusim::CommandInfo info{about.name.c_str(), npusim::CommandKind::kernel, account.cost()};
    return launch(info, tensors.device, [&] {
      note_route(Route::structured);
      const NoWrappers no_wrappers;
      const Temporaries temporaries;
      OnViews<Class, outputs> kernel(tensors.device);
      run(kernel, std::make_index_sequence<outputs>(), structured::hold(args)...);
      Result made = results(kernel, std::make_index_sequence<outputs>());
      if (as_cuda()) {
        CallArguments given;
        (given.add(args), ...);
        allocate_temporaries(about.name, {tensors.all.data(), tensors.count}, given,
                             tensors.device);
      }
      account.settle(made);
      return made;
    });
  }

 private:
  template <class Kernel, std::size_t... index, class... Held>
  static void run(Kernel& kernel, std::index_sequence<index...>, const Held&... held) {
    if constexpr (std::is_void_v<decltype(kernel.meta(structured::argument(held)...))>) {
      kernel.meta(structured::argument(held)...);
      if (C10_UNLIKELY(npusim::dry())) return;
      kernel.impl(structured::argument(held)..., kernel.maybe_get_output(index)...);
    } else {
      along_wrapped(kernel, std::index_sequence<index...>(), held...);
    }
  }
  // Between meta() and impl() core wraps the dimension of some, always the second argument.
  template <class Kernel, std::size_t... index, class Self, class... Held>
  static void along_wrapped(Kernel& kernel, std::index_sequence<index...>, const Self& self,
                            int64_t dim, const Held&... held) {
    const auto wrapped =
        kernel.meta(structured::argument(self), dim, structured::argument(held)...);
    if (C10_UNLIKELY(npusim::dry())) return;
    kernel.impl(structured::argument(self), wrapped.dim, structured::argument(held)...,
                kernel.maybe_get_output(index)...);
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
