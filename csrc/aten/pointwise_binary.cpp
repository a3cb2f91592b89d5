// SPDX-License-Identifier: BSD-3-Clause
// add, sub, mul, div of two tensors, or of a tensor and a number, on route i. Operands of one
// floating dtype (or, but for div, any one dtype) run on the device iterator; everything else takes
// the boxed kernel. Same loops as on CPU, so the same bits. Cost: one operation per element.
#include <ATen/EmptyTensor.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/sub_ops.h>
#include <torch/library.h>

#include "csrc/aten/fallback.h"
#include "csrc/aten/structured.h"
#include "csrc/runtime/pool_allocator.h"

namespace torch_npusim {

namespace {

// A number beside a float or double tensor, written in the tensor's dtype before the iterator is
// built: it would otherwise see two dtypes. One 0-dim host tensor per thread and dtype serves all
// calls, since nothing keeps it beyond the call. Other dtypes return an undefined tensor.
template <class Value>
const at::Tensor& scalar_operand(at::ScalarType dtype, const at::Tensor& number) {
  thread_local const at::Tensor scalar = [&] {
    const HostScope host_memory;
    return at::Tensor(at::detail::empty_cpu({}, dtype));
  }();
  const void* data = number.const_data_ptr();
  *scalar.mutable_data_ptr<Value>() = number.scalar_type() == at::kDouble
                                          ? static_cast<Value>(*static_cast<const double*>(data))
                                          : static_cast<Value>(*static_cast<const int64_t*>(data));
  return scalar;
}

const at::Tensor& in_dtype_of(const at::Tensor& self, const at::Tensor& number) {
  if (self.scalar_type() == at::kFloat) return scalar_operand<float>(at::kFloat, number);
  return scalar_operand<double>(at::kDouble, number);
}

bool is_number_for(const at::Tensor& self, const at::Tensor& other) {
  if (!other.unsafeGetTensorImpl()->is_wrapped_number() || !other.is_cpu()) return false;
  const bool real = other.scalar_type() == at::kDouble || other.scalar_type() == at::kLong;
  return real && (self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble);
}

// What the second operand is on route i; nullptr: the boxed kernel must run.
const at::Tensor* fast_operand(const at::Tensor& self, const at::Tensor& other,
                               bool floating_only) {
  if (!fast_routes() || strict_align() == StrictAlign::copy || !self.is_privateuseone()) {
    return nullptr;
  }
  if (floating_only && !self.is_floating_point() && !self.is_complex()) return nullptr;
  if (other.is_privateuseone() && other.scalar_type() == self.scalar_type()) return &other;
  if (is_number_for(self, other)) return &in_dtype_of(self, other);
  return nullptr;
}

template <class Structured, class... Alpha>
at::Tensor run_binary(const char* op, const at::Tensor& self, const at::Tensor& other,
                      const at::Tensor* in_place, const Alpha&... alpha) {
  return launch(op, {&self, &other}, HostScalars::accepted, [&](c10::DeviceIndex device) {
    OnDevice<Structured> call(device, in_place);
    call.meta(self, other, alpha...);
    call.impl(self, other, alpha..., call.maybe_get_output(0));
    return call.take();
  });
}

template <class Op, class Structured, class... Alpha>
at::Tensor functional(const char* name, bool floating_only, const at::Tensor& self,
                      const at::Tensor& other, const Alpha&... alpha) {
  const at::Tensor* operand = fast_operand(self, other, floating_only);
  if (operand == nullptr) return run_boxed<Op>(self, other, alpha...);
  return run_binary<Structured>(name, self, *operand, nullptr, alpha...);
}

template <class Op, class Structured, class... Alpha>
at::Tensor& in_place(const char* name, bool floating_only, at::Tensor& self,
                     const at::Tensor& other, const Alpha&... alpha) {
  const at::Tensor* operand = fast_operand(self, other, floating_only);
  if (operand == nullptr) {
    run_boxed<Op>(self, other, alpha...);
  } else {
    run_binary<Structured>(name, self, *operand, &self, alpha...);
  }
  return self;
}

using AddKernel = at::native::structured_ufunc_add_CPU;
using SubKernel = at::native::structured_sub_out;
using MulKernel = at::native::structured_mul_out;
using DivKernel = at::native::structured_div_out;

at::Tensor add(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return functional<at::_ops::add_Tensor, AddKernel>("aten::add.Tensor", false, self, other, alpha);
}
at::Tensor& add_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return in_place<at::_ops::add__Tensor, AddKernel>("aten::add_.Tensor", false, self, other, alpha);
}
at::Tensor sub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return functional<at::_ops::sub_Tensor, SubKernel>("aten::sub.Tensor", false, self, other, alpha);
}
at::Tensor& sub_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return in_place<at::_ops::sub__Tensor, SubKernel>("aten::sub_.Tensor", false, self, other, alpha);
}
at::Tensor mul(const at::Tensor& self, const at::Tensor& other) {
  return functional<at::_ops::mul_Tensor, MulKernel>("aten::mul.Tensor", false, self, other);
}
at::Tensor& mul_(at::Tensor& self, const at::Tensor& other) {
  return in_place<at::_ops::mul__Tensor, MulKernel>("aten::mul_.Tensor", false, self, other);
}
at::Tensor div(const at::Tensor& self, const at::Tensor& other) {
  return functional<at::_ops::div_Tensor, DivKernel>("aten::div.Tensor", true, self, other);
}
at::Tensor& div_(at::Tensor& self, const at::Tensor& other) {
  return in_place<at::_ops::div__Tensor, DivKernel>("aten::div_.Tensor", true, self, other);
}

}  // namespace

}  // namespace torch_npusim

namespace at::native {
// sub runs add_stub with -alpha.
REGISTER_PRIVATEUSE1_DISPATCH(add_stub, (&torch_npusim::trampoline<add_stub, const at::Scalar&>))
REGISTER_PRIVATEUSE1_DISPATCH(mul_stub, &torch_npusim::trampoline<mul_stub>)
REGISTER_PRIVATEUSE1_DISPATCH(div_true_stub, &torch_npusim::trampoline<div_true_stub>)
}  // namespace at::native

namespace torch_npusim {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("add.Tensor", TORCH_FN(add));
  m.impl("add_.Tensor", TORCH_FN(add_));
  m.impl("sub.Tensor", TORCH_FN(sub));
  m.impl("sub_.Tensor", TORCH_FN(sub_));
  m.impl("mul.Tensor", TORCH_FN(mul));
  m.impl("mul_.Tensor", TORCH_FN(mul_));
  m.impl("div.Tensor", TORCH_FN(div));
  m.impl("div_.Tensor", TORCH_FN(div_));
}

}  // namespace torch_npusim
