// SPDX-License-Identifier: BSD-3-Clause
// A policy written in Python behind the live device. Python's lock is taken before the allocator's,
// and one thread only may ask for memory: others could hold a lock of torch that the first one,
// inside the policy, waits for.
#include "lab/bindings/python_policy.h"

#include <thread>

#include "csrc/python/bindings.h"
#include "csrc/runtime/allocator_config.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

using npusim::alloc::InvalidArgument;
using npusim::alloc::Placement;
using npusim::alloc::PlacementDevice;
using npusim::alloc::PlacementPolicy;
using npusim::alloc::PlacementRequest;

thread_local bool t_is_inside = false;

class PythonGate final : public npusim::alloc::PolicyGate {
 public:
  int enter() override { return Py_IsInitialized() != 0 ? PyGILState_Ensure() : kNone; }
  void leave(int token) noexcept override {
    if (token != kNone) PyGILState_Release(static_cast<PyGILState_STATE>(token));
  }
  bool is_inside() const noexcept override { return t_is_inside; }

 private:
  static constexpr int kNone = -1;  // after the interpreter's end
};

class Inside {
 public:
  Inside() { t_is_inside = true; }
  ~Inside() { t_is_inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

class LivePythonPolicy final : public PlacementPolicy {
 public:
  LivePythonPolicy(const std::string& name, PlacementDevice& device) : name_(name) {
    const py::gil_scoped_acquire python;
    const Inside inside;
    try {
      const py::object make =
          py::module_::import("torch_npusim.npusim.memory").attr("_policy_class")(name);
      policy_ = std::make_unique<npusim::alloc::PythonPolicy>(make(), name, device);
    } catch (py::error_already_set& error) {
      throw InvalidArgument("policy " + name + ": " + error.what());
    }
  }

  Placement malloc(const PlacementRequest& request) override {
    if (std::this_thread::get_id() != owner_) {
      throw InvalidArgument(
          "policy " + name_ +
          " is in Python and serves one thread, but a second one asks for memory. A backward pass "
          "runs on threads of its own unless it is within "
          "torch.autograd.set_multithreading_enabled(False); for programs with threads write the "
          "policy in C (allocator/placement/policy_abi.h)");
    }
    const Inside inside;
    return policy_->malloc(request);
  }
  void free(const Placement& placement, const PlacementRequest& request) override {
    if (Py_IsInitialized() == 0) return;  // the process ends
    const Inside inside;
    policy_->free(placement, request);
  }
  void empty_cache() override {
    const Inside inside;
    policy_->empty_cache();
  }

 private:
  const std::string name_;
  const std::thread::id owner_ = std::this_thread::get_id();
  std::unique_ptr<npusim::alloc::PythonPolicy> policy_;
};

std::unique_ptr<PlacementPolicy> make(const std::string& name, PlacementDevice& device) {
  return std::make_unique<LivePythonPolicy>(name, device);
}

}  // namespace

void bind_python_policy(py::module_& m) {
  npusim::alloc::bind_policy_device(m, "_PolicyDevice");
  static PythonGate gate;
  set_python_policies({.make = &make, .gate = &gate});
}

}  // namespace torch_npusim
