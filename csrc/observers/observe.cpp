// SPDX-License-Identifier: BSD-3-Clause
// Tensors as operands of observed commands.
#include "csrc/observers/observe.h"

#include <c10/core/ScalarType.h>

#include <string>

#include "csrc/errors.h"
#include "csrc/observers/observed_operand.h"

namespace torch_npusim {

namespace {

// "float32", for the life of the process.
const char* dtype_name(c10::ScalarType dtype) {
  constexpr auto kCount = static_cast<std::size_t>(c10::ScalarType::NumOptions);
  static const auto* names = [] {
    auto* made = new std::array<std::string, kCount>;
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto type = static_cast<c10::ScalarType>(i);
      if (type != c10::ScalarType::Undefined) (*made)[i] = c10::getDtypeNames(type).first;
    }
    return made;
  }();
  return (*names)[static_cast<std::size_t>(dtype)].c_str();
}

const void* storage_of(const c10::TensorImpl& impl) {
  return impl.has_storage() ? impl.unsafe_storage().data() : nullptr;
}

// Nested tensors have no sizes of their own: all their bytes count.
bool is_strided(const c10::TensorImpl& impl) {
  return impl.layout() == at::kStrided && !impl.key_set().has(c10::DispatchKey::NestedTensor) &&
         !impl.is_python_dispatch();
}

}  // namespace

DescribedOperand::DescribedOperand(const c10::TensorImpl& tensor, const void* storage, Use use)
    : empty_(storage == nullptr || tensor.numel() == 0) {
  if (empty_) return;
  const auto start = reinterpret_cast<npusim::Address>(storage);
  const auto bytes = static_cast<int64_t>(tensor.dtype().itemsize());
  operand_.allocation = start;
  operand_.written = use == Use::writes;
  operand_.type = dtype_name(c10::typeMetaToScalarType(tensor.dtype()));
  operand_.element_bytes = static_cast<std::uint32_t>(bytes);
  operand_.first =
      start + static_cast<npusim::Address>(tensor.storage_offset()) * tensor.dtype().itemsize();
  for (const int64_t stride : tensor.strides()) strides_.push_back(stride * bytes);
  operand_.sizes = {tensor.sizes().data(), tensor.sizes().size()};
  operand_.strides = {strides_.data(), strides_.size()};
}

namespace detail {

void note_use(const c10::TensorImpl& tensor, const void* storage, Use use) {
  if (!is_strided(tensor)) {
    if (storage != nullptr) {
      npusim::note_range(storage, tensor.unsafe_storage().nbytes(), use == Use::writes);
    }
    return;
  }
  const DescribedOperand operand(tensor, storage, use);
  if (operand.get() != nullptr) npusim::note_operand(*operand.get());
}

void note_use(const at::TensorBase& tensor, Use use) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.has_storage()) detail::note_use(impl, storage_of(impl), use);
}

}  // namespace detail

CopyOperands::Scope::Scope(const at::TensorBase& to, const at::TensorBase& from)
    : both{DescribedOperand(*from.unsafeGetTensorImpl(), storage_of(*from.unsafeGetTensorImpl()),
                            Use::reads),
           DescribedOperand(*to.unsafeGetTensorImpl(), storage_of(*to.unsafeGetTensorImpl()),
                            Use::writes)} {
  for (const DescribedOperand& operand : both) {
    if (operand.get() != nullptr) operands.add(*operand.get());
  }
}

void note_host_read(const char* what, const at::TensorBase& tensor) {
  if (C10_LIKELY(!npusim::observed())) return;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const DescribedOperand operand(impl, storage_of(impl), Use::reads);
  if (operand.get() == nullptr) return;
  npusim::note_host_access(what, *operand.get());
  translated([] { npusim::settle_host_access(); });
}

}  // namespace torch_npusim
