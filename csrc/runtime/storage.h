// SPDX-License-Identifier: BSD-3-Clause
// DeviceStorage: the storage of every tensor that this backend makes.
//
//   device tensor ---> DeviceStorage [ 0x7f00'2000 .. )   PROT_NONE view, owns the block
//                           | twin()
//   host view -------> StorageImpl   [ 0x7e00'2000 .. )   read-write view of the same bytes
//
// Both storages name the same bytes by two addresses (backend/memory.h). The twin exists so that
// all host views of one device storage share ONE CPU storage: a CPU kernel that asks whether two
// operands alias, or that resizes one of two, gets the answer that the device tensors would give.
// Invariant: the twin never owns the block, except inside a call whose kernel resized it: then the
// twin holds the new block until CpuCall::write_back() moves it into this storage.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>
#include <typeinfo>

namespace torch_npusim {

struct KnownBytes;  // of a dry run (known_values.h)
struct KnownBytesDeleter {
  void operator()(KnownBytes* known) const noexcept;
};

class DeviceStorage final : public c10::StorageImpl {
 public:
  using c10::StorageImpl::StorageImpl;
  ~DeviceStorage() override;

  // twin() returns the CPU storage over the same bytes, made on first use and kept. Thread-safe.
  // The pointer lives as long as this storage.
  c10::StorageImpl* twin();

  // adopt_twin() installs a CPU storage that already aliases this storage's block. Call it once,
  // before the storage is visible to other threads.
  void adopt_twin(c10::intrusive_ptr<c10::StorageImpl> twin);

  // existing_twin() returns the twin as the last kernel left it, or nullptr if none was made.
  c10::StorageImpl* existing_twin() const noexcept { return twin_.load(std::memory_order_acquire); }

  void release_resources() override;

  std::atomic<KnownBytes*> known{nullptr};  // owned; known_values.cpp guards it

 private:
  void drop_twin() noexcept;

  std::atomic<c10::StorageImpl*> twin_{nullptr};
};

// as_device_storage() returns nullptr for storages that others made (from_blob, DLPack imports).
inline DeviceStorage* as_device_storage(c10::StorageImpl* storage) noexcept {
  return typeid(*storage) == typeid(DeviceStorage) ? static_cast<DeviceStorage*>(storage) : nullptr;
}

// point_twin() makes twin a non-owning alias of storage's current bytes.
void point_twin(c10::StorageImpl& twin, const c10::StorageImpl& storage);

// make_device_storage() allocates bytes on the device, on its current stream of this thread.
c10::intrusive_ptr<c10::StorageImpl> make_device_storage(std::size_t bytes,
                                                         c10::DeviceIndex device);

// resize_device_storage() keeps the first min(old, new) bytes (the hook behind storage.resize_()).
void resize_device_storage(c10::StorageImpl& storage, std::size_t bytes);

// within_storage() is false for a tensor whose elements end beyond its storage, as after
// storage.resize_(0), and for one of a dry run outside of that run, or one of another in a dry run.
// Nothing is looked at until a storage has lost bytes, or a dry run has begun.
namespace detail {
extern std::atomic<bool> g_storages_differ;
bool ends_within_storage(const at::TensorBase& tensor);
}  // namespace detail
inline bool within_storage(const at::TensorBase& tensor) {
  return C10_LIKELY(!detail::g_storages_differ.load(std::memory_order_relaxed)) ||
         detail::ends_within_storage(tensor);
}

// check_within_storage() raises RuntimeError, which says why, for such an operand of `op`.
void check_within_storage(const char* op, const at::TensorBase& tensor);

// lazy_clone_of() is a storage that shares the bytes of `storage` until either is written to.
// mutable_data() makes the copy: CpuCall calls it for written operands.
c10::intrusive_ptr<c10::StorageImpl> lazy_clone_of(c10::StorageImpl& storage);

// register_storage_type() makes torch's own storage factories create DeviceStorage.
void register_storage_type();

}  // namespace torch_npusim
