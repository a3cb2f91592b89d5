// SPDX-License-Identifier: BSD-3-Clause
// foreach operators: one command for a whole list, as CUDA launches one kernel for many tensors.
// Each element is a loop of route i, so its bits are those of the operator on that tensor alone. If
// an element cannot take route i, or the lists do not match, core's own loop over single operators
// has the call, with its checks and its errors. Operators without such a loop (norms, copies,
// powers) are one command too: the CPU's own loop on host views of all lists. Adding an operator is
// one line and two includes. Cost: the sum over the elements.
#include <ATen/core/Tensor.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/_foreach_abs_native.h>
#include <ATen/ops/_foreach_abs_ops.h>
#include <ATen/ops/_foreach_acos_native.h>
#include <ATen/ops/_foreach_acos_ops.h>
#include <ATen/ops/_foreach_add_native.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_native.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_native.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_asin_native.h>
#include <ATen/ops/_foreach_asin_ops.h>
#include <ATen/ops/_foreach_atan_native.h>
#include <ATen/ops/_foreach_atan_ops.h>
#include <ATen/ops/_foreach_ceil_native.h>
#include <ATen/ops/_foreach_ceil_ops.h>
#include <ATen/ops/_foreach_clamp_max_native.h>
#include <ATen/ops/_foreach_clamp_max_ops.h>
#include <ATen/ops/_foreach_clamp_min_native.h>
#include <ATen/ops/_foreach_clamp_min_ops.h>
#include <ATen/ops/_foreach_cos_native.h>
#include <ATen/ops/_foreach_cos_ops.h>
#include <ATen/ops/_foreach_cosh_native.h>
#include <ATen/ops/_foreach_cosh_ops.h>
#include <ATen/ops/_foreach_div_native.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_erf_native.h>
#include <ATen/ops/_foreach_erf_ops.h>
#include <ATen/ops/_foreach_erfc_native.h>
#include <ATen/ops/_foreach_erfc_ops.h>
#include <ATen/ops/_foreach_exp_native.h>
#include <ATen/ops/_foreach_exp_ops.h>
#include <ATen/ops/_foreach_expm1_native.h>
#include <ATen/ops/_foreach_expm1_ops.h>
#include <ATen/ops/_foreach_floor_native.h>
#include <ATen/ops/_foreach_floor_ops.h>
#include <ATen/ops/_foreach_lerp_native.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_lgamma_native.h>
#include <ATen/ops/_foreach_lgamma_ops.h>
#include <ATen/ops/_foreach_log10_native.h>
#include <ATen/ops/_foreach_log10_ops.h>
#include <ATen/ops/_foreach_log1p_native.h>
#include <ATen/ops/_foreach_log1p_ops.h>
#include <ATen/ops/_foreach_log2_native.h>
#include <ATen/ops/_foreach_log2_ops.h>
#include <ATen/ops/_foreach_log_native.h>
#include <ATen/ops/_foreach_log_ops.h>
#include <ATen/ops/_foreach_maximum_native.h>
#include <ATen/ops/_foreach_maximum_ops.h>
#include <ATen/ops/_foreach_minimum_native.h>
#include <ATen/ops/_foreach_minimum_ops.h>
#include <ATen/ops/_foreach_mul_native.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_neg_native.h>
#include <ATen/ops/_foreach_neg_ops.h>
#include <ATen/ops/_foreach_reciprocal_native.h>
#include <ATen/ops/_foreach_reciprocal_ops.h>
#include <ATen/ops/_foreach_round_native.h>
#include <ATen/ops/_foreach_round_ops.h>
#include <ATen/ops/_foreach_rsqrt_native.h>
#include <ATen/ops/_foreach_rsqrt_ops.h>
#include <ATen/ops/_foreach_sigmoid_native.h>
#include <ATen/ops/_foreach_sigmoid_ops.h>
#include <ATen/ops/_foreach_sign_native.h>
#include <ATen/ops/_foreach_sign_ops.h>
#include <ATen/ops/_foreach_sin_native.h>
#include <ATen/ops/_foreach_sin_ops.h>
#include <ATen/ops/_foreach_sinh_native.h>
#include <ATen/ops/_foreach_sinh_ops.h>
#include <ATen/ops/_foreach_sqrt_native.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_foreach_sub_native.h>
#include <ATen/ops/_foreach_sub_ops.h>
#include <ATen/ops/_foreach_tan_native.h>
#include <ATen/ops/_foreach_tan_ops.h>
#include <ATen/ops/_foreach_tanh_native.h>
#include <ATen/ops/_foreach_tanh_ops.h>
#include <ATen/ops/_foreach_trunc_native.h>
#include <ATen/ops/_foreach_trunc_ops.h>
#include <torch/library.h>

