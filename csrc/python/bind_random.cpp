// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the devices' generators.
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/python/bindings.h"
#include "csrc/runtime/generator.h"

namespace torch_npusim {

void bind_random(pybind11::module& m) {
  m.def("default_generator",
        [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });
}

}  // namespace torch_npusim
