// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the c10d backend, made once torch.distributed is there.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "csrc/distributed/caller.h"
#include "csrc/distributed/recorder.h"
#include "csrc/distributed/simccl.h"
#include "csrc/distributed/threads.h"
#include "csrc/distributed/uniform.h"
#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/python/memory_history.h"

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

// Called with the rank whose collective has failed.
py::function& failure_sink() {
  static auto* sink = new py::function;
  return *sink;
}

void tell_failure(int rank) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  try {
    if (failure_sink()) failure_sink()(rank);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("simccl's flight recorder");
  }
}

// Makes the backend of a part of a group.
py::function& part_maker() {
  static auto* maker = new py::function;
  return *maker;
}

c10::intrusive_ptr<c10d::Backend> make_part(const distributed::Simccl::Part& part) {
  const py::gil_scoped_acquire gil;
  return part_maker()(part.store, part.rank, part.ranks.size(), part.timeout, part.name, part.ranks,
                      part.label)
      .cast<c10::intrusive_ptr<c10d::Backend>>();
}

py::list type_names(const std::vector<at::ScalarType>& types) {
  py::list names;
  for (const at::ScalarType type : types) names.append(c10::toString(type));
  return names;
}

py::object time_of(const std::atomic<std::int64_t>& ns) {
  return ns == 0 ? py::object(py::none()) : py::object(py::int_(ns.load()));
}

// The entries of torch's flight recorder, oldest first, of a rank; "process_group" is a tuple.
py::list flight_records(int rank, bool with_frames) {
  py::list entries;
  std::vector<torch::CapturedTraceback*> tracebacks;
  const auto records = distributed::kept_records();
  std::vector<std::shared_ptr<distributed::FlightEntry>> chosen;
  for (const auto& record : records) {
    if (record->standing->rank != rank) continue;
    chosen.push_back(record);
    tracebacks.push_back(record->frames.get());
  }
  torch::SymbolizedTracebacks stacks;
  if (with_frames) stacks = torch::symbolize(tracebacks);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const distributed::FlightEntry& record = *chosen[i];
    py::dict entry;
    if (with_frames) {
      py::list frames;
      for (const std::uint64_t k : stacks.tracebacks[i]) {
        const auto& frame = stacks.all_frames[k];
        py::dict one;
        one["name"] = frame.funcname;
        one["filename"] = frame.filename;
        one["line"] = frame.lineno;
        frames.append(one);
      }
      entry["frames"] = frames;
    }
    entry["record_id"] = record.id;
    entry["pg_id"] = record.standing->uid;
    entry["process_group"] = py::make_tuple(record.standing->group, record.standing->description);
    entry["collective_seq_id"] = record.collective;
    entry["p2p_seq_id"] = record.transfer;
    entry["op_id"] = record.operation;
    entry["profiling_name"] = "nccl:" + record.title;
    entry["time_created_ns"] = record.created_ns;
    if (record.duration_ms >= 0) entry["duration_ms"] = record.duration_ms.load();
    entry["input_sizes"] = record.input_sizes;
    entry["input_dtypes"] = type_names(record.input_types);
    entry["output_sizes"] = record.output_sizes;
    entry["output_dtypes"] = type_names(record.output_types);
    entry["state"] = record.completed_ns != 0 ? "completed"
                     : record.started_ns != 0 ? "started"
                                              : "scheduled";
    entry["time_discovered_started_ns"] = time_of(record.started_ns);
    entry["time_discovered_completed_ns"] = time_of(record.completed_ns);
    entry["retired"] = record.retired.load();
    entry["timeout_ms"] = record.timeout_ms;
    entry["is_p2p"] = record.is_transfer;
    entries.append(entry);
  }
  return entries;
}

// (uid, name, description, ranks, enqueued, started, completed) of each recorded group of a rank.
py::list flight_groups(int rank) {
  py::list all;
  for (const auto& one : distributed::standings()) {
    if (one->rank != rank) continue;
    all.append(py::make_tuple(one->uid, one->group, one->description, one->ranks,
                              one->enqueued.load(), one->started.load(), one->completed.load()));
  }
  return all;
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
  distributed::set_caller(&line_of_program, &acts_alone, &tell_failure);
  know_python_frames();
  py::class_<npusim::CollectiveBoard, std::shared_ptr<npusim::CollectiveBoard>>(scope,
                                                                                "CollectiveBoard");
  scope.attr("meet") =
      py::cpp_function(&distributed::meet, py::call_guard<py::gil_scoped_release>());
  Simccl::set_maker(&make_part);
  using distributed::SimcclOptions;
  py::class_<SimcclOptions, c10d::Backend::Options, c10::intrusive_ptr<SimcclOptions>>(scope,
                                                                                       "Options")
      .def(py::init<std::string, std::chrono::milliseconds>())
      .def_readwrite("is_high_priority_stream", &SimcclOptions::is_high_priority_stream)
      .def("__deepcopy__", [](const SimcclOptions& options, const py::dict&) {
        return c10::make_intrusive<SimcclOptions>(options);
      });
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
                       std::shared_ptr<npusim::CollectiveBoard> words,
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
      .def("_enable_collectives_timing", &Simccl::enableCollectivesTiming)
      .def("_set_blocking_wait", &Simccl::set_blocking_wait)
      .def_property_readonly("uid", &Simccl::uid)
      .def_property_readonly("options", &Simccl::getBackendOptions)
      .def("comm_split_count", &Simccl::splits)
      .def("_is_initialized", &Simccl::connected)
      .def("perform_nocolor_split", [](Simccl& self, const py::object&) { self.count_split(); })
      .def("_count_split", &Simccl::count_split)
      // Between them backends are aborted. Those of simccl do not wait for each other.
      .def("_group_start", [](Simccl&) {})
      .def("_group_end", [](Simccl&) {});
}

}  // namespace

void bind_distributed(py::module& m) {
  m.def("define_simccl", &define_simccl);
  m.def("flight_records", &flight_records);
  m.def("flight_groups", &flight_groups);
  m.def("keep_flight_records", &distributed::set_capacity);
  m.def("forget_flight_records", &distributed::forget_records);
  m.def("on_split", [](py::function maker) { part_maker() = std::move(maker); });
  m.def("on_failure", [](py::function sink) { failure_sink() = std::move(sink); });
  m.def("communicators", &distributed::Simccl::communicators);
  m.def("set_fabric",
        [](const py::dict& fabric) { translated([&] { npusim::set_fabric(fabric_of(fabric)); }); });
  m.def("fabric_routes", &fabric_routes);
  m.def("bus_factor", [](const std::string& operation, int ranks) {
    return npusim::bus_factor(collective_of(operation), ranks);
  });
}

}  // namespace torch_npusim
