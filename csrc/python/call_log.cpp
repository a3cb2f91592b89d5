// SPDX-License-Identifier: BSD-3-Clause
// A log of the calls that go through torch's dispatcher, as RecordFunction announces them: nesting,
// key sets of the operands and of the thread. torch_npusim.inside reads it. Redispatches are not
// announced.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "csrc/observers/route_taken.h"
#include "csrc/python/bindings.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

struct LoggedOperand {
  std::string argument;
  std::uint64_t keys;
  std::string device;
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
  bool requires_grad;
  bool wrapped_number;
};

struct LoggedCall {
  std::string name;
  std::int64_t parent = -1;
  std::uint64_t thread = 0;
  bool backward = false;
  std::uint64_t keys = 0;  // of all tensors and generators
  std::uint64_t included = 0;
  std::uint64_t excluded = 0;
  std::int64_t begin_ns = 0;  // virtual time of the host
  std::int64_t end_ns = -1;
  bool raised = false;
  std::string device;  // that the call asks for: a factory's
  std::int64_t layout = -1;
  std::vector<Route> routes;
  std::vector<LoggedOperand> operands;
};

struct Log {
  std::mutex mutex;
  std::vector<LoggedCall> calls;
  std::uint64_t generation = 0;
  std::optional<at::CallbackHandle> handle;
};

Log& log() {
  static auto* const made = new Log;  // leaked: a thread may be within a callback at exit
  return *made;
}

// The open calls of this thread, of one generation of the log.
thread_local std::uint64_t t_generation = 0;
thread_local std::vector<std::int64_t> t_open;

struct Place final : at::ObserverContext {
  Place(std::uint64_t of, std::int64_t at) : generation(of), index(at) {}
  std::uint64_t generation;
  std::int64_t index;
  int exceptions = std::uncaught_exceptions();
};

void note(LoggedCall& call, const std::string& argument, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  call.keys |= tensor.key_set().raw_repr();
  LoggedOperand operand;
  operand.argument = argument;
  operand.keys = tensor.key_set().raw_repr();
  operand.device = tensor.device().str();
  operand.dtype = tensor.scalar_type();
  // A nested or symbolic tensor has no sizes that are numbers.
  if (!tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    operand.sizes = tensor.sizes().vec();
  }
  operand.requires_grad = tensor.requires_grad();
  operand.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  call.operands.push_back(std::move(operand));
}

void note(LoggedCall& call, const std::string& argument, const c10::IValue& value) {
  if (value.isTensor()) {
    note(call, argument, value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) note(call, argument, tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor) note(call, argument, *tensor);
    }
  } else if (value.isDevice()) {
    call.device = value.toDevice().str();
  } else if (value.isInt() && argument == "layout") {
    call.layout = value.toInt();
  } else if (value.isGenerator()) {
    if (value.toGenerator().defined()) call.keys |= value.toGenerator().key_set().raw_repr();
  }
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  LoggedCall call;
  const bool backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  const auto schema = function.operator_schema();
  if (!backward && !schema) return nullptr;  // a range that a program or a library named
  call.name = function.name();
  if (schema && !schema->overload_name().empty()) call.name += "." + schema->overload_name();
  call.backward = backward;
  call.thread = function.threadId();
  const auto local = c10::impl::tls_local_dispatch_key_set();
  call.included = local.included_.raw_repr();
  call.excluded = local.excluded_.raw_repr();
  if (schema) {
    const auto inputs = function.inputs();
    for (std::size_t i = 0; i < inputs.size() && i < schema->arguments().size(); ++i) {
      note(call, schema->arguments()[i].name(), inputs[i]);
    }
  }
  call.begin_ns = npusim::host_now_ns();
  const std::lock_guard lock(log().mutex);
  if (t_generation != log().generation) {
    t_generation = log().generation;
    t_open.clear();
  }
  call.parent = t_open.empty() ? -1 : t_open.back();
  const auto index = static_cast<std::int64_t>(log().calls.size());
  log().calls.push_back(std::move(call));
  t_open.push_back(index);
  return std::make_unique<Place>(log().generation, index);
}

void take_route(Route route) noexcept {
  const std::lock_guard lock(log().mutex);
  if (t_generation != log().generation || t_open.empty()) return;
  log().calls[static_cast<std::size_t>(t_open.back())].routes.push_back(route);
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  const auto* const place = static_cast<Place*>(context);
  if (place == nullptr) return;
  const std::lock_guard lock(log().mutex);
  if (place->generation != log().generation || t_generation != place->generation) return;
  LoggedCall& call = log().calls[static_cast<std::size_t>(place->index)];
  call.end_ns = npusim::host_now_ns();
  call.raised = std::uncaught_exceptions() > place->exceptions;
  while (!t_open.empty() && t_open.back() >= place->index) t_open.pop_back();
}

py::object dtype_object(at::ScalarType type) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

py::list taken(std::vector<LoggedCall> calls) {
  py::list out;
  const char* const names[] = {"i", "ii, structured", "ii", "iii"};  // in the order of Route
  for (const LoggedCall& call : calls) {
    py::list routes;
    for (const Route route : call.routes) routes.append(names[static_cast<std::size_t>(route)]);
    py::list operands;
    for (const LoggedOperand& operand : call.operands) {
      operands.append(py::make_tuple(operand.argument, operand.keys, operand.device,
                                     dtype_object(operand.dtype), operand.sizes,
                                     operand.requires_grad, operand.wrapped_number));
    }
    out.append(py::make_tuple(call.name, call.parent, call.thread, call.backward, call.keys,
                              call.included, call.excluded, call.begin_ns, call.end_ns, call.device,
                              call.layout, call.raised, routes, operands));
  }
  return out;
}

}  // namespace

void bind_call_log(py::module& m) {
  m.def("begin_call_log", [] {
    const std::lock_guard lock(log().mutex);
    TORCH_CHECK(!log().handle, "torch_npusim.inside: another call log is being kept");
    log().calls.clear();
    log().generation += 1;
    g_route_listener = &take_route;
    log().handle = at::addGlobalCallback(
        at::RecordFunctionCallback(&begin, &end)
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  });
  m.def("end_call_log", [] {
    std::vector<LoggedCall> calls;
    {
      const std::lock_guard lock(log().mutex);
      if (log().handle) at::removeCallback(*log().handle);
      g_route_listener = nullptr;
      log().handle.reset();
      log().generation += 1;
      calls = std::exchange(log().calls, {});
    }
    return taken(std::move(calls));
  });
}

}  // namespace torch_npusim
