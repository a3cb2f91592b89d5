// SPDX-License-Identifier: BSD-3-Clause
// The device guard: how torch's C++ core switches devices and streams, and uses events.
// Invariant: functions that c10 declares noexcept never reach a throw.
#include <c10/core/DeviceCapability.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "csrc/errors.h"
#include "csrc/runtime/backward_threads.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/gpu_trace.h"
#include "csrc/runtime/graph.h"
#include "csrc/runtime/host_sync.h"

namespace torch_npusim {

namespace {

c10::Device device_at(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

npusim::Event& backend_event(void* event) {
  TORCH_CHECK(event != nullptr, "npusim: the event has not been recorded; call record() first");
  return *static_cast<npusim::Event*>(event);
}

using Listener = c10::impl::PyInterpreterVTable;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(translated([&] { return npusim::exchange_device(device.index()); }));
  }
  c10::Device getDevice() const override { return device_at(npusim::current_device()); }
  void setDevice(c10::Device device) const override {
    translated([&] { npusim::set_device(device.index()); });
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    npusim::unchecked_set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(npusim::device_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    return torch_stream(npusim::current_stream(checked_device(device.index())));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    const c10::DeviceIndex index = checked_device(device.index());
    return torch_stream(translated([&]() -> auto& { return npusim::default_stream(index); }));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? npusim::kHighestPriority : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const c10::DeviceIndex index = checked_device(device.index());
    const c10::Stream stream =
        torch_stream(translated([&]() -> auto& { return npusim::next_stream(index, priority); }));
    trace_new_stream(index);
    return stream;
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    follow_backward_caller();  // the engine enters every node so
    npusim::Stream& next = backend_stream(stream);
    const c10::Stream previous = torch_stream(npusim::current_stream(next.device()));
    npusim::set_current_stream(next);
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &backend_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return translated([&] { return backend_stream(stream).query(); });
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return Graph::captures(backend_stream(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    before_hidden_wait("Stream.synchronize");  // as on CUDA, which does not report the other two
    translated([&] { backend_stream(stream).synchronize(); });
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const c10::DeviceIndex index = checked_device(device);
    before_explicit_wait("synchronize");
    trace(&Listener::trace_gpu_device_synchronization);
    translated([&] { npusim::synchronize_device(index); });
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) trace(&Listener::trace_gpu_event_deletion, handle_of(event));
    delete static_cast<npusim::Event*>(event);  // made in record(), owned through c10's void*
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    npusim::Stream& on = backend_stream(stream);
    TORCH_CHECK(device_index == -1 || device_index == on.device(), "Event device index ",
                static_cast<int>(device_index), " does not match recording stream's device index ",
                on.device());
    if (*event == nullptr) {
      *event = translated(
          [&] { return new npusim::Event(on.device(), flag == c10::EventFlag::BACKEND_DEFAULT); });
      trace(&Listener::trace_gpu_event_creation, handle_of(*event));
    }
    translated([&] { static_cast<npusim::Event*>(*event)->record(on); });
    trace(&Listener::trace_gpu_event_record, handle_of(*event), handle_of(on));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;  // never recorded: nothing to wait for, as on CUDA
    npusim::Stream& waiting = backend_stream(stream);
    translated([&] { static_cast<npusim::Event*>(event)->block(waiting); });
    trace(&Listener::trace_gpu_event_wait, handle_of(event), handle_of(waiting));
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    return translated([&] { return static_cast<npusim::Event*>(event)->query(); });
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    before_explicit_wait("Event.synchronize");
    trace(&Listener::trace_gpu_event_synchronization, handle_of(event));
    translated([&] { static_cast<npusim::Event*>(event)->synchronize(); });
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return translated([&] { return backend_event(start).elapsed_ms(backend_event(end)); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

  // Every scalar type that torch lists; CUDA's guard has none to give.
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    if (is_called_cuda()) return DeviceGuardImplInterface::getDeviceCapability(device);
    return {};
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

}  // namespace torch_npusim
