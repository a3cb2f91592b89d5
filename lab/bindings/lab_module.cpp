// SPDX-License-Identifier: BSD-3-Clause
// npusim_lab._lab: the allocator on a simulated device, for Python and without torch. Only
// conversion happens here; names, shapes and units of what is returned are torch's, so its tools
// can read it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "allocator/allocator.h"
#include "allocator/fake_provider.h"
#include "allocator/validate.h"
#include "lab/bindings/bindings.h"

namespace py = pybind11;
using namespace npusim::lab;
using npusim::lab::DictPut;
using npusim::lab::fields_dict;

namespace {

struct OutOfMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Handle: a block as Python holds it. The numbers are copies, so they stay readable after free().
struct Handle {
  Block* block;
  Address address;
  std::size_t bytes;
  std::size_t requested_bytes;
  StreamId stream;
  std::int64_t segment;
  std::size_t offset;
  bool is_freed = false;
};

class LabAllocator {
 public:
  LabAllocator(std::shared_ptr<FakeProvider> device, const std::string& preset_name,
               const std::string& settings)
      : device_(std::move(device)),
        allocator_(*device_, parse_config(preset(preset_name), settings)) {}

  CachingAllocator& get() { return allocator_; }

  std::optional<Handle> malloc(std::size_t bytes, StreamId stream, std::uint64_t pool) {
    OutOfMemoryReport report;
    Block* block = allocator_.malloc(bytes, stream, &report, 0, {0, pool});
    if (!block && bytes == 0) return std::nullopt;
    if (!block) throw OutOfMemoryError(format_out_of_memory(report, "Simulated device", 0));
    const Segment& segment = *block->segment;
    return Handle{block,
                  block->address,
                  block->bytes,
                  bytes,
                  block->stream,
                  segment.registration,
                  block->address - segment.address};
  }

  void free(Handle& handle) {
    require_fresh(handle);
    allocator_.free(handle.block);
    handle.is_freed = true;
  }

  std::uint64_t free_held(Handle& handle) {
    require_fresh(handle);
    const std::uint64_t hold = allocator_.free_held(handle.block);
    handle.is_freed = true;
    return hold;
  }

  std::uint64_t create_pool(bool use_on_oom, bool no_split) {
    const PoolId id{0, ++last_pool_};
    allocator_.retain_pool(id, {.use_on_oom = use_on_oom, .no_split = no_split});
    return id.second;
  }

  void free_address(Address address) {
    std::string why;
    if (allocator_.free_address(address, &why) != FreeStatus::ok) throw py::value_error(why);
  }

  void record_stream(Handle& handle, StreamId stream) {
    require_fresh(handle);
    allocator_.record_stream(handle.block, stream);
  }

  std::vector<std::string> find_violations() const {
    return violations(allocator_.inspect(), &device_->live_segments());
  }

 private:
  // The slot behind a freed handle may serve another block by now: the allocator could not tell.
  static void require_fresh(const Handle& handle) {
    if (handle.is_freed) throw py::value_error("the block was freed already (double free?)");
  }

