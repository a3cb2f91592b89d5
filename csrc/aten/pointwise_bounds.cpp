// SPDX-License-Identifier: BSD-3-Clause
// Pointwise operators of a tensor and bounds, of three tensors, and fills. Cost: one operation per
// element.
#include <ATen/core/Tensor.h>
#include <ATen/native/Fill.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/clamp_max_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>

#include "csrc/observers/observe.h"
#include "csrc/routes/pointwise.h"

namespace torch_npusim {

namespace {

using Bound = std::optional<at::Scalar>;

// A bound that is not a number makes clamp() a fill; an integer tensor takes the bound's dtype.
bool is_bound(const Bound& bound) {
  return !bound.has_value() || (!bound->isComplex() && !bound->isSymbolic() &&
                                !bound->isBoolean() && !std::isnan(bound->toDouble()));
}

at::Tensor clamped(const char* op, const at::Tensor& self, const Bound& min, const Bound& max,
                   const at::Tensor* in_place) {
  DenseCall dense(kFloats);
  dense.add(self);
  if (!dense.takes(in_place) || !is_bound(min) || !is_bound(max)) return {};
  if (!min.has_value() && !max.has_value()) return {};
  return dense.run(op, /*bool_result=*/false, [&](DenseIterator& iter) {
    using namespace at::native;
    if (!min.has_value()) return run_stub<clamp_max_scalar_stub>(iter, *max);
    if (!max.has_value()) return run_stub<clamp_min_scalar_stub>(iter, *min);
    run_stub<clamp_scalar_stub>(iter, *min, *max);
  });
}

// Op's kernel, given what its arguments mean as bounds.
template <class Op, class... Args>
at::Tensor clamp_or_call(const at::Tensor& self, const Bound& min, const Bound& max,
                         const Args&... args) {
  at::Tensor out = clamped(kQualifiedName<Op>.c_str(), self, min, max, nullptr);
  return out.defined() ? out : CpuKernel<Op>::call(self, args...);
}
template <class Op, class... Args>
at::Tensor& clamp_or_call_(at::Tensor& self, const Bound& min, const Bound& max,
                           const Args&... args) {
  if (clamped(kQualifiedName<Op>.c_str(), self, min, max, &self).defined()) return self;
  return CpuKernel<Op>::call(self, args...);
}

at::Tensor clamp(const at::Tensor& self, const Bound& min, const Bound& max) {
  return clamp_or_call<at::_ops::clamp>(self, min, max, min, max);
}
at::Tensor& clamp_(at::Tensor& self, const Bound& min, const Bound& max) {
  return clamp_or_call_<at::_ops::clamp_>(self, min, max, min, max);
}
at::Tensor clamp_min(const at::Tensor& self, const at::Scalar& min) {
  return clamp_or_call<at::_ops::clamp_min>(self, min, std::nullopt, min);
}
at::Tensor& clamp_min_(at::Tensor& self, const at::Scalar& min) {
  return clamp_or_call_<at::_ops::clamp_min_>(self, min, std::nullopt, min);
}
at::Tensor clamp_max(const at::Tensor& self, const at::Scalar& max) {
  return clamp_or_call<at::_ops::clamp_max>(self, std::nullopt, max, max);
}
at::Tensor& clamp_max_(at::Tensor& self, const at::Scalar& max) {
  return clamp_or_call_<at::_ops::clamp_max_>(self, std::nullopt, max, max);
}
at::Tensor relu(const at::Tensor& self) {
  return clamp_or_call<at::_ops::relu>(self, at::Scalar(0), std::nullopt);
}
at::Tensor& relu_(at::Tensor& self) {
  return clamp_or_call_<at::_ops::relu_>(self, at::Scalar(0), std::nullopt);
}
at::Tensor hardtanh(const at::Tensor& self, const at::Scalar& min, const at::Scalar& max) {
  return clamp_or_call<at::_ops::hardtanh>(self, min, max, min, max);
}
at::Tensor& hardtanh_(at::Tensor& self, const at::Scalar& min, const at::Scalar& max) {
  return clamp_or_call_<at::_ops::hardtanh_>(self, min, max, min, max);
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  DenseCall dense(kReals | kBool);
  dense.add_mask(condition);
  dense.add(self);
  dense.add(other);
  if (!dense.takes()) return CpuKernel<at::_ops::where_self>::call(condition, self, other);
  return dense.run("aten::where.self", /*bool_result=*/false,
                   [](DenseIterator& iter) { run_stub<at::native::where_kernel>(iter); });
}

at::Tensor& fill_(at::Tensor& self, const at::Scalar& value) {
  DenseCall dense(kReals | kBool);
  dense.add(self);
  dense.add(value);
  // Core writes a lone element without the check that its loop makes: 1e5 becomes infinity in a
  // half.
  const bool alone = self.numel() == 1 && at::isReducedFloatingType(self.scalar_type());
  if (alone || !dense.takes(&self)) return CpuKernel<at::_ops::fill__Scalar>::call(self, value);
  dense.overwrites();
  dense.run("aten::fill_.Scalar", /*bool_result=*/false, [&](DenseIterator& iter) {
    iter.remove_operand(1);  // the tensor is only written
    run_stub<at::native::fill_stub>(iter, value);
  });
  return self;
}

at::Tensor& zero_(at::Tensor& self) {
  if (!self.is_non_overlapping_and_dense()) return CpuKernel<at::_ops::zero_>::call(self);
  launch("aten::zero_", {&self}, [&](c10::DeviceIndex) {
    note_use(self, Use::writes);
    if (self.numel() > 0)
      std::memset(npusim::kernel_alias(self.mutable_data_ptr()), 0, self.nbytes());
  });
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
  m.impl("clamp", &clamp);
  m.impl("clamp_", &clamp_);
  m.impl("clamp_min", &clamp_min);
  m.impl("clamp_min_", &clamp_min_);
  m.impl("clamp_max", &clamp_max);
  m.impl("clamp_max_", &clamp_max_);
  m.impl("relu", &relu);
  m.impl("relu_", &relu_);
  m.impl("hardtanh", &hardtanh);
  m.impl("hardtanh_", &hardtanh_);
  m.impl("where.self", &where);
  m.impl("fill_.Scalar", &fill_);
  m.impl("zero_", &zero_);
  register_pointwise<Pointwise<at::_ops::lerp_Scalar, lerp_kernel_scalar_weight, kFloats>,
                     Pointwise<at::_ops::lerp__Scalar, lerp_kernel_scalar_weight, kFloats>,
                     Pointwise<at::_ops::lerp_Tensor, lerp_kernel_tensor_weight, kFloats>,
                     Pointwise<at::_ops::lerp__Tensor, lerp_kernel_tensor_weight, kFloats>,
                     Pointwise<at::_ops::addcmul, addcmul_stub, kFloats>,
                     Pointwise<at::_ops::addcmul_, addcmul_stub, kFloats>,
                     Pointwise<at::_ops::addcdiv, addcdiv_stub, kFloats>,
                     Pointwise<at::_ops::addcdiv_, addcdiv_stub, kFloats>>(m);
}

}  // namespace torch_npusim
