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
}  // namespace pointwise

template <class Op, auto& stub, Dtypes dtypes, PointwiseResult result = PointwiseResult::same_dtype,
          class Otherwise = CpuKernel<Op>, Mixed mixed = Mixed::refused,
          class Schema = typename Op::schema>
struct Pointwise;

template <class Op_, auto& stub, Dtypes dtypes, PointwiseResult result, class Otherwise,
          Mixed mixed, class Result, class... Args>
struct Pointwise<Op_, stub, dtypes, result, Otherwise, mixed, Result(Args...)> {
  using Op = Op_;
  static constexpr bool in_place = std::is_lvalue_reference_v<Result>;

  static Result call(Args... args) {
    DenseCall dense(dtypes, mixed);
    (dense.add(args), ...);
    if (!dense.takes(in_place ? first(args...) : nullptr)) return Otherwise::call(args...);
    at::Tensor out = dense.run(
        kQualifiedName<Op>.c_str(), result == PointwiseResult::boolean, [&](DenseIterator& iter) {
          std::apply([&](const auto&... parameters) { run_stub<stub>(iter, parameters...); },
                     std::tuple_cat(pointwise::parameter(args)...));
        });
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

template <class... Kernels>
void register_pointwise(torch::Library& m) {
  (m.impl(qualified_name<typename Kernels::Op>().c_str(), TORCH_FN(Kernels::call)), ...);
}

}  // namespace torch_npusim
