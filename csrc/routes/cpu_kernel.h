// SPDX-License-Identifier: BSD-3-Clause
// Route ii: the typed twin of the boxed kernel. CpuKernel<Op>::call has the operator's own
// signature, shows its CPU kernel host views of the operands and turns the results into device
// tensors. Bits, checks, cost and peak memory are those of the boxed kernel, without boxing.
// Raises as the checks and the CPU kernel do; then no operand has changed. Cost: see account.h.
//
//   register_cpu_kernels<at::_ops::cumsum, at::_ops::cumprod>(m);      one name per operator
#pragma once

#include <torch/library.h>

#include <string>
#include <tuple>
#include <utility>

#include "csrc/observers/route_taken.h"
#include "csrc/routes/cpu_kernel_arguments.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/dry_rules.h"

namespace torch_npusim {
namespace cpu_kernel {

// SharedKernel: the code of all operators of one signature, compiled once for them. An operator
// comes as its traits and its redispatch().
template <class Schema>
struct SharedKernel;

template <class Result, class... Args>
struct SharedKernel<Result(Args...)> {
  template <class Redispatch>
  static Result call(const OpTraits& about, Redispatch* redispatch, Args... args) {
    const auto body = [&about, redispatch](c10::DeviceIndex, CpuCall& call,
                                           Args... args) -> Result {
      return run(about, redispatch, call, args...);
    };
    return command(about, body, args...);
  }

  template <class Body>
  static Result command(const OpTraits& about, const Body& body, Args... args) {
    CallOperands operands;
    (collect(operands, args), ...);
    const c10::DeviceIndex device = operands.device(about);
    const Account account = operands.account(about);
    const npusim::CommandInfo info{about.name.c_str(), npusim::CommandKind::kernel, account.cost()};
    const auto kernel = [&]() -> Result {
      const NoWrappers no_wrappers;
      CpuCall call(about.name.c_str(), device, operands.tensors().size(),
                   C10_UNLIKELY(about.reads_behind) ? CpuCall::Access::reads_behind : kAccess);
      call.tell_apart(operands.flags());
      if constexpr (std::is_void_v<Result>) {
        body(device, call, args...);
        account.settle();
      } else {
        std::optional<CudaTemporaries> temporaries;
        if (as_cuda()) {
          CallArguments given;
          (given.add(args), ...);
          temporaries.emplace(about.name, operands.tensors(), std::move(given), device);
        }
        Result result = body(device, call, args...);
        if (C10_UNLIKELY(npusim::dry())) lay_out_all(about, operands.tensors(), result);
        if (temporaries.has_value()) temporaries->after_results();
        if constexpr (returns_arguments<Result>) {
          account.settle();
        } else {
          account.settle(result);
        }
        return result;
      }
    };
    if (C10_UNLIKELY(operands.waits(about))) return launch_and_wait(info, device, kernel);
    return launch(info, device, kernel);
  }

 private:
  static constexpr CpuCall::Access kAccess =
      only_reads<Result, Args...> ? CpuCall::Access::reads : CpuCall::Access::writes;

  static void lay_out_all(const OpTraits& about, TensorPointers operands, const at::Tensor& only) {
    lay_out(about, operands, 0, only);
  }
  template <class... Results>
  static void lay_out_all(const OpTraits& about, TensorPointers operands,
                          const std::tuple<Results...>& results) {
    std::size_t place = 0;
    std::apply([&](const auto&... each) { (lay_out(about, operands, place++, each), ...); },
               results);
  }
  template <class Other>
  static void lay_out_all(const OpTraits&, TensorPointers, const Other&) {}

  template <class Redispatch>
  static Result run(const OpTraits& about, Redispatch* redispatch, CpuCall& call, Args... args) {
    note_route(Route::cpu_kernel);
    const c10::DispatchKeySet kernel = kernel_for(call, about);
    if constexpr (std::is_void_v<Result>) {
      redispatch(kernel, view(call, args)...);
      call.finish();
    } else if constexpr (returns_arguments<Result>) {
      redispatch(kernel, view(call, args)...);
      call.finish();
      auto arguments = std::tuple_cat(written(args)...);
      if constexpr (std::is_lvalue_reference_v<Result>) {
        return std::get<0>(arguments);
      } else {
        return arguments;
      }
    } else {
      Result result = redispatch(kernel, view(call, args)...);
      call.finish();
      return on_device(call, std::move(result));
    }
  }
};

}  // namespace cpu_kernel

template <class Op, class Schema = typename Op::schema>
struct CpuKernel;

template <class Op, class Result, class... Args>
struct CpuKernel<Op, Result(Args...)> {
  using Shared = cpu_kernel::SharedKernel<Result(Args...)>;

  // traits() looks the operator up once per process.
  static const OpTraits& traits() {
    static const OpTraits* const found =
        &op_traits(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
    return *found;
  }

  static Result call(Args... args) { return Shared::call(traits(), &Op::redispatch, args...); }

  // command() runs body(device, call, args...) as one command of this operator. The body is the CPU
  // kernel or its replacement; it calls call.finish() before it makes results.
  template <class Body>
  static Result command(const Body& body, Args... args) {
    return Shared::command(traits(), body, args...);
  }
};

// register_cpu_kernels() registers CpuKernel for each operator, under its schema's name.
template <class... Ops>
void register_cpu_kernels(torch::Library& m) {
  (m.impl(qualified_name<Ops>().c_str(), &CpuKernel<Ops>::call), ...);
}

}  // namespace torch_npusim
