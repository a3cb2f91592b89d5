// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the c10d backend, made once torch.distributed is there.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "csrc/distributed/caller.h"
#include "csrc/distributed/simccl.h"
#include "csrc/distributed/threads.h"
#include "csrc/distributed/uniform.h"
#include "csrc/errors.h"
#include "csrc/python/bindings.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

// Modules of Python that lie between a program and torch's managers and decorators.
bool is_between(std::string_view file) {
  return file.ends_with("/typing_extensions.py") || file.ends_with("/contextlib.py") ||
         file.ends_with("/functools.py");
}

// Where torch's own files are: the line of a program is the innermost one outside.
std::string& torch_folder() {
  static auto* folder = new std::string;
  return *folder;
}

std::string line_of_program() {
  if (Py_IsInitialized() == 0) return "";
  const py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyEval_GetFrame();  // borrowed
  Py_XINCREF(frame);
  std::string line;
  while (frame != nullptr && line.empty()) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file != nullptr &&
        std::string_view(file).substr(0, torch_folder().size()) != torch_folder() &&
        file[0] != '<' && !is_between(file)) {
      line = std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    }
    Py_DECREF(code);
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return line;
}

// Threads that may come: Python's, but for daemons, which wait for work of others (pinned memory,
// progress bars). The main one is busy in backward() where autograd's is the calling one.
bool acts_alone(bool is_rank) {
  if (Py_IsInitialized() == 0) return false;
  const py::gil_scoped_acquire gil;
  try {
    const py::module_ threading = py::module_::import("threading");
    const py::object main = threading.attr("main_thread")();
    const auto is_calling = [](const py::handle& thread) {
      return py::cast<unsigned long>(thread.attr("ident")) == PyThread_get_thread_ident();
    };
    for (const py::handle thread : threading.attr("enumerate")()) {
      const bool other = !thread.is(main) && !is_calling(thread);
      if (other && !thread.attr("daemon").cast<bool>()) return false;
    }
    return is_rank || is_calling(main) || torch::autograd::get_current_graph_task_id() != -1;
  } catch (const py::error_already_set&) {  // the interpreter is ending
    return false;
  }
}

// The names of npusim::Collective, Algorithm and Protocol, in their order.
constexpr std::array kCollectives = {"all_reduce", "broadcast",      "reduce",
                                     "all_gather", "reduce_scatter", "all_to_all",
                                     "gather",     "scatter",        "transfer"};
constexpr std::array kAlgorithms = {"ring", "tree", "nvls", "direct"};
constexpr std::array kProtocols = {"LL", "LL128", "Simple"};

npusim::Fabric fabric_of(const py::dict& values) {
  npusim::Fabric fabric;
  const std::map<std::string, double*> numbers = {
      {"link", &fabric.link},
      {"nvls", &fabric.nvls},
      {"ll", &fabric.ll},
      {"ll_across", &fabric.ll_across},
      {"ll_far", &fabric.ll_far},
      {"nic", &fabric.nic},
      {"oversubscription", &fabric.oversubscription},
      {"net_us", &fabric.net_us},
      {"post_us", &fabric.post_us},
      {"base_us", &fabric.base_us},
      {"chunk", &fabric.chunk},
      {"nvls_chunk", &fabric.nvls_chunk},
      {"ll128", &fabric.ll128},
      {"network_simple_us", &fabric.network_simple_us},
      {"peer_us", &fabric.peer_us},
  };
  for (const auto& [name, value] : values) {
    const auto key = name.cast<std::string>();
    if (const auto number = numbers.find(key); number != numbers.end()) {
      *number->second = value.cast<double>();
    } else if (key == "name") {
      fabric.name = value.cast<std::string>();
    } else if (key == "ranks_per_node") {
      fabric.ranks_per_node = value.cast<int>();
    } else if (key == "nics") {
      fabric.nics = value.cast<int>();
    } else if (key == "nvlink") {
      fabric.nvlink = value.cast<bool>();
    } else {
      throw py::key_error(key);
    }
  }
  return fabric;
}

