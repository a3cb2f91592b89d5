// SPDX-License-Identifier: BSD-3-Clause
// Sums and means over any dimensions, accumulated in double.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/sum_ops.h>

#include <vector>

#include "operators.h"

namespace mychip {
namespace {

struct Arguments {
  Loop kept;     // of out, and of self where an element of out begins
  Loop reduced;  // what is added up from there; its first operand is self
  float* out;
  const float* self;
  double scale;
};

void kernel(const void* given) {
  const auto& arguments = *static_cast<const Arguments*>(given);
  walk(arguments.kept, [&](const auto& at) {
    double sum = 0.0;
    walk(arguments.reduced, [&](const auto& in) { sum += arguments.self[at[1] + in[0]]; });
    arguments.out[at[0]] = static_cast<float>(sum * arguments.scale);
  });
}

void reduce(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, bool is_mean,
            at::Tensor& out) {
  const auto mask =
      dims && !dims->empty() ? at::dim_list_to_bitset(*dims, self.dim()) : std::bitset<64>().set();
  std::vector<std::int64_t> shape;
  Arguments arguments{};
  std::int64_t count = 1;
  for (std::int64_t dim = 0; dim < self.dim(); ++dim) {
    Loop& loop = mask[dim] ? arguments.reduced : arguments.kept;
    loop.sizes[loop.dims] = self.size(dim);
    loop.strides[mask[dim] ? 0 : 1][loop.dims] = self.stride(dim);
    ++loop.dims;
    if (mask[dim]) count *= self.size(dim);
    if (!mask[dim] || keepdim) shape.push_back(mask[dim] ? 1 : self.size(dim));
  }
  resize_out(out, shape);
  for (std::int64_t dim = 0, kept = 0, place = 0; dim < self.dim(); ++dim) {
    if (!mask[dim]) arguments.kept.strides[0][kept++] = out.stride(place);
    if (!mask[dim] || keepdim) ++place;
  }
  arguments.out = floats(out);
  arguments.self = read(self);
  arguments.scale = is_mean ? 1.0 / static_cast<double>(count) : 1.0;
  launch(out, &kernel, arguments);
}

bool keeps_dtype(std::optional<at::ScalarType> dtype) { return !dtype || *dtype == at::kFloat; }

at::Tensor& sum_out(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                    std::optional<at::ScalarType> dtype, at::Tensor& out) {
  if (!keeps_dtype(dtype) || !is_for_chip(out, {self}) || self.is_cpu()) {
    return ON_CPU(sum_IntList_out, self, dims, keepdim, dtype, out);
  }
  reduce(self, dims, keepdim, /*is_mean=*/false, out);
  return out;
}

at::Tensor& mean_out(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                     std::optional<at::ScalarType> dtype, at::Tensor& out) {
  if (!keeps_dtype(dtype) || !is_for_chip(out, {self}) || self.is_cpu()) {
    return ON_CPU(mean_out, self, dims, keepdim, dtype, out);
  }
  reduce(self, dims, keepdim, /*is_mean=*/true, out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("sum.IntList_out", &sum_out);
  m.impl("mean.out", &mean_out);
}

}  // namespace
}  // namespace mychip
