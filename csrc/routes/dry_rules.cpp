// SPDX-License-Identifier: BSD-3-Clause
// Rules per operator.
#include "csrc/routes/dry_rules.h"

#include <ATen/Context.h>
#include <ATen/DimVector.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/polar.h>

#include <algorithm>
#include <array>
#include <numeric>
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

// A tensor as TensorIterator lays out the result of operands, the first of which counts most.
Tensor iterated(TensorPointers operands) {
  const Tensor none;
  at::TensorIteratorConfig config;
  config.add_output(none).check_all_same_dtype(false).check_all_same_device(false);
  for (const at::TensorBase* operand : operands) config.add_const_input(*operand);
  return config.declare_static_dtype_and_device(at::kByte, at::kMeta).build().output();
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

// The places that a mask selects, which CUDA holds as numbers.
void hold_places(const at::TensorBase& mask, int64_t found) {
  if (!as_cuda()) return;
  nonzero_temporaries(static_cast<double>(mask.dim()), static_cast<double>(found),
                      mask.device().index());
}

void nonzero(const char* op, Arguments given) {
  const Tensor self = given[0].toTensor();
  const int64_t found = selected_in(op, *given.operands[0]);
  if (as_cuda()) {
    CudaTemporaries::hold(4);
    allocated_together({1}, given.operands[0]->device().index());
  }
  given.become(numbers({self.dim(), found}).t());
}

void masked_select(const char* op, Arguments given) {
  const Tensor self = given[0].toTensor();
  const at::TensorBase& mask = *given.operands[given.operands.size() - 1];
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  const int64_t times = c10::multiply_integers(sizes) / std::max<int64_t>(mask.numel(), 1);
  const int64_t found = times * selected_in(op, mask);
  hold_places(mask, found);
  given.become(on_meta(self, {found}));
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

// Tensors are equal; one boolean is compared with True where torch reads it.
void equal(const char* op, Arguments given) {
  const at::TensorBase& first = *given.operands[0];
  const bool is_flag = first.dim() == 0 && first.scalar_type() == at::kBool;
  const c10::Scalar answer = is_flag ? value_of(op, first) : answer_of(op, at::kBool, 1);
  given.become(answer.toBool());
}

// No gradient is infinite, and the optimizer's step is taken. Arguments: gradients, whether one is
// infinite, a scale.
void check_and_unscale(const char* /*op*/, Arguments given) {
  remember_value(*given.operands[given.operands.size() - 2], 0);
  given.become();
}

// Fused optimizers without a meta kernel write into their operands alone.
void nothing_returned(const char* /*op*/, Arguments given) { given.become(); }

// A result that the kernel for shapes resizes lies in rows there.
template <Tensor& (*kernel)(Tensor& out, const Tensor&, const Tensor&)>
void written_by_iterator(const char* /*op*/, Arguments given) {
  const Tensor first = given[0].toTensor(), second = given[1].toTensor();
  Tensor out = given[2].toTensor();
  const at::DimVector before(out.sizes());
  kernel(out, first, second);
  if (out.sizes() != at::IntArrayRef(before)) {
    const std::array<const at::TensorBase*, 2> both{&first, &second};
    const Tensor right = iterated(both);
    out.unsafeGetTensorImpl()->set_sizes_and_strides(right.sizes(), right.strides());
  }
  given.become(out);
}

// The result of a transform along `dims`: these lie innermost, the others as in `input`.
Tensor transformed(const Tensor& input, at::IntArrayRef sizes, at::IntArrayRef dims,
                   at::ScalarType dtype) {
  if (!at::hasMKL()) return numbers(sizes, dtype);
  at::DimVector order(input.dim()), turned(input.dim()), back(input.dim());
  std::iota(order.begin(), order.end(), 0);
  const auto others = std::partition(order.begin(), order.end(), [&](int64_t dim) {
    return std::find(dims.begin(), dims.end(), dim) == dims.end();
  });
  std::sort(order.begin(), others,
            [&](int64_t a, int64_t b) { return input.stride(a) > input.stride(b); });
  std::copy(dims.begin(), dims.end(), others);
  for (int64_t i = 0; i < input.dim(); ++i) {
    turned[i] = sizes[order[i]];
    back[order[i]] = i;
  }
  return numbers(turned, dtype).permute(back);
}

// The first `count` of the dimensions, those with longer strides first; then the rest.
at::DimVector in_order_of_strides(const Tensor& input, at::DimVector dims, std::size_t count) {
  std::sort(dims.begin(), dims.begin() + count,
            [&](int64_t a, int64_t b) { return input.stride(a) > input.stride(b); });
  return dims;
}

void fft_r2c(const char* /*op*/, Arguments given) {
  const Tensor input = given[0].toTensor();
  const at::DimVector dims = given[1].toDimVector();
  at::DimVector sizes(input.sizes());
  if (given[3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  given.become(transformed(input, sizes, in_order_of_strides(input, dims, dims.size() - 1),
                           c10::toComplexType(input.scalar_type())));
}

// A complex transform along all dimensions but the last comes first.
void fft_c2r(const char* /*op*/, Arguments given) {
  Tensor input = given[0].toTensor();
  at::DimVector dims = given[1].toDimVector();
  const int64_t last = dims.back();
  dims.pop_back();
  if (!dims.empty()) {
    input = transformed(input, input.sizes(), in_order_of_strides(input, dims, dims.size()),
                        input.scalar_type());
  }
  at::DimVector sizes(input.sizes());
  sizes[last] = given[3].toInt();
  given.become(transformed(input, sizes, {last}, c10::toRealValueType(input.scalar_type())));
}

// Results: sums, the bag of each index, sizes of bags, the index of each maximum. Arguments:
// weights, indices, offsets, scale_grad_by_freq, mode, sparse, weights of samples, whether the last
// offset is the end, the index that counts for nothing.
void embedding_bag(const char* /*op*/, Arguments given) {
  constexpr int64_t kSum = 0, kMax = 2;
  const Tensor weight = given[0].toTensor(), indices = given[1].toTensor();
  const Tensor offsets = given[2].toTensor();
  const int64_t mode = given[4].toInt();
  const int64_t bags = offsets.size(0) - (given[7].toBool() ? 1 : 0);
  const bool single = weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kHalf ||
                      weight.scalar_type() == at::kBFloat16;
  const bool fast = mode == kSum && single && weight.stride(1) == 1 && given[8].toInt() < 0;
  const at::DimVector maxima =
      mode == kMax ? at::DimVector{bags, weight.size(1)} : at::DimVector{bags};
  given.become(on_meta(weight, {bags, weight.size(1)}),
               on_meta(offsets, {fast ? 0 : indices.size(0)}), on_meta(offsets, {bags}),
               on_meta(offsets, maxima));
}

// The same on CUDA: it knows the bag of each index in every mode, and maxima in one.
void embedding_bag_of_cuda(const char* /*op*/, Arguments given) {
  constexpr int64_t kMax = 2;
  const Tensor weight = given[0].toTensor(), indices = given[1].toTensor();
  const Tensor offsets = given[2].toTensor();
  const int64_t bags = offsets.size(0) - (given[7].toBool() ? 1 : 0);
  const bool max = given[4].toInt() == kMax;
  const at::DimVector maxima = max ? at::DimVector{bags, weight.size(1)} : at::DimVector{0};
  given.become(on_meta(weight, {bags, weight.size(1)}), on_meta(indices, {indices.size(0)}),
               on_meta(indices, offsets.sizes()), on_meta(indices, maxima));
}

// The CPU's kernel keeps a buffer for the gradient.
void log_sigmoid(const char* /*op*/, Arguments given) {
  const Tensor self = given[0].toTensor();
  given.become(at::empty_like(self, at::device(at::kMeta)), on_meta(self, {0}));
}

using Rule = void (*)(const char* op, Arguments given);
const std::unordered_map<std::string_view, Rule>& rules() {
  static const auto* const kRules = new std::unordered_map<std::string_view, Rule>{
      {"aten::nonzero", &nonzero},
      {"aten::complex.out", &written_by_iterator<at::complex_out>},
      {"aten::polar.out", &written_by_iterator<at::polar_out>},
      {"aten::masked_select", &masked_select},
      {"aten::_unique2", &unique2},
      {"aten::bincount", &bincount},
      {"aten::repeat_interleave.Tensor", &repeat_interleave},
      {"aten::_ctc_loss", &ctc_loss},
      {"aten::_ctc_loss_backward", &ctc_loss_backward},
      {"aten::equal", &equal},
      {"aten::_fused_adagrad_", &nothing_returned},
      {"aten::_fused_adagrad_.tensor_lr", &nothing_returned},
      {"aten::_fused_sgd_", &nothing_returned},
      {"aten::_fused_sgd_.tensor_lr", &nothing_returned},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", &check_and_unscale},
  };
  return *kRules;
}

// Results as the CPU's kernels make them, where CUDA's make others.
const std::unordered_map<std::string_view, Rule>& rules_of_cpu() {
  static const auto* const kRules = new std::unordered_map<std::string_view, Rule>{
      {"aten::_fft_r2c", &fft_r2c},
      {"aten::_fft_c2r", &fft_c2r},
      {"aten::_embedding_bag", &embedding_bag},
      {"aten::_embedding_bag_forward_only", &embedding_bag},
  };
  return *kRules;
}

const std::unordered_map<std::string_view, Rule>& rules_of_cuda() {
  static const auto* const kRules = new std::unordered_map<std::string_view, Rule>{
      {"aten::_embedding_bag", &embedding_bag_of_cuda},
      {"aten::_embedding_bag_forward_only", &embedding_bag_of_cuda},
      {"aten::log_sigmoid_forward", &log_sigmoid},
  };
  return *kRules;
}

enum class Strides : std::uint8_t {
  like,      // the memory format that an operand suggests
  empty,     // as empty_like() of an operand
  rows,      // contiguous
  columns,   // of each matrix
  iterated,  // as TensorIterator's, of all operands
};

struct LaidOut {
  std::size_t result;
  Strides layout;
  std::size_t operand = 0;  // of `like` and `empty`; of `iterated` the first, its next follow
  bool on_cuda = true;      // CUDA's kernel does the same
};

const std::unordered_multimap<std::string_view, LaidOut>& laid_out() {
  static const auto* const kLaidOut = new std::unordered_multimap<std::string_view, LaidOut>{
      {"aten::_batch_norm_with_update", {0, Strides::like, 0, false}},
      {"aten::batch_norm_backward", {0, Strides::like, 1, false}},
      {"aten::binary_cross_entropy", {0, Strides::empty}},
      {"aten::binary_cross_entropy_backward", {0, Strides::empty, 1}},
      {"aten::channel_shuffle", {0, Strides::like, 0, false}},
      {"aten::copysign.Tensor", {0, Strides::iterated}},
      {"aten::div.Tensor_mode", {0, Strides::iterated}},
      {"aten::elu_backward", {0, Strides::iterated}},
      {"aten::floor_divide", {0, Strides::iterated}},
      {"aten::hardsigmoid_backward", {0, Strides::iterated}},
      {"aten::hardswish_backward", {0, Strides::iterated}},
      {"aten::hardtanh_backward", {0, Strides::iterated}},
      {"aten::heaviside", {0, Strides::iterated}},
      {"aten::lcm", {0, Strides::iterated}},
      {"aten::leaky_relu_backward", {0, Strides::iterated, 1}},
      {"aten::linalg_eig", {1, Strides::columns}},
      {"aten::_linalg_svd", {2, Strides::columns, 0, false}},
      {"aten::logaddexp", {0, Strides::iterated}},
      {"aten::logaddexp2", {0, Strides::iterated}},
      {"aten::logical_and", {0, Strides::iterated}},
      {"aten::logical_or", {0, Strides::iterated}},
      {"aten::logical_xor", {0, Strides::iterated}},
      {"aten::logit_backward", {0, Strides::iterated}},
      {"aten::max_unpool2d", {0, Strides::like, 0, false}},
      {"aten::mse_loss_backward", {0, Strides::rows}},
      {"aten::native_layer_norm_backward", {0, Strides::rows}},
      {"aten::native_layer_norm_backward", {1, Strides::rows}},
      {"aten::native_layer_norm_backward", {2, Strides::rows}},
      {"aten::pixel_shuffle", {0, Strides::like, 0, false}},
      {"aten::pow.Scalar", {0, Strides::rows}},
      {"aten::_prelu_kernel_backward", {0, Strides::iterated, 1}},
      {"aten::_prelu_kernel_backward", {1, Strides::iterated, 1}},
      {"aten::replication_pad2d", {0, Strides::like, 0, false}},
      {"aten::replication_pad2d_backward", {0, Strides::like, 1, false}},
      {"aten::smooth_l1_loss_backward", {0, Strides::rows}},
      {"aten::softplus_backward", {0, Strides::iterated}},
      {"aten::special_xlog1py", {0, Strides::iterated}},
      {"aten::threshold_backward", {0, Strides::iterated, 1}},
      {"aten::xlogy.Tensor", {0, Strides::iterated}},
  };
  return *kLaidOut;
}

// A tensor of `result`'s sizes, laid out so.
Tensor right_layout(const LaidOut& row, TensorPointers operands, const Tensor& result) {
  switch (row.layout) {
    case Strides::like:
      return at::empty(result.sizes(), at::device(at::kMeta).memory_format(
                                           operands[row.operand]->suggest_memory_format()));
    case Strides::empty:
      return at::empty_like(Tensor(*operands[row.operand]), at::device(at::kMeta));
    case Strides::rows:
      return numbers(result.sizes());
    case Strides::columns: {
      if (result.dim() < 2) return result;  // one that was not asked for
      at::DimVector turned(result.sizes());
      std::swap(turned.end()[-1], turned.end()[-2]);
      return numbers(turned).transpose(-1, -2);
    }
    case Strides::iterated: {
      if (operands.size() < 2) return at::empty_like(result, at::device(at::kMeta));
      c10::SmallVector<const at::TensorBase*, 4> turned(operands.begin(), operands.end());
      std::rotate(turned.begin(), turned.begin() + static_cast<std::ptrdiff_t>(row.operand),
                  turned.end());
      return iterated(turned);
    }
  }
  return result;
}

}  // namespace

void lay_out(const OpTraits& traits, TensorPointers operands, std::size_t place,
             const Tensor& result) {
  if (!result.defined()) return;
  const auto [begin, end] = laid_out().equal_range(traits.name);
  for (auto row = begin; row != end; ++row) {
    if (row->second.result != place || (as_cuda() && !row->second.on_cuda)) continue;
    const Tensor right = right_layout(row->second, operands, result);
    if (right.dim() != result.dim()) continue;  // a mean or a sum
    result.unsafeGetTensorImpl()->set_sizes_and_strides(right.sizes(), right.strides());
  }
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
  auto rule = rules().find(traits.name);
  if (rule == rules().end()) {
    const auto& own = as_cuda() ? rules_of_cuda() : rules_of_cpu();
    rule = own.find(traits.name);
    if (rule == own.end()) return false;
  }
  rule->second(traits.name.c_str(), {stack, traits.written.size(), operands});
  return true;
}

c10::ArrayRef<std::size_t> order_of_results(std::string_view op) {
  static constexpr std::size_t kBags[] = {2, 1, 0, 3}, kLosses[] = {1, 0};
  if (op == "aten::_embedding_bag" || op == "aten::_embedding_bag_forward_only") return kBags;
  return op == "aten::_ctc_loss" ? c10::ArrayRef<std::size_t>(kLosses)
                                 : c10::ArrayRef<std::size_t>();
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
    if (index->is_privateuseone()) hold_places(*index, count);
    for (int64_t dim = 0; dim < index->dim(); ++dim) chosen.push_back(numbers({count}));
  }
  return chosen;
}

}  // namespace torch_npusim