#include <type_traits>
#include <utility>

#include "csrc/routes/fallback.h"
#include "csrc/routes/pointwise.h"

namespace torch_npusim {

namespace {

using at::Scalar;
using at::Tensor;
using at::TensorList;
using Numbers = at::ArrayRef<Scalar>;

// clang-format off
// Operators of one list, whose loops are their own.
#define NPUSIM_FOREACH_UNARY(X) \
  X(abs) X(acos) X(asin) X(atan) X(ceil) X(cos) X(cosh) X(erf) X(erfc) X(exp) X(expm1) X(floor) \
  X(lgamma) X(log) X(log10) X(log1p) X(log2) X(neg) X(reciprocal) X(round) X(rsqrt) X(sigmoid) \
  X(sign) X(sin) X(sinh) X(sqrt) X(tan) X(tanh) X(trunc)
// clang-format on

// What element `i` of the call sees of an argument: its own tensor or number, or the shared one.
const Tensor& element(TensorList list, std::size_t i) { return list[i]; }
const Tensor& element(const Tensor& shared, std::size_t) { return shared; }
const Scalar& element(Numbers numbers, std::size_t i) { return numbers[i]; }
const Scalar& element(const Scalar& shared, std::size_t) { return shared; }

bool has_length(TensorList list, std::size_t length) { return list.size() == length; }
bool has_length(Numbers numbers, std::size_t length) { return numbers.size() == length; }
bool has_length(const Tensor&, std::size_t) { return true; }
bool has_length(const Scalar&, std::size_t) { return true; }

// Whether the tensors that element `i` sees lie in memory alike, without gaps: as kernels of lists
// want it, which go through memory. Strides of dimensions of size 1 say nothing.
bool lies_as(const Tensor& self, const Tensor& other) {
  if (other.layout() != at::kStrided || other.is_nested() || other.sizes() != self.sizes() ||
      !other.is_non_overlapping_and_dense()) {
    return false;
  }
  const auto end = static_cast<std::size_t>(other.storage_offset() + other.numel());
  if (end * other.itemsize() > other.storage().nbytes()) return false;  // refused by name elsewhere
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (self.size(d) != 1 && self.stride(d) != other.stride(d)) return false;
  }
  return true;
}
bool lie_alike(TensorList self, TensorList list) {
  if (list.size() != self.size()) return false;
  for (std::size_t i = 0; i < self.size(); ++i) {
    if (!lies_as(self[i], list[i])) return false;
  }
  return true;
}
bool lie_alike(TensorList, const Tensor& shared) { return shared.dim() == 0; }
template <class Number>
bool lie_alike(TensorList, const Number&) {
  return true;
}

// Lists of vectors, in the order of memory; other arguments as they are. To autograd they are no
// views: a version is counted once, by shaped().
std::vector<Tensor> in_memory_order(TensorList list) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<Tensor> vectors;
  vectors.reserve(list.size());
  for (const Tensor& tensor : list) vectors.push_back(tensor.as_strided({tensor.numel()}, {1}));
  return vectors;
}
template <class Other>
const Other& in_memory_order(const Other& other) {
  return other;
}

// The loops. add() names the operands of one element, run() is the loop over them.

// Numbers are parameters of the loop: addcmul, lerp, and loops of tensors alone.
template <auto& stub>
struct Loop {
  template <class... Elements>
  static void add(DenseCall& dense, const Elements&... elements) {
    (dense.add(elements), ...);
  }
  template <class... Elements>
  static void run(DenseIterator& iter, const Elements&... elements) {
    std::apply([&](const auto&... parameters) { run_stub<stub>(iter, parameters...); },
               std::tuple_cat(pointwise::parameter(elements)...));
  }
};

