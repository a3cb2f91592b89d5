// SPDX-License-Identifier: BSD-3-Clause
// Binding of what torch_npusim.cuda_alias needs below Python.
#include "csrc/python/bindings.h"
#include "csrc/runtime/cuda_names.h"

namespace torch_npusim {

void bind_cuda_names(pybind11::module& m) {
  m.def("call_npusim_cuda", &call_npusim_cuda, pybind11::arg("on"));
}

}  // namespace torch_npusim
