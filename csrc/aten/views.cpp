// SPDX-License-Identifier: BSD-3-Clause
// View operators: new sizes and strides over the same storage; no kernel runs, no memory moves.
// torch's own implementations only touch metadata, so they serve device tensors as they are.
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "backend/host_layer.h"

namespace torch_npusim {

namespace {

// torch's own takes sizes from callers that have computed them, and lets a direct call see memory
// of others.
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  TORCH_CHECK(sizes.size() == strides.size(), "aten::_reshape_alias: got ", sizes.size(),
              " sizes and ", strides.size(), " strides");
  npusim::pass_host_calls(npusim::HostCall::call);
  at::native::checkInBoundsForStorage(sizes, strides, self.storage_offset(), self.dtype(),
                                      self.storage());
  return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  npusim::pass_host_calls(npusim::HostCall::call);
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  npusim::pass_host_calls(npusim::HostCall::call);
  return at::native::view(self, sizes);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("as_strided", &at::native::as_strided_qtensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
}

}  // namespace torch_npusim