void add_operand(DenseCall& dense, const Tensor& tensor) { dense.add(tensor); }
void add_operand(DenseCall& dense, const Scalar& number) {
  const bool real = number.isFloatingPoint() || number.isIntegral(/*includeBool=*/false);
  // Booleans promote, and are subtracted, by rules of their own.
  if (!real || number.isSymbolic()) return dense.refuse();
  dense.add(wrapped_number(number));
}

// The second operand may be a number: mul, div.
template <auto& stub>
struct BinaryLoop {
  template <class Other>
  static void add(DenseCall& dense, const Tensor& self, const Other& other) {
    dense.add(self);
    add_operand(dense, other);
  }
  template <class Other>
  static void run(DenseIterator& iter, const Tensor&, const Other&) {
    run_stub<stub>(iter);
  }
};

// Core writes `self *= number` with the number in front, where loops for reduced precision see it
// rounded to self's dtype.
struct NumberTimesLoop {
  static void add(DenseCall& dense, const Tensor& self, const Scalar& number) {
    add_operand(dense, number);
    dense.add(self);
  }
  static void run(DenseIterator& iter, const Tensor&, const Scalar&) {
    run_stub<at::native::mul_stub>(iter);
  }
};

// self + sign * alpha * other. Core has errors of its own for a boolean alpha.
template <int sign>
struct SumLoop {
  template <class Other>
  static void add(DenseCall& dense, const Tensor& self, const Other& other,
                  const Scalar& alpha = 1) {
    dense.add(self);
    add_operand(dense, other);
    dense.add(alpha);
    if (alpha.isBoolean()) dense.refuse();
  }
  template <class Other>
  static void run(DenseIterator& iter, const Tensor&, const Other&, const Scalar& alpha = 1) {
    run_stub<at::native::add_stub>(iter, sign < 0 ? -alpha : alpha);
  }
};

template <class Arg>
using Element = std::decay_t<decltype(element(std::declval<Arg>(), 0))>;

// Lists<schema>: all operators of one schema, so that its code is compiled once.
template <class Schema>
struct Lists;

template <class Result, class... Args>
struct Lists<Result(TensorList, Args...)> {
  static constexpr bool in_place = std::is_void_v<Result>;

  struct Kernel {
    const char* name;
    Result (*one_by_one)(TensorList, Args...);  // core's loop over single operators
    void (*add)(DenseCall&, const Tensor&, const Element<Args>&...);
    void (*run)(DenseIterator&, const Tensor&, const Element<Args>&...);
  };

  static Result call(const Kernel& kernel, TensorList self, Args... args) {
    if (const std::optional<npusim::Cost> cost = cost_of(kernel, self, args...)) {
      return launch({kernel.name, npusim::CommandKind::kernel, *cost}, self[0].device().index(),
                    [&] { return run(kernel, self, args...); });
    }
    if (!lie_alike(self, self) || !(lie_alike(self, args) && ...)) {
      return kernel.one_by_one(self, args...);
    }
    return in_order_of_memory(kernel, self, args...);
  }

 private:
  // Route i knows no memory formats with dimensions of size 1: the weights of convolutions.
  static Result in_order_of_memory(const Kernel& kernel, TensorList self, const Args&... args) {
    const std::vector<Tensor> vectors = in_memory_order(self);
    return with(
        [&](const auto&... others) -> Result {
          const std::optional<npusim::Cost> cost = cost_of(kernel, vectors, others...);
          if (!cost.has_value()) return kernel.one_by_one(self, args...);
          return launch({kernel.name, npusim::CommandKind::kernel, *cost}, self[0].device().index(),
                        [&] { return shaped(kernel, self, vectors, others...); });
        },
        in_memory_order(args)...);
  }

  // Lists of vectors become TensorLists again.
  template <class Call, class... Others>
  static Result with(const Call& call, const Others&... others) {
    return call(static_cast<const Args&>(Args(others))...);
  }

