// SPDX-License-Identifier: BSD-3-Clause
// Rules per operator.
#include "csrc/routes/dry_rules.h"

#include <ATen/DimVector.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "csrc/operands/device_empty.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/runtime/dry_answers.h"
#include "csrc/runtime/known_values.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr const char* kUnknown =
    ": the shape of its result may depend on values, and tensors of a dry run have none";

Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype = at::kLong) {
  return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
}

Tensor on_meta(const Tensor& like, at::IntArrayRef sizes) {
  return numbers(sizes, like.scalar_type());
}

// The arguments of one call, which the results replace.
struct Arguments {
  Stack& stack;
  std::size_t count;
  TensorPointers operands;  // on the device
  const c10::IValue& operator[](std::size_t i) const { return stack[stack.size() - count + i]; }
  template <class... Results>
  void become(Results... results) {
    torch::jit::drop(stack, count);
    torch::jit::push(stack, std::move(results)...);
  }
};

void nonzero(const char* op, Arguments given) {
  const Tensor self = given[0].toTensor();
  given.become(numbers({self.dim(), selected_in(op, *given.operands[0])}).t());
}

void masked_select(const char* op, Arguments given) {
  const Tensor self = given[0].toTensor();
  const at::TensorBase& mask = *given.operands[given.operands.size() - 1];
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  const int64_t times = c10::multiply_integers(sizes) / std::max<int64_t>(mask.numel(), 1);
  given.become(on_meta(self, {times * selected_in(op, mask)}));
}

// Counts and inverses that are not asked for are empty.
void unique2(const char* op, Arguments given) {
  const Tensor self = given[0].toTensor();
  const int64_t classes = classes_in(*given.operands[0]);
  const int64_t found =
      classes > 0 ? std::min(classes, self.numel()) : selected_of(op, self.numel());
  if (classes > 0) count_answer(op, static_cast<double>(found), "elements");
  const at::IntArrayRef all = self.sizes();
  const bool inverse = given[2].toBool(), counts = given[3].toBool();
  given.become(on_meta(self, {found}), inverse || counts ? numbers(all) : numbers({0}),
               counts ? numbers({found}) : numbers({0}));
}

// As many as the least length says; larger values would make it longer.
void bincount(const char* op, Arguments given) {
  const int64_t length = given[2].toInt();
  TORCH_CHECK_NOT_IMPLEMENTED(length > 0, op, kUnknown, ". Give a minlength.");
  const bool weighted = given[1].isTensor() && given[1].toTensor().defined();
  const bool single = weighted && given[1].toTensor().scalar_type() == at::kFloat;
  count_answer(op, length, "elements");
  given.become(numbers({length}, !weighted ? at::kLong : single ? at::kFloat : at::kDouble));
}

// Each element once, unless the size is given.
void repeat_interleave(const char* op, Arguments given) {
  const int64_t length = given[1].isInt() ? given[1].toInt() : given[0].toTensor().numel();
  if (!given[1].isInt()) count_answer(op, length, "elements");
  given.become(on_meta(given[0].toTensor(), {length}));
}

// The second result has a row for each target and each gap. Lengths from the device read as zeros.
void ctc_loss(const char* /*op*/, Arguments given) {
  const Tensor log_probs = given[0].toTensor(), targets = given[1].toTensor();
  const int64_t batch = log_probs.size(1);
  int64_t longest = 0;
  for (const int64_t length : given[3].toIntVector()) longest = std::max(longest, length);
  if (longest == 0) {
    longest = targets.dim() == 2 ? targets.size(1) : targets.numel() / std::max<int64_t>(batch, 1);
  }
  given.become(on_meta(log_probs, {batch}),
               on_meta(log_probs, {batch, log_probs.size(0), 2 * longest + 1}));
}

void ctc_loss_backward(const char* /*op*/, Arguments given) {
  const Tensor log_probs = given[1].toTensor();
  given.become(on_meta(log_probs, log_probs.sizes()));
}

// CUDA's result is like the gradient; the CPU multiplies twice.
void dropout_backward(const char* /*op*/, Arguments given) {
  const Tensor gradient = given[0].toTensor(), mask = given[1].toTensor();
  given.become(as_cuda() ? at::empty_like(gradient) : at::mul(gradient, mask));
}

void equal(const char* op, Arguments given) { given.become(answer_of(op, at::kBool, 1).toBool()); }

// No gradient is infinite, and the optimizer's step is taken. Arguments: gradients, whether one is
// infinite, a scale.
void check_and_unscale(const char* /*op*/, Arguments given) {
  remember_value(*given.operands[given.operands.size() - 2], 0);
  given.become();
}

// Fused optimizers without a meta kernel write into their operands alone.
void nothing_returned(const char* /*op*/, Arguments given) { given.become(); }

