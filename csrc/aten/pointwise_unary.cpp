// SPDX-License-Identifier: BSD-3-Clause
// Pointwise operators of one tensor, on route i; integer inputs of the floating family promote and
// take the boxed kernel. Same loops as on CPU, so the same bits. Cost: one operation per element,
// one read, one write. Adding an operator is one line in the table and two includes.
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/acos_native.h>
#include <ATen/ops/acos_ops.h>
#include <ATen/ops/asin_native.h>
#include <ATen/ops/asin_ops.h>
#include <ATen/ops/atan_native.h>
#include <ATen/ops/atan_ops.h>
#include <ATen/ops/ceil_native.h>
#include <ATen/ops/ceil_ops.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cosh_native.h>
#include <ATen/ops/cosh_ops.h>
#include <ATen/ops/erf_native.h>
#include <ATen/ops/erf_ops.h>
#include <ATen/ops/erfc_native.h>
#include <ATen/ops/erfc_ops.h>
#include <ATen/ops/exp2_native.h>
#include <ATen/ops/exp2_ops.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expm1_native.h>
#include <ATen/ops/expm1_ops.h>
#include <ATen/ops/floor_native.h>
#include <ATen/ops/floor_ops.h>
#include <ATen/ops/log10_native.h>
#include <ATen/ops/log10_ops.h>
#include <ATen/ops/log1p_native.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log2_native.h>
#include <ATen/ops/log2_ops.h>
#include <ATen/ops/log_native.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/reciprocal_native.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/round_native.h>
#include <ATen/ops/round_ops.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sgn_native.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sign_native.h>
#include <ATen/ops/sign_ops.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sinh_native.h>
#include <ATen/ops/sinh_ops.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/tan_native.h>
#include <ATen/ops/tan_ops.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/trunc_native.h>
#include <ATen/ops/trunc_ops.h>
#include <torch/library.h>

#include "csrc/aten/fallback.h"
#include "csrc/aten/structured.h"

// clang-format off
// X(operator): floating or complex in, same dtype out.
#define NPUSIM_UNARY_FLOAT(X) \
  X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) \
  X(sqrt) X(rsqrt) X(reciprocal) \
  X(sin) X(cos) X(tan) X(sinh) X(cosh) X(tanh) X(asin) X(acos) X(atan) \
  X(erf) X(erfc) X(sigmoid)

// X(operator): same dtype in and out, all dtypes.
#define NPUSIM_UNARY_ANY(X) \
  X(neg) X(ceil) X(floor) X(round) X(trunc) X(sign) X(sgn)
// clang-format on

namespace torch_npusim {

namespace {

template <class Structured>
at::Tensor run_unary(const char* op, const at::Tensor& self, const at::Tensor* in_place) {
  return launch(op, {&self}, HostScalars::refused, [&](c10::DeviceIndex device) {
    OnDevice<Structured> call(device, in_place);
    call.meta(self);
    call.impl(self, call.maybe_get_output(0));
    return call.take();
  });
}

bool takes_any(const at::Tensor& self) {
  return fast_routes() && strict_align() != StrictAlign::copy && self.is_privateuseone();
}

bool takes_float(const at::Tensor& self) {
  return takes_any(self) && (self.is_floating_point() || self.is_complex());
}

#define NPUSIM_DEFINE(name, takes)                                                        \
  at::Tensor name(const at::Tensor& self) {                                               \
    if (!takes(self)) return run_boxed<at::_ops::name>(self);                             \
    return run_unary<at::native::structured_##name##_out>("aten::" #name, self, nullptr); \
  }                                                                                       \
  at::Tensor& name##_(at::Tensor& self) {                                                 \
    if (!takes(self)) {                                                                   \
      run_boxed<at::_ops::name##_>(self);                                                 \
    } else {                                                                              \
      run_unary<at::native::structured_##name##_out>("aten::" #name "_", self, &self);    \
    }                                                                                     \
    return self;                                                                          \
  }
#define NPUSIM_DEFINE_FLOAT(name) NPUSIM_DEFINE(name, takes_float)
#define NPUSIM_DEFINE_ANY(name) NPUSIM_DEFINE(name, takes_any)
NPUSIM_UNARY_FLOAT(NPUSIM_DEFINE_FLOAT)
NPUSIM_UNARY_ANY(NPUSIM_DEFINE_ANY)
#undef NPUSIM_DEFINE_FLOAT
#undef NPUSIM_DEFINE_ANY
#undef NPUSIM_DEFINE

}  // namespace

}  // namespace torch_npusim

namespace at::native {
// DispatchStubs are registered in the namespace that declares them.
#define NPUSIM_STUB(name) \
  REGISTER_PRIVATEUSE1_DISPATCH(name##_stub, &torch_npusim::trampoline<name##_stub>)
NPUSIM_UNARY_FLOAT(NPUSIM_STUB)
NPUSIM_UNARY_ANY(NPUSIM_STUB)
#undef NPUSIM_STUB
}  // namespace at::native

namespace torch_npusim {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define NPUSIM_REGISTER(name)    \
  m.impl(#name, TORCH_FN(name)); \
  m.impl(#name "_", TORCH_FN(name##_));
  NPUSIM_UNARY_FLOAT(NPUSIM_REGISTER)
  NPUSIM_UNARY_ANY(NPUSIM_REGISTER)
#undef NPUSIM_REGISTER
}

}  // namespace torch_npusim