  static Result shaped(const Kernel& kernel, TensorList self, TensorList vectors,
                       const Args&... args) {
    if constexpr (in_place) {
      run(kernel, vectors, args...);
      for (const Tensor& tensor : self) tensor.unsafeGetTensorImpl()->bump_version();
    } else {
      std::vector<Tensor> results = run(kernel, vectors, args...);
      const at::AutoDispatchBelowADInplaceOrView below;
      for (std::size_t i = 0; i < self.size(); ++i) {
        results[i] = results[i].as_strided(self[i].sizes(), self[i].strides());
      }
      return results;
    }
  }

  // Nothing, if an element cannot take route i.
  static std::optional<npusim::Cost> cost_of(const Kernel& kernel, TensorList self,
                                             const Args&... args) {
    if (self.empty() || !(has_length(args, self.size()) && ...)) return std::nullopt;
    npusim::Cost total;
    for (std::size_t i = 0; i < self.size(); ++i) {
      DenseCall dense(kFloats);
      if (self[i].device() != self[0].device() || self[i].scalar_type() != self[0].scalar_type() ||
          !takes(kernel, dense, self[i], element(args, i)...)) {
        return std::nullopt;
      }
      const npusim::Cost cost = dense.cost(/*bool_result=*/false);
      total.flops += cost.flops;
      total.bytes += cost.bytes;
      total.precision = cost.precision;
    }
    return total;
  }

  static bool takes(const Kernel& kernel, DenseCall& dense, const Tensor& self,
                    const Element<Args>&... elements) {
    kernel.add(dense, self, elements...);
    return dense.takes(in_place ? &self : nullptr);
  }

  static Result run(const Kernel& kernel, TensorList self, const Args&... args) {
    std::vector<Tensor> results;
    if constexpr (!in_place) results.reserve(self.size());
    for (std::size_t i = 0; i < self.size(); ++i) {
      // Anew, because numbers of all elements are wrapped in the same tensor.
      DenseCall dense(kFloats);
      takes(kernel, dense, self[i], element(args, i)...);
      Tensor result = dense.compute(/*bool_result=*/false, [&](DenseIterator& iter) {
        kernel.run(iter, self[i], element(args, i)...);
      });
      if (C10_UNLIKELY(npusim::command_failed())) spoil(result);
      if constexpr (in_place) {
        self[i].unsafeGetTensorImpl()->bump_version();  // autograd leaves that to kernels of lists
      } else {
        results.push_back(std::move(result));
      }
    }
    if constexpr (!in_place) return results;
  }
};

// Foreach<Op, slow, loop>: the native functions of one operator.
template <class Op, auto slow, class Loop, class Schema = typename Op::schema>
struct Foreach;

template <class Op_, auto slow, class Loop, class Result, class... Args>
struct Foreach<Op_, slow, Loop, Result(TensorList, Args...)> {
  using Op = Op_;

  static Result one_by_one(TensorList self, Args... args) { return slow(self, args...); }

  static Result call(TensorList self, Args... args) {
    using Calls = Lists<Result(TensorList, Args...)>;
    return Calls::call({kQualifiedName<Op>.c_str(), &one_by_one, &add, &run}, self, args...);
  }

 private:
  static void add(DenseCall& dense, const Tensor& self, const Element<Args>&... elements) {
    Loop::add(dense, self, elements...);
  }
  static void run(DenseIterator& iter, const Tensor& self, const Element<Args>&... elements) {
    Loop::run(iter, self, elements...);
  }
};

// Which kernels a dispatch key gets: commands for lists, or core's loops alone.
enum class Takes : std::uint8_t { lists, single_tensors };

template <class... Kernels>
void register_foreach(torch::Library& m, Takes takes) {
  const auto add = [&]<class Kernel>(std::type_identity<Kernel>) {
    const std::string name = qualified_name<typename Kernel::Op>();
    if (takes == Takes::lists) {
      m.impl(name.c_str(), &Kernel::call);
    } else {
      m.impl(name.c_str(), &Kernel::one_by_one);
    }
  };
  (add(std::type_identity<Kernels>()), ...);
}

