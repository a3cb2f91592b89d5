// SPDX-License-Identifier: BSD-3-Clause
// Sums of sparse COO tensors of half precision, which CUDA has and the CPU lacks: the entries of
// both, one behind the other, as CUDA does it. Entries are merged where there are more of them than
// elements. Other sums are the fallback's.
#include <ATen/native/BinaryOps.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include "csrc/routes/fallback.h"

namespace torch_npusim {

namespace {

bool is_half_coo(const at::Tensor& tensor) {
  return tensor.layout() == at::kSparse &&
         (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

at::Tensor half_sum(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  at::Tensor values = other._values();
  if (!alpha.equal(1)) values = values.mul(alpha);
  const at::Tensor all = at::_sparse_coo_tensor_unsafe(
      at::cat({self._indices(), other._indices()}, 1), at::cat({self._values(), values}, 0),
      self.sizes(), self.options().layout(at::kSparse));
  return all._nnz() > all.numel() ? all.coalesce() : all;
}

template <bool subtracts, bool in_place>
void half_add(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::Tensor self = torch::jit::peek(*stack, 0, 3).toTensor();
  const at::Tensor other = torch::jit::peek(*stack, 1, 3).toTensor();
  const bool is_plain = is_half_coo(self) && is_half_coo(other) &&
                        self.scalar_type() == other.scalar_type() &&
                        self.sizes() == other.sizes() && self.sparse_dim() == other.sparse_dim() &&
                        self.device() == other.device();
  if (!is_plain) return cpu_fallback(op, keys, stack);
  const at::Scalar alpha = torch::jit::peek(*stack, 2, 3).toScalar();
  at::native::alpha_check(self.scalar_type(), alpha);
  at::Tensor result = half_sum(self, other, subtracts ? -alpha : alpha);
  if (in_place) {
    at::sparse::alias_into_sparse(self, result._indices(), result._values());
    self._coalesced_(result.is_coalesced());
    result = self;
  }
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, std::move(result));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("add.Tensor", torch::CppFunction::makeFromBoxedFunction<&half_add<false, false>>());
  m.impl("add_.Tensor", torch::CppFunction::makeFromBoxedFunction<&half_add<false, true>>());
  m.impl("sub.Tensor", torch::CppFunction::makeFromBoxedFunction<&half_add<true, false>>());
  m.impl("sub_.Tensor", torch::CppFunction::makeFromBoxedFunction<&half_add<true, true>>());
}

}  // namespace torch_npusim