  std::shared_ptr<FakeProvider> device_;
  CachingAllocator allocator_;
  std::uint64_t last_pool_ = 0;
};

py::dict segment_dict(const SegmentInfo& segment) {
  py::list blocks;
  for (const BlockInfo& block : segment.blocks) {
    py::dict row;
    for_each_field(block, DictPut{row});
    row["frames"] = py::list();
    blocks.append(row);
  }
  py::dict out;
  for_each_field(segment, 0, DictPut{out});
  out["frames"] = py::list();
  out["blocks"] = blocks;
  return out;
}

py::dict history_dict(const HistoryEntry& entry) {
  py::dict out;
  for_each_field(entry, DictPut{out});
  out["frames"] = py::list();
  return out;
}

py::dict snapshot_dict(const Snapshot& snapshot) {
  py::list segments, history;
  for (const SegmentInfo& segment : snapshot.segments) segments.append(segment_dict(segment));
  for (const HistoryEntry& entry : snapshot.history) {
    if (is_torchs(entry.action)) history.append(history_dict(entry));
  }
  py::list traces;
  traces.append(history);
  py::dict divisions;
  const auto& table = snapshot.config.roundup_power2_divisions;
  for (std::size_t i = 0; i < table.size(); ++i) {
    divisions[py::str(std::to_string(std::size_t{1} << i))] = table[i];
  }
  py::dict settings;
  settings["PYTORCH_CUDA_ALLOC_CONF"] = "";
  settings["max_split_size"] = snapshot.stats.max_split_bytes;
  settings["garbage_collection_threshold"] = snapshot.config.garbage_collection_threshold;
  settings["expandable_segments"] = snapshot.config.expandable_segments;
  settings["roundup_power2_divisions"] = divisions;
  py::dict out;
  out["segments"] = segments;
  out["device_traces"] = traces;
  out["allocator_settings"] = settings;
  out["external_annotations"] = py::list();
  return out;
}

HistoryMode history_mode(const std::optional<std::string>& enabled) {
  if (!enabled) return HistoryMode::off;
  if (*enabled == "state") return HistoryMode::state;
  if (*enabled == "all") return HistoryMode::all;
  throw py::value_error("enabled is '" + *enabled + "'; expected 'state', 'all', or None");
}

void bind_device(py::module_& m) {
  py::class_<FakeProvider, std::shared_ptr<FakeProvider>>(m, "SimulatedDevice")
      .def(py::init([](std::size_t capacity_bytes, std::uint64_t scatter_seed) {
             auto device = std::make_shared<FakeProvider>(capacity_bytes);
             device->scatter(scatter_seed);
             return device;
           }),
           py::arg("capacity_bytes"), py::arg("scatter_seed") = 0)
      .def("run", &FakeProvider::run, py::arg("stream"), py::arg("duration_ns"))
      .def("advance", &FakeProvider::advance, py::arg("duration_ns"))
      .def("fail_call", &FakeProvider::fail_call, py::arg("k"))
      .def_property_readonly("now_ns", &FakeProvider::now_ns)
      .def_property_readonly("live_bytes", &FakeProvider::live_bytes);
}

void bind_allocator(py::module_& m) {
  py::class_<Handle>(m, "Block")
      .def_readonly("address", &Handle::address)
      .def_readonly("bytes", &Handle::bytes)
      .def_readonly("requested_bytes", &Handle::requested_bytes)
      .def_readonly("stream", &Handle::stream)
      .def_property_readonly("placement",
                             [](const Handle& h) { return py::make_tuple(h.segment, h.offset); });
  py::class_<LabAllocator>(m, "Allocator")
      .def(py::init<std::shared_ptr<FakeProvider>, const std::string&, const std::string&>(),
           py::arg("device"), py::arg("preset") = "npusim", py::arg("settings") = "")
      .def("malloc", &LabAllocator::malloc, py::arg("bytes"), py::arg("stream") = 0,
           py::arg("pool") = 0, py::keep_alive<0, 1>())
      .def("free", &LabAllocator::free, py::arg("block"))
      .def("free_held", &LabAllocator::free_held, py::arg("block"))
      .def(
          "complete_free",
          [](LabAllocator& self, std::uint64_t hold) { return self.get().complete_free(hold); },
          py::arg("hold"))
      .def("free_address", &LabAllocator::free_address, py::arg("address"))
      .def("record_stream", &LabAllocator::record_stream, py::arg("block"), py::arg("stream"))
      .def("process_events", [](LabAllocator& self) { self.get().process_events(); })
      .def(
          "empty_cache",
          [](LabAllocator& self, std::uint64_t pool) { self.get().empty_cache({0, pool}); },
          py::arg("pool") = 0)
      .def("create_pool", &LabAllocator::create_pool, py::arg("use_on_oom") = false,
           py::arg("no_split") = false)
      .def(
          "retain_pool",
          [](LabAllocator& self, std::uint64_t pool) { self.get().retain_pool({0, pool}); },
          py::arg("pool"))
      .def(
          "release_pool",
          [](LabAllocator& self, std::uint64_t pool) { self.get().release_pool({0, pool}); },
          py::arg("pool"))
      .def("enter_pool_scope", [](LabAllocator& self) { self.get().enter_pool_scope(); })
      .def("leave_pool_scope", [](LabAllocator& self) { self.get().leave_pool_scope(); })
      .def(
          "set_memory_fraction",
          [](LabAllocator& self, double fraction) { self.get().set_memory_fraction(fraction); },
          py::arg("fraction"))
      .def("stats", [](LabAllocator& self) { return fields_dict(self.get().stats()); })
      .def("reset_peak_stats", [](LabAllocator& self) { self.get().reset_peak_stats(); })
      .def("reset_accumulated_stats",
           [](LabAllocator& self) { self.get().reset_accumulated_stats(); })
      .def(
          "record_history",
          [](LabAllocator& self, const std::optional<std::string>& enabled,
             std::size_t max_entries) {
            self.get().record_history(history_mode(enabled), max_entries);
          },
          py::arg("enabled") = "all", py::arg("max_entries") = kUnlimited)
      .def("snapshot", [](LabAllocator& self) { return snapshot_dict(self.get().snapshot()); })
      .def("violations", &LabAllocator::find_violations);
}

}  // namespace

PYBIND11_MODULE(_lab, m) {
  m.doc() = "The npusim caching allocator on a simulated device.";
  py::register_exception<OutOfMemoryError>(m, "OutOfMemoryError", PyExc_MemoryError);
  bind_device(m);
  bind_allocator(m);
  npusim::lab::bind_trace(m);
  npusim::lab::bind_replay(m);
  npusim::lab::bind_plan(m);
  npusim::lab::bind_snapshot(m);
}