void register_operators(torch::Library& m, Takes takes) {
  using namespace at::native;
  using namespace at::_ops;
#define NPUSIM_REGISTER(name)                                                     \
  register_foreach<                                                               \
      Foreach<_foreach_##name, &foreach_tensor_##name##_slow, Loop<name##_stub>>, \
      Foreach<_foreach_##name##_, &foreach_tensor_##name##_slow_, Loop<name##_stub>>>(m, takes);
  NPUSIM_FOREACH_UNARY(NPUSIM_REGISTER)
#undef NPUSIM_REGISTER

#define NPUSIM_REGISTER(name, overload, slow, loop)                                          \
  register_foreach<Foreach<_foreach_##name##_##overload, &foreach_tensor_##slow, loop>,      \
                   Foreach<_foreach_##name##__##overload, &foreach_tensor_##slow##_, loop>>( \
      m, takes);
#define NPUSIM_REGISTER_BINARY(name, loop)                       \
  NPUSIM_REGISTER(name, List, name##_list_kernel_slow, loop)     \
  NPUSIM_REGISTER(name, Scalar, name##_scalar_kernel_slow, loop) \
  NPUSIM_REGISTER(name, ScalarList, name##_scalarlist_kernel_slow, loop)
  NPUSIM_REGISTER_BINARY(add, SumLoop<1>)
  NPUSIM_REGISTER_BINARY(sub, SumLoop<-1>)
  NPUSIM_REGISTER(mul, List, mul_list_kernel_slow, BinaryLoop<mul_stub>)
  register_foreach<
      Foreach<_foreach_mul_Scalar, &foreach_tensor_mul_scalar_kernel_slow, BinaryLoop<mul_stub>>,
      Foreach<_foreach_mul__Scalar, &foreach_tensor_mul_scalar_kernel_slow_, NumberTimesLoop>,
      Foreach<_foreach_mul_ScalarList, &foreach_tensor_mul_scalarlist_kernel_slow,
              BinaryLoop<mul_stub>>,
      Foreach<_foreach_mul__ScalarList, &foreach_tensor_mul_scalarlist_kernel_slow_,
              NumberTimesLoop>>(m, takes);
  NPUSIM_REGISTER_BINARY(div, BinaryLoop<div_true_stub>)
  NPUSIM_REGISTER(add, Tensor, add_tensor_kernel_slow, SumLoop<1>)
  NPUSIM_REGISTER(mul, Tensor, mul_tensor_kernel_slow, BinaryLoop<mul_stub>)
  NPUSIM_REGISTER(div, Tensor, div_tensor_kernel_slow, BinaryLoop<div_true_stub>)
  NPUSIM_REGISTER(clamp_max, List, clamp_max_list_kernel_slow, Loop<minimum_stub>)
  NPUSIM_REGISTER(clamp_min, List, clamp_min_list_kernel_slow, Loop<maximum_stub>)
  NPUSIM_REGISTER(maximum, List, clamp_min_list_kernel_slow, Loop<maximum_stub>)
  NPUSIM_REGISTER(minimum, List, clamp_max_list_kernel_slow, Loop<minimum_stub>)
  NPUSIM_REGISTER(addcdiv, Scalar, addcdiv_scalar_slow, Loop<addcdiv_stub>)
  NPUSIM_REGISTER(addcdiv, ScalarList, addcdiv_scalarlist_slow, Loop<addcdiv_stub>)
  NPUSIM_REGISTER(addcmul, Scalar, addcmul_scalar_slow, Loop<addcmul_stub>)
  NPUSIM_REGISTER(addcmul, ScalarList, addcmul_scalarlist_slow, Loop<addcmul_stub>)
  NPUSIM_REGISTER(lerp, Scalar, lerp_list_kernel_slow, Loop<lerp_kernel_scalar_weight>)
  NPUSIM_REGISTER(lerp, ScalarList, lerp_scalarlist_kernel_slow, Loop<lerp_kernel_scalar_weight>)
  NPUSIM_REGISTER(lerp, List, ternary_lerp_slow, Loop<lerp_kernel_tensor_weight>)
#undef NPUSIM_REGISTER_BINARY
#undef NPUSIM_REGISTER
}

// Whether all tensors lie on one device and without layouts of their own: else, as on CUDA, each is
// served by itself.
bool lies_on_one_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const Tensor* first = nullptr;
  const auto lies_there = [&](const Tensor& tensor) {
    if (!tensor.defined()) return true;
    if (first == nullptr) first = &tensor;
    return tensor.device() == first->device() && tensor.is_privateuseone() &&
           tensor.layout() == at::kStrided && !tensor.is_nested();
  };
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && !lies_there(argument.toTensor())) return false;
    if (!argument.isTensorList()) continue;
    const auto list = argument.toTensorList();
    for (const Tensor& tensor : list) {
      if (!lies_there(tensor)) return false;
    }
  }
  return first != nullptr;
}

