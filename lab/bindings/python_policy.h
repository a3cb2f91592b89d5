// SPDX-License-Identifier: BSD-3-Clause
// A policy written in Python, spoken to through pybind11. Every call is made with Python's lock
// held.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/placement/policies.h"
#include "lab/engine/names.h"

namespace npusim::lab {

// The device as a policy in Python holds it, which may be longer than the run lasts.
class __attribute__((visibility("hidden"))) PolicyDevice {
 public:
  explicit PolicyDevice(PlacementDevice& device) : device_(&device) {}
  void end() { device_ = nullptr; }

  PlacementDevice& get() const {
    if (!device_) throw std::runtime_error("the run that this device belongs to has ended");
    return *device_;
  }

  std::optional<Address> acquire(std::size_t bytes) {
    if (bytes == 0) throw pybind11::value_error("acquire of 0 bytes; expected more");
    const SegmentResult result = get().acquire_segment(bytes);
    if (result.status != SegmentResult::Status::ok) return std::nullopt;
    return result.address;
  }

  void release(Address address) { release_lent(get(), address); }

 private:
  PlacementDevice* device_;
};

// Each module has a type of its own: both may be in one process.
inline void bind_policy_device(pybind11::module_& m, const char* name) {
  namespace py = pybind11;
  py::class_<PolicyDevice, std::shared_ptr<PolicyDevice>>(m, name, py::module_local())
      .def("acquire", &PolicyDevice::acquire, py::arg("bytes"))
      .def("release", &PolicyDevice::release, py::arg("address"))
      .def(
          "stitch",
          [](const PolicyDevice& self, const std::vector<PlacementDevice::Piece>& pieces) {
            return self.get().stitch(pieces);
          },
          py::arg("pieces"))
      .def(
          "unstitch",
          [](const PolicyDevice& self, Address address) { self.get().unstitch(address); },
          py::arg("address"))
      .def_property_readonly("free_bytes",
                             [](const PolicyDevice& self) {
                               return self.get().capacity_bytes() - self.get().reserved_bytes();
                             })
      .def_property_readonly("capacity_bytes",
                             [](const PolicyDevice& self) { return self.get().capacity_bytes(); });
}

// What a policy does wrong is an InvalidArgument of one sentence: which method of which policy, at
// which event, and where its own code raised. The methods are those of Policy in _lab.pyi.
class __attribute__((visibility("hidden"))) PythonPolicy final : public PlacementPolicy {
 public:
  PythonPolicy(pybind11::object policy, std::string name, PlacementDevice& device)
      : device_(device), lent_(std::make_shared<PolicyDevice>(device)), name_(std::move(name)) {
    for (const char* method : {"attach", "malloc", "free"}) {
      if (pybind11::hasattr(policy, method)) continue;
      throw InvalidArgument(
          "policy " + name_ + " has no method " + method +
          "; expected attach(device), malloc(bytes, stream) and free(address, bytes, stream)");
    }
    malloc_ = policy.attr("malloc");
    free_ = policy.attr("free");
    if (pybind11::hasattr(policy, "empty_cache")) empty_cache_ = policy.attr("empty_cache");
    call("attach", policy.attr("attach"), lent_);
  }
  ~PythonPolicy() override { lent_->end(); }
  PythonPolicy(const PythonPolicy&) = delete;
  PythonPolicy& operator=(const PythonPolicy&) = delete;

  Placement malloc(const PlacementRequest& request) override {
    const pybind11::object answer = call("malloc", malloc_, request.bytes, request.stream);
    if (answer.is_none()) return {};
    if (PyIndex_Check(answer.ptr()) != 0) {
      const Address address = PyLong_AsUnsignedLongLong(pybind11::int_(answer).ptr());
      if (!PyErr_Occurred() && address != 0) return {address, request.bytes};
      PyErr_Clear();
    }
    throw InvalidArgument("policy " + name_ + ": " + device_.when() + "malloc returned " +
                          pybind11::repr(answer).cast<std::string>().substr(0, 100) +
                          "; expected an address or None");
  }
  void free(const Placement& placement, const PlacementRequest& request) override {
    call("free", free_, placement.address, request.bytes, request.stream);
  }
  void empty_cache() override {
    if (empty_cache_) call("empty_cache", empty_cache_);
  }

 private:
  template <class... Arguments>
  pybind11::object call(const char* method, const pybind11::object& callable,
                        const Arguments&... arguments) {
    try {
      return callable(arguments...);
    } catch (pybind11::error_already_set& error) {
      const std::string where = "policy " + name_ + ": " + device_.when() + method;
      if (error.matches(PyExc_KeyboardInterrupt)) {  // of the user: it goes on, with a note
        error.value().attr("add_note")("in " + where + place_of(error));
        throw;
      }
      throw InvalidArgument(where + " raised " + text(error.type().attr("__name__")) + ": " +
                            text(error.value()) + place_of(error));
    }
  }

  static std::string text(const pybind11::handle& value) {
    return pybind11::str(value).cast<std::string>();
  }

  // " (mine.py:12)"
  static std::string place_of(const pybind11::error_already_set& error) {
    pybind11::object place = error.trace() ? error.trace() : pybind11::none();
    while (!place.is_none() && !place.attr("tb_next").is_none()) place = place.attr("tb_next");
    if (place.is_none()) return "";
    const pybind11::object code = place.attr("tb_frame").attr("f_code");
    return " (" + text(code.attr("co_filename")) + ":" + text(place.attr("tb_lineno")) + ")";
  }

  PlacementDevice& device_;
  std::shared_ptr<PolicyDevice> lent_;
  const std::string name_;
  pybind11::object malloc_, free_, empty_cache_;
};

}  // namespace npusim::lab
