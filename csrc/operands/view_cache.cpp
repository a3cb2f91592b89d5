// SPDX-License-Identifier: BSD-3-Clause
// The tensor objects that a thread keeps for its next host views.
#include "csrc/operands/view_cache.h"

#include <c10/core/InferenceMode.h>

#include <array>
#include <typeinfo>

#include "backend/backend.h"

namespace torch_npusim {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

class ViewImpl final : public c10::TensorImpl {
 public:
  ViewImpl(c10::Storage host, caffe2::TypeMeta dtype)
      : c10::TensorImpl(std::move(host), DispatchKeySet(DispatchKey::CPU), dtype),
        plain_keys_(key_set_) {}

  void show(const c10::TensorImpl& device) {
    if (C10_UNLIKELY(extra_meta_ != nullptr)) extra_meta_ = nullptr;
    copy_generic_tensor_metadata(&device, this);
    device_opt_ = c10::Device(c10::kCPU);
    const DispatchKeySet bits({DispatchKey::Conjugate, DispatchKey::Negative});
    key_set_ = plain_keys_ | (device.key_set() & bits);
  }
  void set_host(c10::Storage host) { storage_ = std::move(host); }
  c10::StorageImpl& host() { return *storage_.unsafeGetStorageImpl(); }

  // reusable() is false if the kernel attached something to the object.
  bool reusable() const {
    return autograd_meta() == nullptr && pyobj_slot()->load_pyobj() == nullptr &&
           allow_tensor_metadata_change();
  }

  bool owns_host = false;  // a fresh view: its storage is its own and stays with it

 private:
  DispatchKeySet plain_keys_;
};

struct Shelf {
  std::array<ViewImpl*, 16> views;
  std::size_t count;

  ViewImpl* take() { return count > 0 ? views[--count] : nullptr; }
};

// Of static duration without a constructor or destructor, so that finding it costs one look-up.
enum class Shelves : std::uint8_t { unused, open, closed };
struct Kept {
  Shelf views;
  Shelf fresh;
  Shelves state;
};
constinit thread_local Kept t_kept{};

// Closes the shelves when the thread leaves; tensors may still be freed after that.
struct Closing {
  Closing() { t_kept.state = Shelves::open; }
  ~Closing() {
    t_kept.state = Shelves::closed;
    for (Shelf* shelf : {&t_kept.views, &t_kept.fresh}) {
      while (ViewImpl* view = shelf->take()) c10::intrusive_ptr<ViewImpl>::reclaim(view);
    }
  }
};

bool open_shelves(Kept& kept) {
  if (C10_UNLIKELY(kept.state == Shelves::unused)) {
    thread_local const Closing closing;
    static_cast<void>(closing);
  }
  return kept.state == Shelves::open;
}

at::Tensor as_tensor(ViewImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(impl));
}

// Inference mode decides about a tensor's keys when it is made. A view is an ordinary tensor in
// every mode: kernels run below autograd, where the two kinds are alike.
ViewImpl* make_view(c10::Storage host, caffe2::TypeMeta dtype) {
  const c10::InferenceMode ordinary(false);
  return c10::make_intrusive<ViewImpl>(std::move(host), dtype).release();
}

ViewImpl* make_fresh_view(caffe2::TypeMeta dtype) {
  auto host = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(0),
      c10::DataPtr(nullptr, c10::Device(c10::kCPU)), /*allocator=*/nullptr, /*resizable=*/false);
  ViewImpl* impl = make_view(c10::Storage(std::move(host)), dtype);
  impl->owns_host = true;
  return impl;
}

}  // namespace

at::Tensor take_view(const c10::TensorImpl& device, c10::StorageImpl* host) {
  c10::Storage storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(host));
  ViewImpl* impl = t_kept.views.take();
  if (impl == nullptr) impl = make_view(storage, device.dtype());
  impl->show(device);
  impl->set_host(std::move(storage));
  return as_tensor(impl);
}

at::Tensor shape_view(const c10::TensorImpl& tensor, c10::Storage shared) {
  if (!shared) {
    const c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
    shared = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.sym_nbytes(),
        c10::DataPtr(nullptr, c10::Device(c10::kMeta)), c10::GetAllocator(c10::kMeta),
        /*resizable=*/true));
  }
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(shared), DispatchKeySet(DispatchKey::Meta), tensor.dtype());
  c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
  impl.set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl._set_conj(true);
  if (tensor.is_neg()) impl._set_neg(true);
  if (tensor.is_wrapped_number()) impl.set_wrapped_number(true);
  return view;
}

at::Tensor take_fresh_view(const c10::TensorImpl& device) {
  if (C10_UNLIKELY(npusim::dry())) return shape_view(device);
  const c10::StorageImpl& storage = *device.unsafe_storage().unsafeGetStorageImpl();
  auto* data = const_cast<void*>(storage.data());
  ViewImpl* impl = t_kept.fresh.take();
  if (impl == nullptr) impl = make_fresh_view(device.dtype());
  impl->show(device);
  void* host = npusim::is_device_address(data) ? npusim::kernel_alias(data) : data;
  impl->host().set_data_ptr_noswap(c10::DataPtr(host, c10::Device(c10::kCPU)));
  impl->host().unsafe_set_nbytes(storage.nbytes());
  return as_tensor(impl);
}

void give_view(at::Tensor&& view) noexcept {
  at::Tensor taken = std::move(view);
  c10::TensorImpl* impl = taken.unsafeGetTensorImpl();
  if (typeid(*impl) != typeid(ViewImpl) || taken.use_count() != 1 || taken.weak_use_count() != 1) {
    return;
  }
  Kept& kept = t_kept;
  auto* ours = static_cast<ViewImpl*>(impl);
  Shelf& shelf = ours->owns_host ? kept.fresh : kept.views;
  if (shelf.count == shelf.views.size() || !ours->reusable() || !open_shelves(kept)) return;
  if (ours->owns_host) {
    const c10::Storage& storage = ours->unsafe_storage();
    if (storage.use_count() != 1 || storage.unsafeGetStorageImpl()->resizable()) return;
  } else {
    ours->set_host(c10::Storage());
  }
  taken.unsafeReleaseTensorImpl();
  shelf.views[shelf.count++] = ours;
}

}  // namespace torch_npusim
