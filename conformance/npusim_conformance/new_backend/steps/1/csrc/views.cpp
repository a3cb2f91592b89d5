// SPDX-License-Identifier: BSD-3-Clause
// Views that a fallback would copy in silence.
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <c10/core/DeviceGuard.h>

#include "operators.h"

namespace mychip {
namespace {

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::OptionalDeviceGuard guard(self.device());
  const c10::Storage nothing(c10::Storage::use_byte_size_t{}, 0, allocator(), true);
  return self.set_(nothing, 0, {0}, {});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("set_", &set_nothing);
}

}  // namespace
}  // namespace mychip