void one_command(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  if (!lies_on_one_device(op, *stack)) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);  // core's loop, on any
    return;
  }
  std::vector<Tensor> written;  // autograd leaves versions of lists to their kernels
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    const c10::IValue& given = (*stack)[stack->size() - arguments.size() + i];
    if (alias != nullptr && alias->isWrite() && given.isTensorList())
      written = given.toTensorVector();
  }
  cpu_fallback(op, keys, stack);
  for (const Tensor& tensor : written) tensor.unsafeGetTensorImpl()->bump_version();
}

// Numbers that come as a tensor of the host.
template <class Op, class Result>
Result with_numbers(TensorList self, TensorList first, TensorList second, const Tensor& numbers) {
  return Op::call(
      self, first, second,
      at::native::convert_tensor_to_scalar_list(numbers, static_cast<int64_t>(self.size())));
}

void register_lists(torch::Library& m) {
  for (const char* const name : {"_chunk_cat",
                                 "_chunk_cat.out",
                                 "_foreach_clamp_max.Scalar",
                                 "_foreach_clamp_max.ScalarList",
                                 "_foreach_clamp_max_.Scalar",
                                 "_foreach_clamp_max_.ScalarList",
                                 "_foreach_clamp_min.Scalar",
                                 "_foreach_clamp_min.ScalarList",
                                 "_foreach_clamp_min_.Scalar",
                                 "_foreach_clamp_min_.ScalarList",
                                 "_foreach_clone",
                                 "_foreach_copy_",
                                 "_foreach_frac",
                                 "_foreach_frac_",
                                 "_foreach_max",
                                 "_foreach_maximum.Scalar",
                                 "_foreach_maximum.ScalarList",
                                 "_foreach_maximum_.Scalar",
                                 "_foreach_maximum_.ScalarList",
                                 "_foreach_minimum.Scalar",
                                 "_foreach_minimum.ScalarList",
                                 "_foreach_minimum_.Scalar",
                                 "_foreach_minimum_.ScalarList",
                                 "_foreach_norm.Scalar",
                                 "_foreach_pow.List",
                                 "_foreach_pow.Scalar",
                                 "_foreach_pow.ScalarAndTensor",
                                 "_foreach_pow.ScalarList",
                                 "_foreach_pow_.List",
                                 "_foreach_pow_.Scalar",
                                 "_foreach_pow_.ScalarList",
                                 "_foreach_powsum.Scalar",
                                 "_foreach_zero_",
                                 "_grouped_mm",
                                 "split_with_sizes_copy.out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&one_command>());
  }
  using Lists = std::vector<Tensor>;
  m.impl("_foreach_addcdiv.Tensor", &with_numbers<at::_ops::_foreach_addcdiv_ScalarList, Lists>);
  m.impl("_foreach_addcdiv_.Tensor", &with_numbers<at::_ops::_foreach_addcdiv__ScalarList, void>);
  m.impl("_foreach_addcmul.Tensor", &with_numbers<at::_ops::_foreach_addcmul_ScalarList, Lists>);
  m.impl("_foreach_addcmul_.Tensor", &with_numbers<at::_ops::_foreach_addcmul__ScalarList, void>);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_operators(m, Takes::lists);
  register_lists(m);
}

// Core has no foreach kernels for nested tensors, and its optimizers choose foreach by the device.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  register_operators(m, Takes::single_tensors);
}

}  // namespace torch_npusim
