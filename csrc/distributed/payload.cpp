// SPDX-License-Identifier: BSD-3-Clause
// Flat views at the address that kernels use, and the reductions that gloo has not.
#include "csrc/distributed/payload.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include "backend/backend.h"
#include "csrc/cuda_rules/judged_capability.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim::distributed {

namespace {

at::Tensor flat(const at::Tensor& tensor, at::ScalarType type) {
  const auto elements =
      static_cast<int64_t>(tensor.nbytes()) / static_cast<int64_t>(c10::elementSize(type));
  if (elements == 0) return at::empty({0}, at::TensorOptions(type));
  void* data = tensor.data_ptr();
  if (npusim::is_device_address(data)) data = npusim::kernel_alias(data);
  return at::from_blob(data, {elements}, at::TensorOptions(type));
}

bool is_float8(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2;
}

}  // namespace

void check_operand(const at::Tensor& tensor, bool transfer) {
  TORCH_CHECK_VALUE(tensor.is_privateuseone() && !tensor.is_sparse(),
                    "Tensors must be on npusim and dense; got a tensor on ", tensor.device(),
                    tensor.is_sparse() ? " that is sparse" : "");
  const bool accepted = transfer ? tensor.is_non_overlapping_and_dense()
                                 : tensor.is_contiguous(tensor.suggest_memory_format());
  TORCH_CHECK_VALUE(accepted, "Tensors must be contiguous");
  check_within_storage("a collective", tensor);
}

void check_alike(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "Tensor list must be nonempty");
  for (const at::Tensor& tensor : tensors) {
    check_operand(tensor);
    TORCH_CHECK_TYPE(tensor.scalar_type() == tensors[0].scalar_type(),
                     "Tensors must have identical type");
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(),
                      "Expected list of tensors on the same device");
  }
}

at::Tensor values_of(const at::Tensor& tensor) { return flat(tensor, tensor.scalar_type()); }
at::Tensor bytes_of(const at::Tensor& tensor) { return flat(tensor, at::kByte); }

Reduction::Reduction(const c10d::ReduceOp& op, at::ScalarType type, int ranks)
    : op_(op), type_(type), wide_(type) {
  using Op = c10d::ReduceOp;
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      break;
    default:
      TORCH_CHECK_TYPE(is_float8(type),
                       "Input tensor data type is not supported for simccl process group: ", type);
      const int judged = judged_capability();
      TORCH_CHECK_WITH(DistBackendError, judged == 0 || judged >= 90, "simccl: ", type,
                       " on compute capability ", judged / 10, ".", judged % 10,
                       ": FP8 reduction support begins with sm90 capable devices, as with NCCL");
      wide_ = at::kFloat;
  }
  const Op::RedOpType what = op;
  TORCH_CHECK_VALUE(what != Op::BAND && what != Op::BOR && what != Op::BXOR, "Cannot use ReduceOp.",
                    what == Op::BAND  ? "BAND"
                    : what == Op::BOR ? "BOR"
                                      : "BXOR",
                    " with simccl, as with NCCL");
  if (type == at::kBool) {
    wide_ = at::kByte;
    TORCH_CHECK_TYPE(what != Op::AVG, "Cannot use ReduceOp.AVG with boolean inputs");
    if (what == Op::SUM) op_ = Op(Op::MAX);  // bytes would overflow; NCCL's sum is an "or" too
    if (what == Op::PRODUCT) op_ = Op(Op::MIN);
  }
  if (what == Op::AVG) {
    op_ = Op(Op::SUM);
    if (c10::isFloatingType(type)) {
      factor_ = 1.0 / ranks;
    } else {
      divisor_ = ranks;
    }
  } else if (what == Op::PREMUL_SUM) {
    TORCH_CHECK_TYPE(c10::isFloatingType(type) && !is_float8(type),
                     "PreMulSum Data type must be half, float, bfloat16 or double");
    const auto* factor = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
    factor_ = factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                              : factor->double_factor;
    op_ = Op(Op::SUM);
  }
}

at::Tensor Reduction::prepared(const at::Tensor& values) const {
  if (!prepares()) return values;
  at::Tensor copy = widens() ? values.to(wide_) : values.clone();
  if (factor_ != 1.0) copy.mul_(factor_);
  return copy;
}

void Reduction::prepare(at::Tensor values) const {
  if (factor_ != 1.0) values.mul_(factor_);
}

at::Tensor Reduction::result(const at::Tensor& values) const {
  return widens() ? at::empty(values.sizes(), at::TensorOptions(wide_)) : values;
}

void Reduction::finish(const at::Tensor& result, at::Tensor values) const {
  if (widens()) values.copy_(result);
  if (divisor_ != 1) values.div_(divisor_, "trunc");  // towards zero, as NCCL's FuncSumPostDiv
}

}  // namespace torch_npusim::distributed