using Rule = void (*)(const char* op, Arguments given);
const std::unordered_map<std::string_view, Rule>& rules() {
  static const auto* const kRules = new std::unordered_map<std::string_view, Rule>{
      {"aten::nonzero", &nonzero},
      {"aten::masked_select", &masked_select},
      {"aten::_unique2", &unique2},
      {"aten::bincount", &bincount},
      {"aten::repeat_interleave.Tensor", &repeat_interleave},
      {"aten::_ctc_loss", &ctc_loss},
      {"aten::_ctc_loss_backward", &ctc_loss_backward},
      {"aten::equal", &equal},
      {"aten::native_dropout_backward", &dropout_backward},
      {"aten::_fused_adagrad_", &nothing_returned},
      {"aten::_fused_adagrad_.tensor_lr", &nothing_returned},
      {"aten::_fused_sgd_", &nothing_returned},
      {"aten::_fused_sgd_.tensor_lr", &nothing_returned},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", &check_and_unscale},
  };
  return *kRules;
}

enum class Strides : std::uint8_t {
  like,      // the memory format that an operand suggests
  rows,      // contiguous
  columns,   // of each matrix
  iterated,  // as TensorIterator's, of the first two operands
};

struct LaidOut {
  std::size_t result;
  Strides layout;
  std::size_t operand = 0;  // of `like`
  bool on_cuda = true;      // CUDA's kernel does the same
};

const std::unordered_map<std::string_view, LaidOut>& laid_out() {
  static const auto* const kLaidOut = new std::unordered_map<std::string_view, LaidOut>{
      {"aten::batch_norm_backward", {0, Strides::like, 1, false}},
      {"aten::channel_shuffle", {0, Strides::like, 0, false}},
      {"aten::hardswish_backward", {0, Strides::iterated}},
      {"aten::hardtanh_backward", {0, Strides::iterated}},
      {"aten::leaky_relu_backward", {0, Strides::iterated}},
      {"aten::linalg_eig", {1, Strides::columns}},
      {"aten::_linalg_svd", {2, Strides::columns, 0, false}},
      {"aten::logit_backward", {0, Strides::iterated}},
      {"aten::max_unpool2d", {0, Strides::like, 0, false}},
      {"aten::native_layer_norm_backward", {0, Strides::rows}},
      {"aten::pixel_shuffle", {0, Strides::like, 0, false}},
      {"aten::replication_pad2d", {0, Strides::like, 0, false}},
      {"aten::replication_pad2d_backward", {0, Strides::like, 1, false}},
  };
  return *kLaidOut;
}

// A tensor of `result`'s sizes, laid out so.
Tensor right_layout(const LaidOut& row, TensorPointers operands, const Tensor& result) {
  switch (row.layout) {
    case Strides::like:
      return at::empty(result.sizes(), at::device(at::kMeta).memory_format(
                                           operands[row.operand]->suggest_memory_format()));
    case Strides::rows:
      return numbers(result.sizes());
    case Strides::columns: {
      at::DimVector turned(result.sizes());
      std::swap(turned.end()[-1], turned.end()[-2]);
      return numbers(turned).transpose(-1, -2);
    }
    case Strides::iterated: {
      const Tensor none;
      return at::TensorIteratorConfig()
          .add_output(none)
          .add_const_input(*operands[0])
          .add_const_input(*operands[1])
          .check_all_same_dtype(false)
          .check_all_same_device(false)
          .declare_static_dtype_and_device(at::kByte, at::kMeta)
          .build()
          .output();
    }
  }
  return result;
}

}  // namespace

void lay_out(const OpTraits& traits, TensorPointers operands, std::size_t place,
             const Tensor& result) {
  const auto row = laid_out().find(traits.name);
  if (row == laid_out().end() || row->second.result != place || !result.defined()) return;
  if (as_cuda() && !row->second.on_cuda) return;
  const Tensor right = right_layout(row->second, operands, result);
  result.unsafeGetTensorImpl()->set_sizes_and_strides(right.sizes(), right.strides());
}

void refuse_shape(const OpTraits& traits) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, traits.name, kUnknown);
}

c10::DispatchKeySet kernel_for(const CpuCall& call, const OpTraits& traits) {
  if (C10_UNLIKELY(call.kernel() == c10::DispatchKey::Meta)) {
    const bool known = traits.op->hasComputedKernelForDispatchKey(c10::DispatchKey::Meta);
    if (traits.dynamic_shape || !known) refuse_shape(traits);
  }
  return c10::DispatchKeySet(call.kernel());
}

bool serve_by_rule(const OpTraits& traits, TensorPointers operands, Stack& stack) {
  const auto rule = rules().find(traits.name);
  if (rule == rules().end()) return false;
  rule->second(traits.name.c_str(), {stack, traits.written.size(), operands});
  return true;
}

c10::List<std::optional<Tensor>> indices_without_masks(
    const c10::List<std::optional<Tensor>>& indices) {
  c10::List<std::optional<Tensor>> chosen;
  for (const std::optional<Tensor> index : indices) {
    const bool mask = index.has_value() && index->defined() &&
                      (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
    if (!mask) {
      chosen.push_back(index);
      continue;
    }
    // A mask of the host has values.
    const int64_t count = index->is_cpu() ? index->count_nonzero().item<int64_t>()
                                          : selected_in("aten::index", *index);
    for (int64_t dim = 0; dim < index->dim(); ++dim) chosen.push_back(numbers({count}));
  }
  return chosen;
}

}  // namespace torch_npusim
