// SPDX-License-Identifier: BSD-3-Clause
// Nested tensors of the strided layout: sizes, views, copies and random draws are torch's own
// device-independent functions; they handle the buffer, which is a dense device tensor. Arithmetic
// is the fallback over nested host views. The jagged layout needs nothing here: it is Python code
// over dense tensors.
#include <ATen/ops/_nested_select_backward_native.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_pin_memory_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/chunk_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/detach_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/is_pinned_native.h>
#include <ATen/ops/is_same_size_native.h>
#include <ATen/ops/narrow_native.h>
#include <ATen/ops/native_dropout_native.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/split_with_sizes_native.h>
#include <ATen/ops/squeeze_native.h>
#include <ATen/ops/transpose_native.h>
#include <ATen/ops/unbind_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

#include "csrc/routes/fallback.h"

namespace torch_npusim {

namespace {

// torch reads the three members on the host without asking where they lie.
at::Tensor view_from_buffer(const at::Tensor& buffer, const at::Tensor& sizes,
                            const at::Tensor& strides, const at::Tensor& offsets) {
  for (const at::Tensor& member : {sizes, strides, offsets}) {
    TORCH_CHECK(member.is_cpu(),
                "_nested_view_from_buffer: the sizes, strides and offsets of a nested tensor are "
                "CPU tensors on every device, got one on ",
                member.device(), "; move it with .cpu()");
  }
  return at::native::_nested_view_from_buffer(buffer, sizes, strides, offsets);
}

// torch 2.13 does not wrap a negative dimension here and writes before the sizes of the result.
at::Tensor select(const at::Tensor& self, int64_t dim, int64_t index) {
  return at::native::select_nested(self, c10::maybe_wrap_dim(dim, self.dim()), index);
}

// Operators with a composite beside the CPU's nested kernel. tests/ops/test_nested.py recomputes
// the list from the dispatcher.
constexpr std::array kShadowed = {"linear", "matmul", "matmul.out", "silu_backward",
                                  "value_selecting_reduction_backward"};

}  // namespace

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_nested_tensor_size", &at::native::_nested_tensor_size);
  m.impl("_nested_tensor_strides", &at::native::_nested_tensor_strides);
  m.impl("_nested_tensor_storage_offsets", &at::native::_nested_tensor_storage_offsets);
  m.impl("is_same_size", &at::native::nested_is_same_size);

  m.impl("_nested_select_backward", &at::native::_nested_select_backward_symint);
  m.impl("alias", &at::native::alias_nested);
  m.impl("chunk", &at::native::chunk_nested_tensor);
  m.impl("detach", &at::native::detach);
  m.impl("narrow", &at::native::narrow_nested_symint);
  m.impl("select.int", &select);
  m.impl("split_with_sizes", &at::native::split_with_sizes_nested);
  m.impl("squeeze", &at::native::squeeze_nested);
  m.impl("squeeze.dim",
         static_cast<at::Tensor (*)(const at::Tensor&, int64_t)>(at::native::squeeze_dim_nested));
  m.impl("squeeze.dims", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(
                             at::native::squeeze_dim_nested));
  m.impl("transpose.int", &at::native::transpose_nested);
  m.impl("unbind.int", &at::native::NestedTensor_unbind);
  m.impl("unsqueeze", &at::native::unsqueeze_nested);
  m.impl("values", &at::native::values_nested);
  m.impl("view", &at::native::view_nested);

  m.impl("_pin_memory", &at::native::_pin_memory_nested);
  m.impl("_to_copy", &at::native::_to_copy_nested);
  m.impl("clone", &at::native::clone_nested);
  m.impl("copy_", &at::native::copy_nested_);
  m.impl("empty_like", &at::native::empty_like_nested);
  m.impl("is_pinned", &at::native::is_pinned);

  m.impl("native_dropout", &at::native::native_dropout_nested);
  m.impl("normal_", &at::native::normal_nested_);
  serve_by_fallback(m, kShadowed);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_nested_view_from_buffer", &view_from_buffer); }

}  // namespace torch_npusim
