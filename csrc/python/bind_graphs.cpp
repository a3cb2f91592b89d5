// SPDX-License-Identifier: BSD-3-Clause
// Graphs for Python, and for torch.accelerator.Graph.
#include <ATen/core/GraphImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <fstream>
#include <unordered_map>

#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/graph.h"
#include "csrc/runtime/storage.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

using PoolNumber = std::pair<std::uint64_t, std::uint64_t>;

std::shared_ptr<PrivatePool> pool_of(PoolNumber number) {
  if (number == PoolNumber{}) return nullptr;
  std::shared_ptr<PrivatePool> pool = find_pool({number.first, number.second});
  TORCH_CHECK(pool != nullptr, "there is no memory pool (", number.first, ", ", number.second,
              "); take one from graph_pool_handle(), a graph's pool() or a MemPool's id");
  return pool;
}

// Gives tensors storages of their own over the same bytes, one for each storage before. It keeps
// that alive where `keeps` is true; otherwise whoever uses the tensors knows that the bytes live.
void separate_storages(const std::vector<at::Tensor>& tensors, bool keeps) {
  std::unordered_map<const c10::StorageImpl*, c10::Storage> separate;
  for (const at::Tensor& tensor : tensors) {
    const c10::Storage& before = tensor.storage();
    c10::Storage& storage = separate[before.unsafeGetStorageImpl()];
    if (!storage) {
      void* const data = const_cast<void*>(before.data());  // NOLINT: an address only
      c10::DataPtr shared(
          data, keeps ? new c10::Storage(before) : nullptr,
          [](void* held) { delete static_cast<c10::Storage*>(held); }, tensor.device());
      storage = c10::Storage(c10::make_intrusive<DeviceStorage>(
          c10::StorageImpl::use_byte_size_t(), before.sym_nbytes(), std::move(shared),
          device_allocator(), /*resizable=*/false));
    }
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  }
}

// Frees the bytes of a storage: whoever asks for the address of a tensor over it gets the message.
void end_storage(const c10::Storage& storage, std::string message) {
  c10::StorageImpl& ended = *storage.unsafeGetStorageImpl();
  ended.set_data_ptr_noswap(c10::DataPtr(nullptr, ended.device()));
  ended.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

void begin(Graph& graph, PoolNumber pool, const std::string& mode) {
  npusim::CaptureMode chosen = npusim::CaptureMode::global;
  if (mode == "thread_local") {
    chosen = npusim::CaptureMode::own_thread;
  } else if (mode == "relaxed") {
    chosen = npusim::CaptureMode::relaxed;
  } else if (mode != "global") {
    throw py::value_error("capture_error_mode: got '" + mode +
                          "', expected one of 'global', 'thread_local', 'relaxed'");
  }
  graph.capture_begin(pool_of(pool), chosen);
}

PoolNumber pool_handle() {
  const npusim::alloc::PoolId id = make_pool_handle();
  return {id.first, id.second};
}

py::object call(Graph& graph, const std::string& name, const std::string& overload,
                const py::args& args, const py::kwargs& kwargs) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  torch::jit::Stack stack = torch::jit::createStackForSchema(
      op.schema(), torch::jit::tuple_slice(args), kwargs, std::nullopt);
  {
    const py::gil_scoped_release no_gil;
    graph.call(op, stack);
  }
  return torch::jit::createPyObjectForStack(std::move(stack));
}

void write_dot(const Graph& graph, const std::string& path) {
  std::ofstream file(path);
  file << graph.as_dot();
  file.close();
  TORCH_CHECK(!file.fail(), "debug_dump: cannot write to ", path);
}

// torch.accelerator.Graph's other half.
class GraphImpl final : public at::GraphImplInterface {
 public:
  explicit GraphImpl(const at::GraphImplArgs& args) : keep_graph_(args.keep_graph) {}
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override {
    const npusim::CaptureMode modes[] = {npusim::CaptureMode::global, npusim::CaptureMode::global,
                                         npusim::CaptureMode::own_thread,
                                         npusim::CaptureMode::relaxed};
    graph_.capture_begin(pool_of(pool), modes[static_cast<std::size_t>(mode)]);
  }
  void capture_end() override { graph_.capture_end(); }
  void instantiate() override {
    TORCH_CHECK(graph_.is_captured(), "instantiate() was called on a graph without a capture");
  }
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  at::MempoolId_t pool() const override {
    const npusim::alloc::PoolId id = graph_.pool();
    return {id.first, id.second};
  }
  void enable_debug_mode() override { debug_ = true; }
  void debug_dump(const std::string& path) override {
    TORCH_CHECK(debug_, "debug_dump() needs enable_debug_mode() before the capture");
    write_dot(graph_, path);
  }

 private:
  Graph graph_;
  [[maybe_unused]] bool keep_graph_;  // there is one form of a graph here
  bool debug_ = false;
};

}  // namespace

void bind_graphs(py::module& m) {
  // The key is the device's name, which the CUDA alias changes; torch built for CUDA has its own.
  if (!at::GraphImplRegistry()->Has("CUDA")) {
    at::GraphImplRegistry()->Register(
        "CUDA", [](const at::GraphImplArgs& args) { return std::make_unique<GraphImpl>(args); });
  }
  m.def("separate_storages", &separate_storages, py::arg("tensors"), py::arg("keeps") = true);
  m.def("end_storage", &end_storage, py::arg("storage"), py::arg("message"));
  py::class_<Graph, std::shared_ptr<Graph>>(m, "_Graph")
      .def(py::init<>())
      .def("capture_begin", &begin)
      .def("register_generator", &Graph::register_generator)
      .def("capture_end", &Graph::capture_end)
      .def("replay", &Graph::replay, py::call_guard<py::gil_scoped_release>())
      .def("reset", &Graph::reset)
      .def("is_captured", &Graph::is_captured)
      .def("freed_inputs", &Graph::freed_inputs)
      .def("size", &Graph::size)
      .def("pool",
           [](const Graph& graph) {
             const npusim::alloc::PoolId id = graph.pool();
             return PoolNumber{id.first, id.second};
           })
      .def("write_dot", &write_dot)
      .def("call", &call);
  m.def("graph_pool_handle", &pool_handle);
  m.def("is_current_stream_capturing", &Graph::captures_current_stream);
  // turn(graph, on) makes operators come to graph.call(), or no longer.
  m.def("set_capture_switch", [](py::function turn) {
    static auto* kept = new py::function;
    *kept = std::move(turn);
    Graph::set_switch([](Graph& graph, bool on) {
      const py::gil_scoped_acquire gil;
      (*kept)(py::cast(&graph, py::return_value_policy::reference), on);
    });
  });
}

}  // namespace torch_npusim

namespace at {
C10_REGISTER_CLASS(GraphImplRegistry, NPUSIM, torch_npusim::GraphImpl)
}
