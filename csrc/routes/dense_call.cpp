// SPDX-License-Identifier: BSD-3-Clause
// The checks of route i, its iterator and its results.
//
// The bits must be those of the CPU backend. The CPU reaches its loop through TensorIterator's
// set-up, which reorders and merges dimensions, picks the common dtype and allocates the result.
// For operands that are dense alike the outcome is known: one dimension of n elements, the strides
// of the operands for the result. takes() accepts only calls for which that outcome is certain;
// each `return false` below names a case in which the set-up would decide otherwise, and route ii
// runs.
#include "csrc/routes/dense_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Copy.h>

#include "csrc/observers/observe.h"
#include "csrc/observers/route_taken.h"
#include "csrc/operands/device_empty.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/runtime/scratch_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

void* host_address(const at::TensorBase& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  auto* bytes = static_cast<char*>(const_cast<void*>(storage.data()));
  return npusim::kernel_alias(bytes + static_cast<std::size_t>(impl.storage_offset()) *
                                          impl.dtype().itemsize());
}

bool is_number(const at::Tensor& operand) {
  if (!operand.unsafeGetTensorImpl()->is_wrapped_number() || !operand.is_cpu()) return false;
  const at::ScalarType dtype = operand.scalar_type();
  return dtype == at::kDouble || dtype == at::kLong;
}

// The conversions are those of TensorIterator, which computes in the common dtype.
template <class Value>
const at::Tensor& converted(at::ScalarType dtype, const at::TensorBase& number) {
  // One 0-dim host tensor per thread and dtype serves all calls: nothing keeps it beyond the call.
  thread_local const at::Tensor scalar = [&] {
    const HostMemoryScope host_memory;
    return at::Tensor(at::detail::empty_cpu({}, dtype));
  }();
  const void* data = number.const_data_ptr();
  *static_cast<Value*>(scalar.mutable_data_ptr()) =
      number.scalar_type() == at::kDouble ? c10::convert<Value>(*static_cast<const double*>(data))
                                          : c10::convert<Value>(*static_cast<const int64_t*>(data));
  return scalar;
}

// `number` in the dtype of the computation; one call may hold one number of each dtype.
const at::Tensor& in_dtype(at::ScalarType dtype, const at::TensorBase& number) {
  switch (dtype) {
    case at::kFloat:
      return converted<float>(dtype, number);
    case at::kDouble:
      return converted<double>(dtype, number);
    case at::kHalf:
      return converted<c10::Half>(dtype, number);
    case at::kBFloat16:
      return converted<c10::BFloat16>(dtype, number);
    default:
      TORCH_INTERNAL_ASSERT(dtype == at::kLong);
      return converted<int64_t>(dtype, number);
  }
}

}  // namespace

bool fast_routes() noexcept {
  static const bool enabled = npusim::config().fastpath;  // validated when the module was loaded
  return enabled;
}

DenseIterator::DenseIterator(const c10::TensorImpl& shape, at::ScalarType common_dtype,
                             bool by_rows) {
  common_dtype_ = common_dtype;
  num_outputs_ = 1;
  has_coalesced_dimensions_ = true;
  if (by_rows) {
    const int64_t columns = shape.sizes().back();
    shape_.push_back(columns);
    shape_.push_back(shape.numel() / columns);
  } else if (shape.dim() > 0) {
    shape_.push_back(shape.numel());
  }
}

at::OperandInfo& DenseIterator::add(const at::TensorBase& tensor, void* data, Extent extent) {
  at::OperandInfo& operand = operands_.emplace_back();
  operand.tensor(c10::MaybeOwned<at::TensorBase>::borrowed(tensor));
  operand.data = data;
  operand.device = c10::Device(c10::kCPU);
  operand.target_dtype = operand.current_dtype = tensor.scalar_type();
  const auto bytes = static_cast<int64_t>(tensor.itemsize());
  const bool along_row = extent == Extent::full || extent == Extent::row;
  if (!shape_.empty()) operand.stride_bytes.push_back(along_row ? bytes : 0);
  if (shape_.size() == 2) {
    const int64_t to_next_row = extent == Extent::full ? bytes * shape_[0] : bytes;
    operand.stride_bytes.push_back(extent == Extent::full || extent == Extent::column ? to_next_row
                                                                                      : 0);
  }
  return operand;
}

// mutable_data() comes first: a lazy copy takes its own bytes before its address is read.
void DenseIterator::add_output(const at::TensorBase& tensor) {
  tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->mutable_data();
  note_use(tensor, Use::writes);
  add(tensor, host_address(tensor), Extent::full).is_output = true;
}

