// SPDX-License-Identifier: BSD-3-Clause
// torch_mychip._C: what the Python side of the backend asks of this one.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "runtime.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("device_count", [] { return static_cast<int>(mychip::device_count()); });
  m.def("current_device", [] { return static_cast<int>(mychip::current_device()); });
  m.def("set_device",
        [](int device) { mychip::set_device(static_cast<c10::DeviceIndex>(device)); });
  m.def("synchronize", [](int device) { mychip::check(mychip_synchronize(device)); });
  m.def("device_name", [](int device) {
    const char* name = "";
    mychip::check(mychip_device_name(device, &name));
    return std::string(name);
  });
  m.def("memory_info", [](int device) {
    std::size_t free_bytes = 0, total_bytes = 0;
    mychip::check(mychip_memory_info(device, &free_bytes, &total_bytes));
    return std::make_pair(free_bytes, total_bytes);
  });
  m.def("allocated_bytes",
        [](int device) { return mychip::allocated_bytes(static_cast<c10::DeviceIndex>(device)); });
  m.def("generator_state", [](int device) {
    const mychip::Draw state = mychip::generator_state(static_cast<c10::DeviceIndex>(device));
    return std::make_pair(state.seed, state.offset);
  });
  m.def("set_generator_state", [](int device, std::uint64_t seed, std::uint64_t offset) {
    mychip::set_generator_state(static_cast<c10::DeviceIndex>(device), {seed, offset});
  });
  m.def("fallback_counts", &mychip::fallback_counts);
}
