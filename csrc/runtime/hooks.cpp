// SPDX-License-Identifier: BSD-3-Clause
// PrivateUse1 hooks: what torch's core asks of the accelerator as a whole.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "csrc/errors.h"
#include "csrc/runtime/backward_threads.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/generator.h"
#include "csrc/runtime/init.h"
#include "csrc/runtime/pinned_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return npusim::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    keep_backward_caller();  // the engine asks in the thread that calls backward()
    return npusim::initialized() && device >= 0 && device < npusim::device_count();
  }
  void init() const override {
    translated([] { npusim::initialize(); });
  }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(npusim::device_count());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(npusim::current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    translated([&] { npusim::set_device(device); });
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(
        translated([&] { return npusim::exchange_device(device); }));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    if (device < 0) return getCurrentDevice();
    return exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    // CUDA does not look whether the device is there.
    const bool checked = !is_called_cuda() || device < 0;
    return at::make_generator<PhiloxGenerator>(checked ? checked_device(device) : device);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    const int index = npusim::device_of(data);
    TORCH_CHECK(index >= 0, "The pointer ", data, " is not an address of an npusim device");
    return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
  }
  bool isPinnedPtr(const void* data) const override { return npusim::is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_device_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void register_hooks() {
  static auto* hooks = new Hooks;  // core keeps the pointer for the life of the process
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace torch_npusim
