// SPDX-License-Identifier: BSD-3-Clause
// Indexing, joining and masking on route ii.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/_stack_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/nonzero_static_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <torch/library.h>

#include "csrc/aten/host_kernel.h"

namespace torch_npusim {

namespace {

// Column by column: the layout that fake tensors promise for every device but the CPU.
at::Tensor nonzero_static(const at::Tensor& self, c10::SymInt size, int64_t fill_value) {
  const at::Tensor rows = HostKernel<at::_ops::nonzero_static>::call(self, size, fill_value);
  return rows.mT().clone(at::MemoryFormat::Contiguous).mT();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero_static", TORCH_FN(nonzero_static));
  register_host_kernels<at::_ops::index_Tensor, at::_ops::_index_put_impl_, at::_ops::index_select,
                        at::_ops::gather, at::_ops::scatter_src, at::_ops::scatter_value,
                        at::_ops::scatter__src, at::_ops::scatter__value, at::_ops::scatter_add,
                        at::_ops::scatter_add_>(m);
  register_host_kernels<at::_ops::cat, at::_ops::_stack, at::_ops::masked_fill_Scalar,
                        at::_ops::masked_fill__Scalar, at::_ops::masked_fill_Tensor,
                        at::_ops::masked_fill__Tensor, at::_ops::triu, at::_ops::tril,
                        at::_ops::triu_, at::_ops::tril_>(m);
  register_host_kernels<at::_ops::embedding, at::_ops::embedding_dense_backward>(m);
}

}  // namespace torch_npusim
