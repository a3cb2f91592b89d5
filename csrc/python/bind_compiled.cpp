// SPDX-License-Identifier: BSD-3-Clause
// Functions that Inductor's code calls for every buffer: without torch's parser of arguments and
// without the dispatcher, as its own for CPU and CUDA (torch._C._dynamo.guards._empty_strided_cpu).
#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_numbers.h>

#include "csrc/operands/device_empty.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/graph.h"

namespace torch_npusim {

namespace {

using Numbers = c10::SmallVector<std::int64_t, 8>;

Numbers numbers_of(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), "empty_strided: sizes and strides are tuples");
  Numbers numbers;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    numbers.push_back(THPUtils_unpackLong(PyTuple_GET_ITEM(tuple, i)));
  }
  return numbers;
}

// empty_strided(sizes, strides, dtype, device)
PyObject* empty_strided(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 4 && THPDtype_Check(arguments[2]),
                   "empty_strided takes sizes, strides, a dtype and the index of a device");
  const Numbers sizes = numbers_of(arguments[0]);
  const Numbers strides = numbers_of(arguments[1]);
  const at::ScalarType dtype = reinterpret_cast<THPDtype*>(arguments[2])->scalar_type;
  const auto device = static_cast<c10::DeviceIndex>(THPUtils_unpackLong(arguments[3]));
  at::Tensor made;
  {
    const pybind11::gil_scoped_release no_gil;
    const c10::Device on(c10::DeviceType::PrivateUse1, checked_device(device));
    if (Graph::captures(npusim::current_stream(on.index()))) {  // its memory is the capture's
      made = at::empty_strided(sizes, strides, at::TensorOptions(on).dtype(dtype));
    } else {
      made = device_empty_strided(sizes, strides, dtype, on.index());
      fill_if_deterministic(made);
    }
  }
  return THPVariable_Wrap(std::move(made));
  END_HANDLE_TH_ERRORS
}

}  // namespace

void bind_compiled(pybind11::module& m) {
  static PyMethodDef methods[] = {
      {"empty_strided", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&empty_strided)),
       METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw pybind11::error_already_set();
}

}  // namespace torch_npusim
