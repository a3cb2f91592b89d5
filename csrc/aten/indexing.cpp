// SPDX-License-Identifier: BSD-3-Clause
// Indexing, joining, masking and rearranging on route ii.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/_stack_ops.h>
#include <ATen/ops/cat_native.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/flip_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/index_meta_dispatch.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/roll_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/DimVector.h>
#include <torch/library.h>

#include <algorithm>

#include "csrc/routes/structured.h"

namespace torch_npusim {

namespace {

bool makes_results() { return fast_routes() && strict_align() != StrictAlign::copy; }

at::Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  using OnHost = CpuKernel<at::_ops::cat>;
  if (!makes_results()) return OnHost::call(tensors, dim);
  return OnHost::command(
      [](c10::DeviceIndex device, CpuCall& call, const at::ITensorListRef& parts, int64_t along) {
        const cpu_kernel::ViewList views = cpu_kernel::view(call, parts);
        const at::ITensorListRef shown = views;
        OnViews<at::native::structured_cat_out_cpu, 1> kernel(device);
        const auto found = kernel.meta(shown, along);
        if (C10_LIKELY(!npusim::dry())) {
          kernel.impl(shown, found.dim, found.valid, found.all_contiguous, found.all_same_dtype,
                      found.all_same_sizes_and_stride, found.memory_format,
                      kernel.maybe_get_output(0));
        }
        call.finish();
        return kernel.take(0);
      },
      tensors, dim);
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  using OnHost = CpuKernel<at::_ops::index_select>;
  if (!makes_results() || self.dim() == 0) return OnHost::call(self, dim, index);
  return OnHost::command(
      [](c10::DeviceIndex device, CpuCall& call, const at::Tensor& operand, int64_t along,
         const at::Tensor& chosen) {
        c10::DimVector sizes(operand.sizes());
        sizes[static_cast<std::size_t>(c10::maybe_wrap_dim(along, operand.dim()))] = chosen.numel();
        at::Tensor out = device_empty(sizes, operand.scalar_type(), device);
        const FreshView view(operand);
        const FreshView indices(chosen);
        FreshView result(out, Use::writes);
        if (C10_LIKELY(!npusim::dry())) {
          at::_ops::index_select_out::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), *view,
                                                 along, *indices, *result);
        }
        call.finish();
        return out;
      },
      self, dim, index);
}

at::Tensor index(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  using Kernel = CpuKernel<at::_ops::index_Tensor>;
  if (C10_LIKELY(!npusim::dry())) return Kernel::call(self, indices);
  const auto shape = [](c10::DeviceIndex, CpuCall& call, const at::Tensor& operand,
                        const c10::List<std::optional<at::Tensor>>& chosen) {
    // torch's Python for this shape leaves the strides of indices out.
    at::Tensor made = at::meta::index(cpu_kernel::view(call, operand),
                                      cpu_kernel::view(call, indices_without_masks(chosen)));
    call.finish();
    return call.result(std::move(made));
  };
  return Kernel::command(shape, self, indices);
}

// Indices come to where the tensor is, as on CUDA, from every device.
at::Tensor& index_put_impl_(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                            const at::Tensor& values, bool accumulate, bool unsafe) {
  using Kernel = at::_ops::_index_put_impl_;
  if (self.is_cpu()) {  // torch's kernel brings them itself
    return Kernel::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), self, indices, values,
                              accumulate, unsafe);
  }
  const auto elsewhere = [&](const std::optional<at::Tensor>& index) {
    return index && index->is_privateuseone() && index->device() != self.device();
  };
  if (C10_LIKELY(std::none_of(indices.begin(), indices.end(), elsewhere))) {
    return CpuKernel<Kernel>::call(self, indices, values, accumulate, unsafe);
  }
  c10::List<std::optional<at::Tensor>> here;
  for (const std::optional<at::Tensor>& index : indices) {
    here.push_back(elsewhere(index) ? index->to(self.device()) : index);
  }
  return CpuKernel<Kernel>::call(self, here, values, accumulate, unsafe);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cat", &cat);
  m.impl("index.Tensor", &index);
  m.impl("index_select", &index_select);
  m.impl("_index_put_impl_", &index_put_impl_);
  register_cpu_kernels<at::_ops::gather, at::_ops::scatter_src, at::_ops::scatter_value,
                       at::_ops::scatter__src, at::_ops::scatter__value, at::_ops::scatter_add,
                       at::_ops::scatter_add_>(m);
  register_cpu_kernels<at::_ops::_stack, at::_ops::masked_fill_Scalar,
                       at::_ops::masked_fill__Scalar, at::_ops::masked_fill_Tensor,
                       at::_ops::masked_fill__Tensor, at::_ops::triu, at::_ops::tril,
                       at::_ops::triu_, at::_ops::tril_, at::_ops::flip, at::_ops::roll>(m);
  register_cpu_kernels<at::_ops::embedding, at::_ops::embedding_dense_backward>(m);
}

}  // namespace torch_npusim