npusim::Collective collective_of(const std::string& name) {
  const auto* found = std::find(kCollectives.begin(), kCollectives.end(), name);
  if (found == kCollectives.end()) throw py::value_error("there is no collective '" + name + "'");
  return static_cast<npusim::Collective>(found - kCollectives.begin());
}

py::list fabric_routes(const py::dict& fabric, const std::string& operation,
                       const std::vector<int>& ranks, double bytes, double sharing,
                       const std::vector<int>& group) {
  py::list all;
  for (const npusim::Route& route :
       npusim::routes(fabric_of(fabric), collective_of(operation), ranks, bytes, sharing, group)) {
    all.append(py::make_tuple(kAlgorithms[static_cast<std::size_t>(route.algorithm)],
                              kProtocols[static_cast<std::size_t>(route.protocol)], route.ns));
  }
  return all;
}

// The names are not those of _C, because their base class is there only with torch.distributed.
void define_simccl(const py::object& scope, const std::string& folder) {
  using distributed::Simccl;
  using distributed::ThreadRanks;
  using distributed::UniformRanks;
  py::module_::import("torch._C._distributed_c10d");
  torch_folder() = folder;
  distributed::set_caller(&line_of_program, &acts_alone);
  py::class_<npusim::Rendezvous, std::shared_ptr<npusim::Rendezvous>>(scope, "Rendezvous");
  scope.attr("meet") =
      py::cpp_function(&distributed::meet, py::call_guard<py::gil_scoped_release>());
  py::class_<UniformRanks, c10d::Backend, c10::intrusive_ptr<UniformRanks>>(scope, "UniformRanks")
      .def(py::init(
          [](int rank, int size) { return c10::make_intrusive<UniformRanks>(rank, size); }));
  // The ranks wait for each other, without the GIL; what pybind11 notes of an object needs it.
  py::class_<ThreadRanks, c10d::Backend, c10::intrusive_ptr<ThreadRanks>>(scope, "ThreadRanks")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       std::chrono::milliseconds timeout) {
        const py::gil_scoped_release no_gil;
        return c10::make_intrusive<ThreadRanks>(store, rank, size, timeout);
      }));
  py::class_<Simccl, c10d::Backend, c10::intrusive_ptr<Simccl>>(scope, "Simccl")
      .def(py::init([](c10::intrusive_ptr<c10d::Backend> transport,
                       std::shared_ptr<npusim::Rendezvous> words,
                       const c10::intrusive_ptr<Simccl>& world, int rank, std::vector<int> ranks,
                       std::string name, std::chrono::milliseconds timeout, std::string label) {
        return c10::make_intrusive<Simccl>(std::move(transport), std::move(words), world, rank,
                                           std::move(ranks), std::move(name), timeout,
                                           std::move(label));
      }))
      // torch calls these on every ProcessGroupNCCL: tests/alias/test_nccl.py.
      .def("_set_default_timeout", &Simccl::setTimeout)
      .def("_add_ephemeral_timeout", &Simccl::addEphemeralTimeout)
      .def("_set_enable_nan_check", &Simccl::set_check_nan)
      .def_property_readonly("uid", &Simccl::uid)
      // Between them backends are aborted. Those of simccl do not wait for each other.
      .def("_group_start", [](Simccl&) {})
      .def("_group_end", [](Simccl&) {});
}

}  // namespace

void bind_distributed(py::module& m) {
  m.def("define_simccl", &define_simccl);
  m.def("communicators", &distributed::Simccl::communicators);
  m.def("set_fabric",
        [](const py::dict& fabric) { translated([&] { npusim::set_fabric(fabric_of(fabric)); }); });
  m.def("fabric_routes", &fabric_routes);
  m.def("bus_factor", [](const std::string& operation, int ranks) {
    return npusim::bus_factor(collective_of(operation), ranks);
  });
}

}  // namespace torch_npusim
