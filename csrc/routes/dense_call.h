// SPDX-License-Identifier: BSD-3-Clause
// Route i: pointwise operators on operands that are dense alike. If all have one shape, the same
// strides and one dtype, the iterator that the CPU's loop wants is one dimension long and can be
// written down instead of computed; the loop, and so the bits, are the CPU's own. Beside operands
// of the full shape there may be numbers, 0-dim tensors, and a row or a column of the last two
// dimensions, as biases and statistics are.
//
//   exp(x), x on npusim  ->  DenseCall: alike?  -- no -->  CpuKernel (route ii)
//                                |
//                            DenseIterator: host addresses, n elements  ->  exp_stub's CPU loop
//
// Cost: one operation per element, every operand read once and the result written.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#include <array>

#include "csrc/launch/launch.h"
#include "csrc/operands/alignment.h"
#include "csrc/routes/one_vector_thread.h"

namespace torch_npusim {

// fast_routes() is NPUSIM_FASTPATH: false leaves the kernels on host views in charge.
bool fast_routes() noexcept;

// A set of dtypes.
using Dtypes = std::uint64_t;
constexpr Dtypes dtype_set(at::ScalarType dtype) { return Dtypes{1} << static_cast<int>(dtype); }
constexpr Dtypes kFloats = dtype_set(at::kFloat) | dtype_set(at::kDouble) | dtype_set(at::kHalf) |
                           dtype_set(at::kBFloat16);
constexpr Dtypes kInts = dtype_set(at::kLong) | dtype_set(at::kInt) | dtype_set(at::kShort) |
                         dtype_set(at::kChar) | dtype_set(at::kByte);
constexpr Dtypes kBool = dtype_set(at::kBool);
constexpr Dtypes kReals = kFloats | kInts;

// How an operand meets the shape of the result: (.., m, n) beside (.., m, n), (), (n), (.., m, 1).
enum class Extent : std::uint8_t { full, single, row, column };

// DenseIterator: the iterator of a pointwise loop over operands that are dense alike, as the CPU's
// own set-up would leave it: one dimension, none for 0-dim operands, two with a row or a column.
class DenseIterator final : public at::TensorIteratorBase {
 public:
  DenseIterator(const c10::TensorImpl& shape, at::ScalarType common_dtype, bool by_rows);

  void add_output(const at::TensorBase& tensor);
  void add_input(const at::TensorBase& tensor, Extent extent);
  // add_number() adds a wrapped number, converted to the common dtype as the CPU converts it.
  void add_number(const at::TensorBase& number);

  const at::Tensor& maybe_get_output(int64_t) override;

 private:
  at::OperandInfo& add(const at::TensorBase& tensor, void* data, Extent extent);
};

// Whether the loop's operands may come in different dtypes: core then computes in their common one,
// and converts what is of another into a temporary first.
enum class Mixed : std::uint8_t { refused, promoted };

// DenseCall collects the operands of one call and says whether route i can take them.
class DenseCall {
 public:
  explicit DenseCall(Dtypes accepted, Mixed mixed = Mixed::refused)
      : accepted_(accepted), mixed_(mixed) {}

  // add_mask() takes a bool tensor of the operands' shape; call it before add().
  void add_mask(const at::Tensor& mask) { has_mask_ = true, add(mask); }
  void add(const at::Tensor& operand) { operands_[count_++] = &operand; }
  void add(const at::Scalar& argument) {
    refused_ |= argument.isComplex() || argument.isSymbolic();
  }
  void refuse() { refused_ = true; }

  // takes() is false if the operands are not alike, not of an accepted dtype, on several devices or
  // on none, or if the switches of this backend ask for another route. `in_place` is the first
  // operand if that is where the result goes, else nullptr.
  bool takes(const at::Tensor* in_place = nullptr);

  // run() calls kernel(iterator) as one command and returns the result. Call it after takes().
  // bool_result: the result is bool, whatever the operands are.
  template <class Kernel>
  at::Tensor run(const char* op, bool bool_result, const Kernel& kernel) const {
    return launch({op, npusim::CommandKind::kernel, cost(bool_result)}, shape_->device().index(),
                  [&] {
                    at::Tensor out = compute(bool_result, kernel);
                    if (C10_UNLIKELY(npusim::command_failed())) spoil(out);
                    return out;
                  });
  }

  // compute() is run() for a part of a larger command.
  template <class Kernel>
  at::Tensor compute(bool bool_result, const Kernel& kernel) const {
    at::Tensor out = output(bool_result);
    DenseIterator iter(*shape_, dtype_, by_rows_);
    const std::array<at::Tensor, 2> converted = set_up(iter, out);
    if (C10_UNLIKELY(npusim::dry())) return out;
    const OneVectorThread one_thread(count_, shape_->numel());
    kernel(iter);
    return out;
  }

  npusim::Cost cost(bool bool_result) const;

  // overwrites() says that the loop does not read what it replaces.
  void overwrites() { overwrites_ = true; }

 private:
  void find_shape();
  bool joins(std::size_t index);
  bool dense() const;
  at::Tensor output(bool bool_result) const;
  bool promote();
  at::Tensor in_common_dtype(const at::Tensor& operand) const;
  // The temporaries that `iter` points into.
  std::array<at::Tensor, 2> set_up(DenseIterator& iter, const at::Tensor& out) const;

  Dtypes accepted_;
  Mixed mixed_;
  std::array<const at::Tensor*, 4> operands_{};
  std::array<Extent, 4> extents_{};
  std::size_t count_ = 0;
  std::size_t numbers_ = 0;
  const at::Tensor* in_place_ = nullptr;
  const c10::TensorImpl* shape_ = nullptr;  // of the largest operand
  at::ScalarType dtype_ = at::ScalarType::Undefined;
  bool has_mask_ = false;
  bool refused_ = false;
  bool broadcasts_ = false;  // not all operands have the full shape
  bool by_rows_ = false;
  bool overwrites_ = false;
  bool promotes_ = false;  // operands have different dtypes
};

// wrapped_number() is the 0-dim host tensor that core makes of a number beside a tensor. It is this
// thread's own, and holds until the next call.
const at::Tensor& wrapped_number(const at::Scalar& number);

}  // namespace torch_npusim