void DenseIterator::add_input(const at::TensorBase& tensor, Extent extent) {
  note_use(tensor, Use::reads);
  add(tensor, host_address(tensor), extent).is_const = true;
}

// Loops for reduced precision ask for the number as it was before it was rounded.
void DenseIterator::add_number(const at::TensorBase& number) {
  const at::Tensor& rounded = in_dtype(common_dtype_, number);
  at::OperandInfo& operand = add(number, rounded.data_ptr(), Extent::single);
  operand.is_const = true;
  if (number.scalar_type() == common_dtype_) return;
  operand.exchange_tensor(c10::MaybeOwned<at::TensorBase>::borrowed(rounded));
  operand.target_dtype = operand.current_dtype = common_dtype_;
}

const at::Tensor& DenseIterator::maybe_get_output(int64_t) { return tensor(0); }

const at::Tensor& wrapped_number(const at::Scalar& number) {
  const auto make = [](at::ScalarType dtype) {
    const HostMemoryScope host_memory;
    at::Tensor wrapped(at::detail::empty_cpu({}, dtype));
    wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
    return wrapped;
  };
  thread_local const at::Tensor real = make(at::kDouble);
  thread_local const at::Tensor integer = make(at::kLong);
  if (number.isIntegral(/*includeBool=*/false)) {
    *integer.mutable_data_ptr<int64_t>() = number.toLong();
    return integer;
  }
  *real.mutable_data_ptr<double>() = number.toDouble();
  return real;
}

// The shape of the result is that of the operand with most dimensions; joins() then refuses
// whatever broadcasts in another way.
void DenseCall::find_shape() {
  for (std::size_t i = 0; i < count_; ++i) {
    if (!operands_[i]->is_privateuseone()) continue;
    const c10::TensorImpl* impl = operands_[i]->unsafeGetTensorImpl();
    if (shape_ == nullptr || impl->dim() > shape_->dim()) shape_ = impl;
  }
}

// A row is (n), a column (.., m, 1) beside (.., m, n); dimensions of size 1 would iterate
// otherwise.
bool extent_of(const c10::TensorImpl& impl, const c10::TensorImpl& shape, Extent& extent) {
  const c10::IntArrayRef sizes = impl.sizes();
  const c10::IntArrayRef full = shape.sizes();
  if (sizes == full) {
    extent = Extent::full;
    return impl.strides() == shape.strides();
  }
  if (sizes.empty()) {
    extent = Extent::single;
    return true;
  }
  if (full.size() < 2 || full.back() < 2 || shape.numel() == full.back()) return false;
  if (!impl.is_contiguous()) return false;
  if (sizes.size() == 1) {
    extent = Extent::row;
    return sizes[0] == full.back();
  }
  extent = Extent::column;
  return sizes.size() == full.size() && sizes.back() == 1 &&
         sizes.slice(0, sizes.size() - 1) == full.slice(0, full.size() - 1);
}

// Whether operand `index` can be iterated beside the others: a number, the mask, or a tensor of the
// same device and dtype whose extent is known. Collects what the call needs to know of it.
bool DenseCall::joins(std::size_t index) {
  const at::Tensor& operand = *operands_[index];
  const c10::TensorImpl& impl = *operand.unsafeGetTensorImpl();
  const bool is_mask = has_mask_ && index == 0;
  if (!operand.is_privateuseone()) {
    if (is_mask || !is_number(operand)) return false;
    ++numbers_;
    broadcasts_ = true;
    return true;
  }
  const at::ScalarType dtype = operand.scalar_type();
  if (is_mask) {
    if (dtype != at::kBool) return false;
  } else if (dtype_ == at::ScalarType::Undefined) {
    dtype_ = dtype;
  } else if (dtype != dtype_) {
    if (mixed_ == Mixed::refused) return false;
    promotes_ = true;
  }
  Extent& extent = extents_[index];
  if (C10_UNLIKELY(!within_storage(operand))) return false;  // refused elsewhere, by name
  if (impl.device() != shape_->device() || !extent_of(impl, *shape_, extent)) return false;
  broadcasts_ |= extent != Extent::full;
  by_rows_ |= extent == Extent::row || extent == Extent::column;
  return true;
}

// Row-major without gaps; or any other order without gaps, if the CPU's set-up would keep it: it
// does for operands of one shape, but strides of dimensions of size 1 are its own choice.
bool DenseCall::dense() const {
  const c10::IntArrayRef sizes = shape_->sizes();
  const c10::IntArrayRef strides = shape_->strides();
  int64_t expected = 1;
  bool row_major = true;
  bool has_ones = false;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    row_major &= strides[d] == expected;
    has_ones |= sizes[d] == 1;
    expected *= sizes[d];
  }
  return row_major || (!broadcasts_ && !has_ones && shape_->is_non_overlapping_and_dense());
}

