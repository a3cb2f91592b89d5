// SPDX-License-Identifier: BSD-3-Clause
// torch_mychip._C: what the Python side of the backend asks of this one.
#include <torch/csrc/utils/pybind.h>

#include "runtime.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("device_count", [] { return static_cast<int>(mychip::device_count()); });
  m.def("current_device", [] { return static_cast<int>(mychip::current_device()); });
  m.def("set_device",
        [](int device) { mychip::set_device(static_cast<c10::DeviceIndex>(device)); });
  m.def("device_name", [](int device) {
    const char* name = "";
    mychip::check(mychip_device_name(device, &name));
    return std::string(name);
  });
  m.def("default_generator", [](int device) {
    return mychip::default_generator(static_cast<c10::DeviceIndex>(device));
  });
  m.def("is_in_bad_fork", &mychip::is_in_bad_fork);
  m.def("fallback_counts", &mychip::fallback_counts);
}
