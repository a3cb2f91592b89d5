// SPDX-License-Identifier: BSD-3-Clause
// Bytes and operations of calls.
#include "csrc/cost/account.h"

#include <ATen/Context.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "csrc/cost/precision.h"
#include "csrc/operands/spoil.h"

namespace torch_npusim {

npusim::Precision precision_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kComplexFloat:
      return npusim::Precision::f32;
    case at::kDouble:
    case at::kComplexDouble:
      return npusim::Precision::f64;
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexHalf:
      return npusim::Precision::f16;
    case at::kChar:
    case at::kByte:
    case at::kQInt8:
    case at::kQUInt8:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2fnuz:
      return npusim::Precision::i8;
    default:
      return npusim::Precision::other;
  }
}

namespace {

// What the cost model asks about a dtype.
struct DtypeCost {
  npusim::Precision precision;
  double bytes;
};

// Made when the module is loaded: every launch looks here for every operand.
const std::array<DtypeCost, static_cast<std::size_t>(at::ScalarType::NumOptions)> kDtypeCosts = [] {
  std::array<DtypeCost, static_cast<std::size_t>(at::ScalarType::NumOptions)> costs{};
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    costs[i].precision = precision_of(dtype);
    costs[i].bytes = static_cast<double>(c10::scalarTypeToTypeMeta(dtype).itemsize());
  }
  return costs;
}();

const DtypeCost& cost_of_dtype(const c10::TensorImpl& impl) {
  return kDtypeCosts[static_cast<std::size_t>(c10::typeMetaToScalarType(impl.dtype()))];
}

bool row_major(const c10::TensorImpl& impl) {
  return impl.layout() == at::kStrided && !impl.is_python_dispatch() && impl.is_contiguous();
}

struct Dim {
  int64_t size;
  int64_t stride;  // of the operand, in elements
  int64_t order;   // the walk goes along the smallest first
};
using Dims = c10::SmallVector<Dim, 8>;

// Sectors of a walk over `dims`, fastest first: a run without gaps, or a lone element, begins a
// sector of its own.
double walked_bytes(const Dims& dims, double item_bytes) {
  int64_t run = 1;
  std::size_t d = 0;
  for (; d < dims.size() && dims[d].stride == run; ++d) run *= dims[d].size;
  const double run_bytes = static_cast<double>(run) * item_bytes;
  if (d == dims.size()) return run_bytes;
  double sectors = std::ceil(run_bytes / kSectorBytes);
  if (d == 0) {  // gaps between neighbours: several may lie in one sector
    const double step = static_cast<double>(dims[0].stride) * item_bytes;
    sectors = static_cast<double>(dims[0].size) * std::min(1.0, step / kSectorBytes);
    sectors = std::ceil(sectors);
    d = 1;
  }
  for (; d < dims.size(); ++d) sectors *= static_cast<double>(dims[d].size);
  return sectors * kSectorBytes;
}

void sort(Dims& dims) {
  std::stable_sort(dims.begin(), dims.end(),
                   [](const Dim& a, const Dim& b) { return a.order < b.order; });
}

double strided_bytes(const c10::TensorImpl& impl) {
  const double item_bytes = cost_of_dtype(impl).bytes;
  Dims dims;
  double reach = 1;
  for (std::size_t d = 0; d < impl.sizes().size(); ++d) {
    const int64_t size = impl.sizes()[d];
    const int64_t stride = impl.strides()[d];
    if (size == 0) return 0;
    if (size == 1 || stride == 0) continue;
    dims.push_back({size, stride, stride});
    reach += static_cast<double>((size - 1) * stride);
  }
  sort(dims);
  return std::min(walked_bytes(dims, item_bytes), reach * item_bytes);
}

double members_bytes(const at::Tensor& tensor) {
  if (tensor.is_sparse()) {
    const auto& impl = static_cast<at::SparseTensorImpl&>(*tensor.unsafeGetTensorImpl());
    return touched_bytes(impl.indices()) + touched_bytes(impl.values());
  }
  const auto& impl = static_cast<at::SparseCsrTensorImpl&>(*tensor.unsafeGetTensorImpl());
  return touched_bytes(impl.compressed_indices()) + touched_bytes(impl.plain_indices()) +
         touched_bytes(impl.values());
}

