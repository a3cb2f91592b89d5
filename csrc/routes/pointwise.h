// SPDX-License-Identifier: BSD-3-Clause
// Pointwise<Op, stub, dtypes>: an operator whose arguments are the tensors of its loop, in order,
// then the loop's scalar parameters, in order. Route i where the operands are dense alike and of
// one of `dtypes`, route ii (`Otherwise`) for everything else. An in-place operator is recognised
// by its result, a reference; its first argument is then also the output.
//
//   using Maximum = Pointwise<at::_ops::maximum, at::native::maximum_stub, kReals>;
//   register_pointwise<Maximum>(m);
#pragma once

#include <ATen/native/DispatchStub.h>

#include <tuple>

#include "csrc/routes/cpu_kernel.h"
#include "csrc/routes/dense_call.h"

namespace torch_npusim {

// run_stub() runs the CPU loop of a DispatchStub. Some loops insist on the derived class, which
// adds nothing.
template <auto& stub, class... Parameters>
void run_stub(at::TensorIteratorBase& iter, const Parameters&... parameters) {
  using Stub = std::remove_reference_t<decltype(stub)>;
  if constexpr (std::is_invocable_v<typename Stub::FnPtr, at::TensorIteratorBase&,
                                    const Parameters&...>) {
    stub(c10::kCPU, iter, parameters...);
  } else {
    at::TensorIterator derived(iter);
    stub(c10::kCPU, derived, parameters...);
  }
}

// The result's dtype: that of the operands, or bool (comparisons).
enum class PointwiseResult : std::uint8_t { same_dtype, boolean };

namespace pointwise {

inline std::tuple<> parameter(const at::Tensor&) { return {}; }
inline std::tuple<const at::Scalar&> parameter(const at::Scalar& scalar) { return {scalar}; }

// SharedKernel: the code of all operators of one signature, compiled once for them.
template <class Schema>
struct SharedKernel;

template <class Result, class... Args>
struct SharedKernel<Result(Args...)> {
  struct Operator {
    const std::string& name;
    Dtypes dtypes;
    Mixed mixed;
    PointwiseResult result;
    void (*loop)(DenseIterator&, const Args&...);
    Result (*otherwise)(Args...);
  };

  static Result call(const Operator& op, Args... args) {
    constexpr bool in_place = std::is_lvalue_reference_v<Result>;
    DenseCall dense(op.dtypes, op.mixed);
    (dense.add(args), ...);
    if (!dense.takes(in_place ? first(args...) : nullptr)) return op.otherwise(args...);
    at::Tensor out = dense.run(op.name.c_str(), op.result == PointwiseResult::boolean,
                               [&](DenseIterator& iter) { op.loop(iter, args...); });
    if constexpr (in_place) {
      return *first(args...);
    } else {
      return out;
    }
  }

 private:
  template <class First, class... Rest>
  static auto* first(First& tensor, Rest&...) {
    return &tensor;
  }
};

}  // namespace pointwise

template <class Op, auto& stub, Dtypes dtypes, PointwiseResult result = PointwiseResult::same_dtype,
          class Otherwise = CpuKernel<Op>, Mixed mixed = Mixed::refused,
          class Schema = typename Op::schema>
struct Pointwise;

template <class Op_, auto& stub, Dtypes dtypes, PointwiseResult result, class Otherwise,
          Mixed mixed, class Result, class... Args>
struct Pointwise<Op_, stub, dtypes, result, Otherwise, mixed, Result(Args...)> {
  using Op = Op_;
  using Shared = pointwise::SharedKernel<Result(Args...)>;

  static Result call(Args... args) {
    static constexpr typename Shared::Operator op{kQualifiedName<Op>, dtypes, mixed, result, &loop,
                                                  &Otherwise::call};
    return Shared::call(op, args...);
  }

 private:
  static void loop(DenseIterator& iter, const Args&... args) {
    std::apply([&](const auto&... parameters) { run_stub<stub>(iter, parameters...); },
               std::tuple_cat(pointwise::parameter(args)...));
  }
};

template <class... Kernels>
void register_pointwise(torch::Library& m) {
  (m.impl(qualified_name<typename Kernels::Op>().c_str(), &Kernels::call), ...);
}

}  // namespace torch_npusim
