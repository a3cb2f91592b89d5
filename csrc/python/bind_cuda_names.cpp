// SPDX-License-Identifier: BSD-3-Clause
// Binding of what torch_npusim.cuda_alias needs below Python.
#include <torch/csrc/Event.h>

#include "csrc/aten/cuda_attention_choice.h"
#include "csrc/cuda_rules/judged_capability.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/out_of_memory_observers.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

// torch.Event is a type that Python does not let programs extend.
void set_event_attribute(const std::string& name, const py::object& value) {
  PyObject* attributes = THPEventType.tp_dict;
  const int failed = value.is_none() ? PyDict_DelItemString(attributes, name.c_str())
                                     : PyDict_SetItemString(attributes, name.c_str(), value.ptr());
  PyType_Modified(&THPEventType);
  if (failed != 0) throw py::error_already_set();
}

py::function& event_repr() {
  static auto* kept = new py::function;
  return *kept;
}

// torch's own again without a function.
void set_event_repr(const py::object& describe) {
  static const reprfunc kOwn = THPEventType.tp_repr;
  static const py::handle kOwnMember =
      py::handle(PyDict_GetItemString(THPEventType.tp_dict, "__repr__")).inc_ref();
  THPEventType.tp_repr = kOwn;
  set_event_attribute(
      "__repr__", describe.is_none() ? py::reinterpret_borrow<py::object>(kOwnMember) : describe);
  if (describe.is_none()) return;
  event_repr() = describe.cast<py::function>();
  THPEventType.tp_repr = [](PyObject* event) -> PyObject* {
    return PyObject_CallOneArg(event_repr().ptr(), event);
  };
}

// Numbers are those of CUDA's observers: device, bytes of the segment, allowed and free bytes.
void attach_observer(const py::function& observer) {
  const py::handle kept = observer.inc_ref();
  attach_out_of_memory_observer(
      [kept](const npusim::alloc::OutOfMemoryReport& report, c10::DeviceIndex device) {
        const py::gil_scoped_acquire gil;
        const std::size_t allowed = report.allowed_bytes.value_or(report.total_bytes);
        kept(static_cast<int>(device), report.segment_bytes, allowed, report.free_bytes);
      });
}

// `params` is a torch.backends.cuda.SDPAParams.
bool can_use_attention(int backend, const py::object& params, bool debug) {
  const auto is_set = [&](const char* name) { return params.attr(name).cast<bool>(); };
  const auto tensor = [&](const char* name) { return params.attr(name).cast<at::Tensor>(); };
  std::optional<at::Tensor> mask;
  if (!params.attr("attn_mask").is_none()) mask = tensor("attn_mask");
  return can_take(
      static_cast<at::SDPBackend>(backend),
      {tensor("query"), tensor("key"), tensor("value"), mask, params.attr("dropout").cast<double>(),
       is_set("is_causal"), is_set("enable_gqa")},
      judged_capability(), debug);
}

}  // namespace

void bind_cuda_names(py::module& m) {
  m.def("call_npusim_cuda", &call_npusim_cuda, py::arg("on"));
  m.def("set_judged_capability", &set_judged_capability);
  m.def("can_use_attention", &can_use_attention);
  m.def("set_event_attribute", &set_event_attribute);
  m.def("set_event_repr", &set_event_repr);
  m.def("attach_out_of_memory_observer", &attach_observer);
}

}  // namespace torch_npusim