void add_precision(const at::TensorBase& operand, npusim::Cost& cost) {
  // A number or a tensor of the host says nothing about the computation, indices say little.
  if (!operand.is_privateuseone()) return;
  const npusim::Precision own = cost_of_dtype(*operand.unsafeGetTensorImpl()).precision;
  if (own != npusim::Precision::other) cost.precision = own;
}

}  // namespace

double touched_bytes(const at::TensorBase& operand) {
  if (!operand.defined()) return 0;
  const c10::TensorImpl& impl = *operand.unsafeGetTensorImpl();
  if (C10_LIKELY(row_major(impl)) || impl.layout() != at::kStrided || operand.is_nested()) {
    constexpr c10::DispatchKeySet kMembers({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr});
    if (C10_UNLIKELY(impl.key_set().has_any(kMembers) && impl.layout() != at::kStrided)) {
      return members_bytes(at::Tensor(operand));
    }
    return static_cast<double>(impl.numel()) * cost_of_dtype(impl).bytes;
  }
  return strided_bytes(impl);
}

double touched_bytes(const at::TensorBase& operand, const at::TensorBase& result) {
  const c10::TensorImpl& impl = *operand.unsafeGetTensorImpl();
  const c10::TensorImpl& walk = *result.unsafeGetTensorImpl();
  if (impl.layout() != at::kStrided || walk.layout() != at::kStrided || operand.is_nested() ||
      impl.dim() > walk.dim()) {
    return touched_bytes(operand);
  }
  Dims dims;
  const auto missing = static_cast<std::size_t>(walk.dim() - impl.dim());
  for (std::size_t d = impl.sizes().size(); d-- > 0;) {
    const int64_t size = impl.sizes()[d];
    const int64_t stride = impl.strides()[d];
    if (size == 0) return 0;
    if (size == 1 || stride == 0) continue;
    dims.push_back({size, stride, walk.strides()[d + missing]});
  }
  sort(dims);
  return walked_bytes(dims, cost_of_dtype(impl).bytes);
}

npusim::Cost elementwise_cost(TensorPointers operands, double flops_per_element) {
  npusim::Cost cost;
  for (const at::TensorBase* operand : operands) {
    if (!operand->defined()) continue;
    cost.bytes += touched_bytes(*operand);
    cost.flops = std::max(cost.flops, static_cast<double>(operand->numel()) * flops_per_element);
    add_precision(*operand, cost);
  }
  return cost;
}

Account::Account(const CostTraits& traits, TensorPointers operands,
                 c10::ArrayRef<OperandRole> roles, c10::ArrayRef<int64_t> numbers, bool flag,
                 bool zero)
    : traits_(traits),
      operands_(operands),
      roles_(roles),
      numbers_(numbers),
      flag_(flag),
      zero_(zero) {
  if (C10_UNLIKELY(part_of_another_)) return;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const at::TensorBase& operand = *operands[i];
    if (!operand.defined()) continue;
    cost_.bytes += touched_bytes(operand) * times_moved(i);
    cost_.flops = std::max(cost_.flops, static_cast<double>(operand.numel()));
    add_precision(operand, cost_);
    has_gaps_ |= !row_major(*operand.unsafeGetTensorImpl());
  }
}

Account::Account(const npusim::Cost& operands) : cost_(operands) {}

// What is changed in place is read and written.
double Account::times_moved(std::size_t i) const {
  const bool written = !roles_.empty() && roles_[i] == OperandRole::written;
  return written && !traits_.overwrites ? 2 : 1;
}

// The tensor in whose order a pointwise operator goes.
const at::TensorBase* Account::walked_by(TensorPointers made) const {
  if (!made.empty()) return made[0];
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i] == OperandRole::written && operands_[i]->defined()) return operands_[i];
  }
  return nullptr;
}

namespace {

// Formulas ask for sizes, which nested tensors do not have.
bool have_sizes(TensorPointers tensors) {
  for (const at::TensorBase* tensor : tensors) {
    if (tensor->defined() && tensor->is_nested()) return false;
  }
  return true;
}

}  // namespace

// What would be moved if no operand had gaps.
double Account::dense_bytes(TensorPointers made) const {
  double bytes = 0;
  const auto add = [&](const at::TensorBase& tensor, double times) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return;
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    double own = cost_of_dtype(impl).bytes;
    for (std::size_t d = 0; d < impl.sizes().size(); ++d) {
      if (impl.strides()[d] != 0) own *= static_cast<double>(impl.sizes()[d]);
    }
    bytes += times * own;
  };
  for (std::size_t i = 0; i < operands_.size(); ++i) add(*operands_[i], times_moved(i));
  for (const at::TensorBase* result : made) add(*result, 1);
  return bytes;
}

