// SPDX-License-Identifier: BSD-3-Clause
// The hooks by which torch knows a device: its guard, with streams and events, and PrivateUse1's.
#include "runtime.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <algorithm>
#include <atomic>

namespace mychip {
namespace {

thread_local c10::DeviceIndex current = 0;
thread_local int streams[kDevicesMax];  // the current one of each device

c10::Stream stream_of(c10::DeviceIndex device, int stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, device), stream);
}

int number(const c10::Stream& stream) { return static_cast<int>(stream.id()); }

mychip_event* event_of(void* event) {
  TORCH_CHECK(event != nullptr, "mychip: the event was never recorded");
  return static_cast<mychip_event*>(event);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current}; }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kPrivateUse1, exchange_device(device.index())};
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability all;  // but for quantized ones
#define WITHOUT(type, name) all.capability_data.supported_scalar_types.has_##name = 0;
    AT_FORALL_QINT_TYPES(WITHOUT)
#undef WITHOUT
    return all;
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    for (int stream = 0; stream < MYCHIP_STREAMS; ++stream) {
      check(mychip_synchronize(device, stream));
    }
  }

  // Stream 0 is the default; torch.Stream() gives the others in turn.
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index(device), 0);
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index(device), streams[index(device)]);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    static std::atomic<unsigned> next;
    return stream_of(index(device), 1 + static_cast<int>(next++ % (MYCHIP_STREAMS - 1)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_urgent) const override {
    return getNewStream(device, is_urgent ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    streams[stream.device_index()] = number(stream);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());  // what the driver calls it
  }
  bool queryStream(const c10::Stream& stream) const override {
    int is_idle = 0;
    check(mychip_is_idle(stream.device_index(), number(stream), &is_idle));
    return is_idle != 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check(mychip_synchronize(stream.device_index(), number(stream)));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "mychip: an event of device ",
                static_cast<int>(device), " in a stream of ", stream.device());
    check(mychip_event_record(stream.device_index(), number(stream),
                              reinterpret_cast<mychip_event**>(event)));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;  // never recorded: nothing to wait for
    check(mychip_event_wait(stream.device_index(), number(stream), event_of(event)));
  }
  bool queryEvent(void* event) const override {
    int is_done = 1;
    if (event != nullptr) check(mychip_event_is_done(event_of(event), &is_done));
    return is_done != 0;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) check(mychip_event_synchronize(event_of(event)));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    double from = 0.0, to = 0.0;
    check(mychip_event_milliseconds(event_of(start), &from));
    check(mychip_event_milliseconds(event_of(end), &to));
    return to - from;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) mychip_event_free(static_cast<mychip_event*>(event));
  }

 private:
  static c10::DeviceIndex index(c10::Device device) {
    if (!device.has_index()) return current;
    TORCH_CHECK(device.index() < device_count(), "mychip: no device ", device);
    return device.index();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchange_device(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    grow(storage, bytes);
  }
};
[[maybe_unused]] const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // lives as long as the process
  return true;
}();

}  // namespace

void check(mychip_status status) {
  TORCH_CHECK_WITH(OutOfMemoryError, status != MYCHIP_OUT_OF_MEMORY, "mychip: out of memory");
  TORCH_CHECK(status == MYCHIP_OK, "mychip: ", mychip_status_text(status));
}

void check_process() {
  TORCH_CHECK(!is_in_bad_fork(), "mychip cannot be used in a forked child of a process that used ",
              "it; start children with multiprocessing's method 'spawn'");
  torch::utils::register_fork_handler_for_device_init(c10::kPrivateUse1);
}

bool is_in_bad_fork() { return torch::utils::is_device_in_bad_fork(c10::kPrivateUse1); }

c10::DeviceIndex device_count() {
  static const c10::DeviceIndex count = [] {
    int found = 0;
    check(mychip_device_count(&found));
    return static_cast<c10::DeviceIndex>(std::min<int>(found, kDevicesMax));
  }();
  return count;
}

c10::DeviceIndex current_device() { return current; }

void set_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "mychip: no device ",
              static_cast<int>(device), "; there are ", static_cast<int>(device_count()));
  current = device;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  const c10::DeviceIndex before = current;
  set_device(device);
  return before;
}

int current_stream(c10::DeviceIndex device) {
  check_process();
  return streams[device];
}

}  // namespace mychip
