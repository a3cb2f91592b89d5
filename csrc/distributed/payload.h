// SPDX-License-Identifier: BSD-3-Clause
// What a collective moves: device tensors as flat tensors of the host over the same bytes, and
// NCCL's reductions made from those of gloo.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace torch_npusim::distributed {

// check_operand() raises what ProcessGroupNCCL raises for a tensor that it refuses: not of the
// device, sparse, or not contiguous. A `transfer` takes every tensor without gaps.
void check_operand(const at::Tensor& tensor, bool transfer = false);

// check_alike() is check_operand() of each, and that they are of one type and device.
void check_alike(const std::vector<at::Tensor>& tensors);

// values_of() is the tensor's values in the order of memory, bytes_of() its bytes: flat, of the
// host, without a copy. They live no longer than the tensor.
at::Tensor values_of(const at::Tensor& tensor);
at::Tensor bytes_of(const at::Tensor& tensor);

// Reduction: what is done to operands before gloo reduces them, and to the result afterwards.
class Reduction {
 public:
  // Raises for the types and operations that NCCL refuses.
  Reduction(const c10d::ReduceOp& op, at::ScalarType type, int ranks);

  const c10d::ReduceOp& op() const { return op_; }

  // Whether something is done before, and after, gloo's part.
  bool prepares() const { return factor_ != 1.0 || widens(); }
  bool finishes() const { return divisor_ != 1 || widens(); }

  // prepared() is `values` ready for gloo: themselves if there is nothing to do, else a copy.
  at::Tensor prepared(const at::Tensor& values) const;
  // prepare() is the same in place; not for a reduction that widens.
  void prepare(at::Tensor values) const;
  // result() is what gloo is to write to in place of `values`; finish() brings it there.
  at::Tensor result(const at::Tensor& values) const;
  void finish(const at::Tensor& result, at::Tensor values) const;
  bool widens() const { return wide_ != type_; }

 private:
  c10d::ReduceOp op_;
  at::ScalarType type_;
  at::ScalarType wide_;  // the type in which gloo reduces
  double factor_ = 1.0;  // of every operand
  int divisor_ = 1;      // of the result
};

}  // namespace torch_npusim::distributed
