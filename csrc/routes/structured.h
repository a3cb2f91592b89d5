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

#include <optional>
#include <type_traits>
#include <utility>

#include "csrc/observers/route_taken.h"
#include "csrc/operands/view_cache.h"
#include "csrc/routes/cpu_kernel.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/dense_call.h"
#include "csrc/routes/structured_arguments.h"
#include "csrc/routes/structured_outputs.h"
#include "csrc/runtime/scratch_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace structured {

// SharedKernel: the code of all operators of one signature, compiled once for them. `on_views` runs
// the structured class and returns its outputs.
template <class Schema>
struct SharedKernel;

template <class Result, class... Args>
struct SharedKernel<Result(Args...)> {
  using Function = Result (*)(Args...);
  using OnDevice = Result (*)(c10::DeviceIndex, const Args&...);

  static Result call(const OpTraits& about, Function otherwise, OnDevice on_views, Args... args) {
    Tensors<sizeof...(Args)> tensors;
    (tensors.add(args), ...);
    const bool simple = tensors.simple && tensors.device >= 0;
    if (C10_UNLIKELY(!simple || !fast_routes() || strict_align() != StrictAlign::off)) {
      return otherwise(args...);
    }
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
      std::optional<CudaTemporaries> of_cuda;
      if (as_cuda()) {
        CallArguments given;
        (given.add(args), ...);
        of_cuda.emplace(about.name, TensorPointers{tensors.all.data(), tensors.count},
                        std::move(given), tensors.device);
      }
      Result made = on_views(tensors.device, args...);
      if (of_cuda.has_value()) of_cuda->after_results();
      account.settle(made);
      return made;
    });
  }
};

}  // namespace structured

template <class Op_, class Class, class Schema = typename Op_::schema>
struct StructuredKernel;

template <class Op_, class Class, class Result, class... Args>
struct StructuredKernel<Op_, Class, Result(Args...)> {
  using Op = Op_;
  using OnHost = CpuKernel<Op>;
  static constexpr std::size_t outputs = structured::outputs_of<Result>;

  static Result call(Args... args) {
    return structured::SharedKernel<Result(Args...)>::call(OnHost::traits(), &OnHost::call,
                                                           &on_views, args...);
  }

 private:
  static Result on_views(c10::DeviceIndex device, const Args&... args) {
    OnViews<Class, outputs> kernel(device);
    run(kernel, std::make_index_sequence<outputs>(), structured::hold(args)...);
    return results(kernel, std::make_index_sequence<outputs>());
  }

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
  (m.impl(qualified_name<typename Kernels::Op>().c_str(), &Kernels::call), ...);
}

}  // namespace torch_npusim