// Bytes that are moved if each sector that is touched is read once, whatever the order.
double Account::distinct_bytes(TensorPointers made) const {
  double bytes = 0;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    bytes += touched_bytes(*operands_[i]) * times_moved(i);
  }
  for (const at::TensorBase* result : made) bytes += touched_bytes(*result);
  return bytes;
}

void Account::settle_results(TensorPointers made) const {
  if (C10_UNLIKELY(part_of_another_)) return;
  npusim::Cost cost = cost_;
  // Gaps count in the order of the result, and an out= argument may have its size only now.
  const bool in_order = traits_.pointwise && has_gaps_;
  if (C10_UNLIKELY(in_order || (traits_.overwrites && !roles_.empty()))) {
    const at::TensorBase* walked = in_order ? walked_by(made) : nullptr;
    cost.bytes = 0;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      const at::TensorBase& operand = *operands_[i];
      if (!operand.defined()) continue;
      const double bytes =
          walked != nullptr ? touched_bytes(operand, *walked) : touched_bytes(operand);
      cost.bytes += bytes * times_moved(i);
      cost.flops = std::max(cost.flops, static_cast<double>(operand.numel()));
    }
  }
  for (const at::TensorBase* result : made) {
    cost.bytes += touched_bytes(*result);
    if (traits_.formula != nullptr || operands_.empty()) continue;
    cost.flops = std::max(cost.flops, static_cast<double>(result->numel()));
  }
  // A number beside a tensor without elements is no work.
  if (C10_UNLIKELY(traits_.pointwise && cost.flops <= 1)) {
    const at::TensorBase* into = walked_by(made);
    if (into != nullptr && into->numel() == 0) cost.bytes = cost.flops = 0;
  }
  if (in_order && cost.bytes > kGaps * dense_bytes(made)) {
    cost.work = npusim::Work::strided;
    cost.cached = std::max(0.0, cost.bytes - distinct_bytes(made));
  }
  if (traits_.formula != nullptr && have_sizes(operands_) && have_sizes(made)) {
    traits_.formula({operands_, roles_, numbers_, made, flag_, zero_}, cost);
  }
  npusim::recharge(cost);
  if (C10_LIKELY(!npusim::command_failed())) return;
  for (const at::TensorBase* result : made) spoil(*result);
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i] == OperandRole::written) spoil(*operands_[i]);
  }
}

namespace {

bool is_convolution(npusim::Work work) {
  using enum npusim::Work;
  return work == convolution || work == depthwise || work == depthwise_backward ||
         work == grouped || work == grouped_backward;
}

}  // namespace

double causal_share(double queries, double keys) {
  if (queries < 1 || keys < 1) return 1;
  const double seeing_less = std::min(queries, keys);
  const double seen = seeing_less * (seeing_less + 1) / 2 + (queries - seeing_less) * keys;
  // Blocks that see more take longer, and the last of them keep the others waiting. The median of
  // the visible halves of recordings of an H100 and an H200: attention() of tools/gpu/host.py.
  constexpr double kUneven = 1.32;
  return std::min(1.0, kUneven * (seen / queries + npusim::kTile / 2) / keys);
}

void do_on_matrix_units(npusim::Cost& cost, npusim::Work work, const at::TensorBase& factor) {
  cost.work = work;
  add_precision(factor, cost);
  if (cost.precision != npusim::Precision::f32 || !factor.is_privateuseone()) return;
  const auto& peaks = npusim::device_spec(factor.device().index()).peak_flops_per_s;
  if (peaks[static_cast<std::size_t>(npusim::Precision::tf32)] == 0) return;
  const at::Context& flags = at::globalContext();
  const bool allowed = is_convolution(work) ? flags.allowTF32CuDNN(at::Float32Op::CONV)
                                            : flags.float32Precision(at::Float32Backend::CUDA,
                                                                     at::Float32Op::MATMUL) ==
                                                  at::Float32Precision::TF32;
  if (allowed) cost.precision = npusim::Precision::tf32;
}

}  // namespace torch_npusim
