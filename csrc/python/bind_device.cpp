// SPDX-License-Identifier: BSD-3-Clause
// Bindings of devices and streams.
#include <ATen/Context.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <vector>

#include "backend/registered_memory.h"
#include "backend/visible_devices.h"
#include "csrc/errors.h"
#include "csrc/launch/device_launcher.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/gpu_trace.h"
#include "csrc/runtime/host_sync.h"
#include "csrc/runtime/init.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

int checked(int device) { return checked_device(static_cast<c10::DeviceIndex>(device)); }

py::dict device_properties(int device) {
  const int index = checked(device);
  const npusim::DeviceSpec& spec =
      translated([&]() -> const npusim::DeviceSpec& { return npusim::device_spec(index); });
  py::dict properties;
  properties["name"] = spec.name;
  properties["total_memory"] = spec.memory_bytes;
  properties["major"] = spec.capability_major;
  properties["minor"] = spec.capability_minor;
  properties["multi_processor_count"] = spec.multiprocessor_count;
  py::dict peak_flops;
  peak_flops["float32"] = spec.peak_flops_per_s[static_cast<std::size_t>(npusim::Precision::f32)];
  peak_flops["float64"] = spec.peak_flops_per_s[static_cast<std::size_t>(npusim::Precision::f64)];
  peak_flops["float16"] = spec.peak_flops_per_s[static_cast<std::size_t>(npusim::Precision::f16)];
  peak_flops["int8"] = spec.peak_flops_per_s[static_cast<std::size_t>(npusim::Precision::i8)];
  properties["peak_flops"] = peak_flops;
  properties["memory_bandwidth"] = spec.memory_bytes_per_s;
  properties["host_bandwidth"] = spec.host_bytes_per_s;
  properties["peer_bandwidth"] = spec.peer_bytes_per_s;
  properties["launch_latency_ns"] = spec.launch_latency_ns;
  return properties;
}

// The bindings of kernels that Inductor generates make a RuntimeError of any exception, unless an
// error of Python is set already: here it is, with the type that every other operator raises.
void launch_with_python_errors(const DeviceLauncher& launcher, const DeviceCommand& command,
                               void (*run)(const void*), const void* body, std::size_t bytes) {
  try {
    device_launcher(static_cast<int>(launcher.device))
        .launch_erased(launcher, command, run, body, bytes);
  } catch (python_error& error) {
    error.restore();
    throw;
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
    throw;
  }
}

const DeviceLauncher& launcher_for_python(int device) {
  static const auto* const launchers = [] {
    auto* made = new std::vector<DeviceLauncher>;
    for (int i = 0; i < npusim::device_count(); ++i) {
      made->push_back(device_launcher(i));
      made->back().launch_erased = &launch_with_python_errors;
    }
    return made;
  }();
  return (*launchers)[static_cast<std::size_t>(device)];
}

}  // namespace

void bind_device(py::module& m) {
  m.def("visible_devices", &npusim::visible_devices);
  m.def("register_pinned", [](std::uintptr_t address, std::size_t bytes) {
    at::globalContext().lazyInitDevice(c10::kPrivateUse1);  // before that core asks for no pins
    return translated(
        [&] { return npusim::pinned_register(reinterpret_cast<void*>(address), bytes); });
  });
  m.def("unregister_pinned", [](std::uintptr_t address) {
    return translated([&] { return npusim::pinned_unregister(reinterpret_cast<void*>(address)); });
  });
  m.def("initialize", [] { translated([] { npusim::initialize(); }); });
  m.def("is_initialized", &npusim::initialized);
  m.def("is_in_bad_fork", &npusim::in_bad_fork);
  m.def("device_count", &npusim::device_count);
  m.def("device_launcher", [](int device) {
    return reinterpret_cast<std::intptr_t>(&launcher_for_python(checked(device)));
  });
  m.def("current_device", [] {
    translated([] { npusim::check_not_forked(); });
    return npusim::current_device();
  });
  m.def("set_device", [](int device) { translated([&] { npusim::set_device(device); }); });
  m.def("exchange_device",
        [](int device) { return translated([&] { return npusim::exchange_device(device); }); });
  m.def("maybe_exchange_device", [](int device) {
    if (device < 0) return npusim::current_device();
    return translated([&] { return npusim::exchange_device(device); });
  });
  m.def(
      "synchronize",
      [](int device) {
        const int index = checked(device);
        before_explicit_wait("synchronize");
        trace(&c10::impl::PyInterpreterVTable::trace_gpu_device_synchronization);
        translated([&] { npusim::synchronize_device(index); });
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("device_properties", &device_properties);
  m.def("drain_engine_threads", &drain_engine_threads, py::call_guard<py::gil_scoped_release>());

  m.def("stream_handle", &stream_handle);
  m.def("stream_of_handle", &stream_of_handle);
  m.def("current_stream", [](int device) { return npusim::current_stream(checked(device)).id(); });
  m.def("default_stream", [](int device) {
    const int index = checked(device);
    return translated([&] { return npusim::default_stream(index).id(); });
  });
  m.def("set_stream", [](int device, npusim::StreamId id) {
    const int index = checked(device);
    translated([&] { npusim::set_current_stream(npusim::stream_from_id(index, id)); });
  });
  m.def("priority_range", [] { return std::make_pair(0, npusim::kHighestPriority); });
}

}  // namespace torch_npusim
