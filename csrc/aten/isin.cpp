// SPDX-License-Identifier: BSD-3-Clause
// isin() as CUDA computes it, from other operators: a comparison of each element with each of a few
// tested ones (TensorCompare.cu: isin_default_kernel_gpu), else a sort of both
// (TensorCompare.cpp: isin_sorting). Their memory, their kernels and the dtypes that they refuse
// are CUDA's; the values are the CPU's.
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index.h>
#include <torch/library.h>

#include <cmath>

#include "csrc/launch/launch.h"

namespace torch_npusim {

namespace {

using at::Tensor;

void check_dtype(const Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype != at::kBool && dtype != at::kComplexFloat && dtype != at::kComplexDouble,
              "Unsupported input type encountered for isin(): ", dtype);
}

void by_comparison(const Tensor& elements, const Tensor& tested, bool invert, Tensor& out) {
  c10::SmallVector<int64_t, 5> sizes(static_cast<std::size_t>(elements.dim()), 1);
  sizes.push_back(tested.numel());
  const Tensor each = elements.unsqueeze(-1);
  const Tensor among = tested.reshape(sizes);
  out.fill_(invert);
  out.copy_(invert ? each.ne(among).all(-1) : each.eq(among).any(-1));
}

void by_sorting(const Tensor& elements, const Tensor& tested, bool unique, bool invert,
                Tensor& out) {
  Tensor flat = elements.reshape(-1), flat_tested = tested.reshape(-1), places;
  if (!unique) {
    std::tie(flat, places) = at::_unique(elements, /*sorted=*/false, /*return_inverse=*/true);
    flat_tested = std::get<0>(at::_unique(tested, /*sorted=*/false));
  }
  const auto [sorted, order] =
      at::cat({flat, flat_tested}).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  // An element is among the tested ones if the next of the sorted ones is equal.
  const Tensor twice = at::empty_like(sorted, sorted.options().dtype(at::kBool));
  const Tensor behind = sorted.slice(0, 1), before = sorted.slice(0, 0, -1);
  twice.slice(0, 0, -1).copy_(invert ? behind.ne(before) : behind.eq(before));
  twice.slice(0, -1).fill_(invert);
  Tensor mask = at::empty_like(twice);
  mask.index_copy_(0, order, twice);
  if (unique) {
    out.copy_(mask.slice(0, 0, elements.numel()).view_as(out));
  } else {
    out.copy_(at::index(mask, {std::optional<Tensor>(places)}));
  }
}

Tensor& isin_out(const Tensor& elements, const Tensor& tested, bool unique, bool invert,
                 Tensor& out) {
  common_device("aten::isin.Tensor_Tensor", {&elements, &tested, &out}, HostScalars::refused);
  check_dtype(elements);
  check_dtype(tested);
  TORCH_CHECK(out.scalar_type() == at::kBool, "Expected out tensor to have dtype bool, but got ",
              out.scalar_type(), " instead");
  at::native::resize_output(out, elements.sizes());
  if (elements.numel() == 0) return out;
  const auto few = 10.0F * std::pow(static_cast<double>(elements.numel()), 0.145);
  if (tested.numel() < static_cast<int64_t>(few)) {
    by_comparison(elements, tested, invert, out);
  } else {
    by_sorting(elements, tested, unique, invert, out);
  }
  return out;
}

Tensor isin(const Tensor& elements, const Tensor& tested, bool unique, bool invert) {
  Tensor out = at::empty(elements.sizes(), elements.options().dtype(at::kBool));
  return isin_out(elements, tested, unique, invert, out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("isin.Tensor_Tensor", &isin);
  m.impl("isin.Tensor_Tensor_out", &isin_out);
}

}  // namespace torch_npusim