// Two tensors of one shape: dimensions and numbers would have a say in the common dtype. Booleans
// where the loop takes them only, for core has checks of its own (a difference). No reduced
// precision: the loops that convert it want an iterator of core's own making.
bool DenseCall::promote() {
  if (count_ != 2 || broadcasts_ || shape_->dim() == 0) return false;
  const at::ScalarType one = operands_[0]->scalar_type();
  const at::ScalarType other = operands_[1]->scalar_type();
  constexpr Dtypes plain = dtype_set(at::kFloat) | dtype_set(at::kDouble) | kInts;
  const Dtypes known = plain | (accepted_ & kBool);
  if ((known & dtype_set(one)) == 0 || (known & dtype_set(other)) == 0) return false;
  dtype_ = c10::promoteTypes(one, other);
  return in_place_ == nullptr || in_place_->scalar_type() == dtype_;
}

bool DenseCall::takes(const at::Tensor* in_place) {
  if (refused_ || !fast_routes() || strict_align() != StrictAlign::off) return false;
  in_place_ = in_place;
  find_shape();
  if (shape_ == nullptr || shape_->numel() == 0) return false;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!joins(i)) return false;
  }
  if (dtype_ == at::ScalarType::Undefined || !dense()) return false;
  if (promotes_ && !promote()) return false;
  if ((accepted_ & dtype_set(dtype_)) == 0) return false;
  if (numbers_ > 0) {
    // A number of a higher category (a float beside integers) would change the result's dtype, and
    // two numbers have a dtype of their own first.
    const bool floating = at::isFloatingType(dtype_);
    if (numbers_ > 1 || (!floating && dtype_ != at::kLong)) return false;
    for (std::size_t i = 0; i < count_; ++i) {
      const at::Tensor& operand = *operands_[i];
      if (operand.is_cpu() && !floating && operand.scalar_type() != at::kLong) return false;
    }
  }
  if (in_place == nullptr) return true;
  for (std::size_t i = 0; i < count_; ++i) {
    const at::Tensor& operand = *operands_[i];
    if (operand.is_same(*in_place) || operand.is_cpu()) continue;
    // Operands that share memory in part are refused elsewhere.
    if (operand.is_alias_of(*in_place)) return false;
  }
  return in_place->is_privateuseone() && in_place->sizes() == shape_->sizes();
}

npusim::Cost DenseCall::cost(bool bool_result) const {
  std::array<const at::TensorBase*, 4> operands{};
  std::copy(operands_.begin(), operands_.begin() + count_, operands.begin());
  npusim::Cost cost = elementwise_cost({operands.data(), count_});
  if (overwrites_) return cost;
  const std::size_t item_bytes = bool_result ? 1 : c10::elementSize(dtype_);
  cost.bytes += static_cast<double>(shape_->numel()) * static_cast<double>(item_bytes);
  return cost;
}

at::Tensor DenseCall::output(bool bool_result) const {
  if (in_place_ != nullptr) return *in_place_;
  return device_empty_strided(shape_->sizes(), shape_->strides(), bool_result ? at::kBool : dtype_,
                              shape_->device().index());
}

at::Tensor DenseCall::in_common_dtype(const at::Tensor& operand) const {
  at::Tensor converted =
      device_empty_strided(shape_->sizes(), shape_->strides(), dtype_, shape_->device().index());
  DenseIterator iter(*shape_, dtype_, /*by_rows=*/false);
  iter.add_output(converted);
  iter.add_input(operand, Extent::full);
  if (C10_UNLIKELY(npusim::dry())) return converted;
  at::TensorIterator derived(iter);
  at::native::copy_stub(c10::kCPU, derived, /*non_blocking=*/false);
  return converted;
}

std::array<at::Tensor, 2> DenseCall::set_up(DenseIterator& iter, const at::Tensor& out) const {
  note_route(Route::dense);
  std::array<at::Tensor, 2> converted;
  iter.add_output(out);
  for (std::size_t i = 0; i < count_; ++i) {
    const at::Tensor& operand = *operands_[i];
    if (operand.is_cpu()) {
      iter.add_number(operand);
    } else if (C10_UNLIKELY(promotes_ && operand.scalar_type() != dtype_)) {
      if (as_cuda()) {  // CUDA converts element by element
        iter.add_input(operand, Extent::full);
        continue;
      }
      converted[i] = in_common_dtype(operand);
      iter.add_input(converted[i], Extent::full);
    } else {
      iter.add_input(operand, extents_[i]);
    }
  }
  return converted;
}

}  // namespace torch_npusim
