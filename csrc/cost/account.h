// SPDX-License-Identifier: BSD-3-Clause
// The account of a command (rule C1): the bytes that it reads and writes, and its operations.
// Inputs count once, results once, operands changed in place twice; access with gaps counts the
// 32-byte sectors that it touches. Operators that differ have a formula in cost_formulas.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <tuple>
#include <vector>

#include "backend/backend.h"

namespace torch_npusim {

// index: of an optional list of tensors, as index.Tensor has.
enum class OperandRole : std::uint8_t { read, index, written };

using TensorPointers = c10::ArrayRef<const at::TensorBase*>;

// One call, as a formula sees it. It borrows everything.
struct CostedCall {
  TensorPointers operands;
  c10::ArrayRef<OperandRole> roles;  // empty: all are read
  c10::ArrayRef<int64_t> numbers;    // the integer arguments in order, lists spread out
  TensorPointers results;            // new ones
  bool flag = false;                 // the first boolean argument: training, of batch norms
  bool zero = false;                 // the first Scalar argument is 0: beta, of products
};

// A formula corrects the default cost of a call, which it gets in `cost`.
using CostFormula = void (*)(const CostedCall& call, npusim::Cost& cost);

// The facts of an operator that its cost depends on.
struct CostTraits {
  CostFormula formula = nullptr;
  bool pointwise = false;   // walks its operands in the order of the result
  bool overwrites = false;  // does not read the operands that it writes
};

// cost_formula() is the formula of an operator, named without its overload; nullptr: the default.
CostFormula cost_formula(const std::string& name);

// Strided access moves whole sectors of memory (rule C1).
inline constexpr double kSectorBytes = 32;
// A pointwise command that moves so many times its elements' bytes is a strided one.
inline constexpr double kGaps = 1.2;

// touched_bytes() is what it takes to walk over `operand`: in the best order, or, given the result
// of a pointwise operator, in the result's. Elements that strides of 0 repeat count once.
double touched_bytes(const at::TensorBase& operand);
double touched_bytes(const at::TensorBase& operand, const at::TensorBase& result);

// The least cost of a kernel: every operand moved once, one operation per element of the largest.
npusim::Cost elementwise_cost(TensorPointers operands, double flops_per_element = 1.0);

// Account: made before a command from its operands, settled at the end of the command's body, when
// the results are known. It borrows the operands, roles and numbers. In the body of another command
// it counts nothing: that command's account does.
class Account {
 public:
  Account(const CostTraits& traits, TensorPointers operands, c10::ArrayRef<OperandRole> roles = {},
          c10::ArrayRef<int64_t> numbers = {}, bool flag = false, bool zero = false);
  // For kernels that compute the cost of their operands themselves.
  explicit Account(const npusim::Cost& operands);

  const npusim::Cost& cost() const { return cost_; }

  // settle() adds the results. If a fault hit the command, everything that it wrote becomes garbage
  // (rule F3).
  template <class Result>
  void settle(const Result& result) const {
    c10::SmallVector<const at::TensorBase*, 4> made;
    list(made, result);
    settle_results(made);
  }
  void settle() const { settle_results({}); }

 private:
  using Made = c10::SmallVector<const at::TensorBase*, 4>;
  template <class Other>
  static void list(Made&, const Other&) {}
  static void list(Made& made, const at::Tensor& tensor) {
    if (tensor.defined()) made.push_back(&tensor);
  }
  static void list(Made& made, const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) list(made, tensor);
  }
  template <class... Results>
  static void list(Made& made, const std::tuple<Results...>& results) {
    std::apply([&](const auto&... result) { (list(made, result), ...); }, results);
  }
  void settle_results(TensorPointers made) const;
  double times_moved(std::size_t i) const;
  double dense_bytes(TensorPointers made) const;
  double distinct_bytes(TensorPointers made) const;
  const at::TensorBase* walked_by(TensorPointers made) const;

  CostTraits traits_;
  TensorPointers operands_;
  c10::ArrayRef<OperandRole> roles_;
  c10::ArrayRef<int64_t> numbers_;
  bool flag_ = false;
  bool zero_ = false;
  npusim::Cost cost_;
  bool part_of_another_ = npusim::in_command_body();
  bool has_gaps_ = false;  // an operand is not row-major
};

// causal_share() is what is done of the products of so many queries and keys where a query sees no
// later key: kernels leave out the blocks of keys that none of a block's queries sees.
double causal_share(double queries, double keys);

// do_on_matrix_units() says that a product or a convolution is one, in the precision of `factor`,
// whatever dtype statistics, biases and results have. float32 then counts as TF32 where the chip
// has a peak of it and the flags of torch allow it (torch.backends.cuda.matmul,
// torch.backends.cudnn).
void do_on_matrix_units(npusim::Cost& cost, npusim::Work work, const at::TensorBase& factor);

}  // namespace torch_npusim
