// SPDX-License-Identifier: BSD-3-Clause
// Snapshot: the tables of a pickled memory snapshot, as columns.
#include <cstdlib>
#include <string>
#include <system_error>

#include "lab/bindings/bindings.h"
#include "lab/engine/snapshot_reader.h"

#ifdef __GLIBC__
extern "C" int malloc_trim(std::size_t pad) noexcept;  // of its <malloc.h>
#endif

namespace py = pybind11;

namespace npusim::lab {
namespace {

py::str text_of(const std::string& bytes) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<py::ssize_t>(bytes.size()), "replace"));
}

py::int_ number_of(const RecordedNumber& number) {
  if (number.is_negative) return py::int_(static_cast<std::int64_t>(number.bits));
  return py::int_(number.bits);
}

py::list stacks_of(const SnapshotTables& tables) {
  std::vector<py::tuple> frames;
  frames.reserve(tables.frames.size());
  for (const SnapshotTables::Frame& frame : tables.frames) {
    frames.push_back(py::make_tuple(text_of(frame.file), frame.line, text_of(frame.function)));
  }
  py::list stacks;
  for (const std::vector<std::uint32_t>& stack : tables.stacks) {
    py::tuple out(stack.size());
    for (std::size_t i = 0; i < stack.size(); ++i) out[i] = frames[stack[i]];
    stacks.append(out);
  }
  return stacks;
}

py::dict dict_of(SnapshotTables&& tables) {
  py::dict entries, segments, blocks, out;
  entries["op"] = as_array(std::move(tables.entries.op));
  entries["address"] = as_array(std::move(tables.entries.address));
  entries["bytes"] = as_array(std::move(tables.entries.bytes));
  entries["time_us"] = as_array(std::move(tables.entries.time_us));
  entries["stream"] = as_array(std::move(tables.entries.stream));
  entries["pool"] = as_array(std::move(tables.entries.pool));
  entries["stack"] = as_array(std::move(tables.entries.stack));
  segments["address"] = as_array(std::move(tables.segments.address));
  segments["bytes"] = as_array(std::move(tables.segments.bytes));
  segments["stream"] = as_array(std::move(tables.segments.stream));
  segments["pool"] = as_array(std::move(tables.segments.pool));
  segments["is_large"] = as_array(std::move(tables.segments.is_large));
  segments["is_expandable"] = as_array(std::move(tables.segments.is_expandable));
  blocks["block_bytes"] = as_array(std::move(tables.blocks.block_bytes));
  blocks["address"] = as_array(std::move(tables.blocks.address));
  blocks["bytes"] = as_array(std::move(tables.blocks.bytes));
  blocks["stream"] = as_array(std::move(tables.blocks.stream));
  blocks["pool"] = as_array(std::move(tables.blocks.pool));
  blocks["stack"] = as_array(std::move(tables.blocks.stack));
  blocks["is_pending"] = as_array(std::move(tables.blocks.is_pending));
  py::list streams, pools;
  for (const RecordedNumber& stream : tables.streams) streams.append(number_of(stream));
  for (const auto& [first, second] : tables.pools) {
    pools.append(py::make_tuple(number_of(first), number_of(second)));
  }
  out["entries"] = entries;
  out["segments"] = segments;
  out["blocks"] = blocks;
  out["streams"] = streams;
  out["pools"] = pools;
  out["stacks"] = stacks_of(tables);
  return out;
}

}  // namespace

void bind_snapshot(py::module_& m) {
  m.def("give_back_memory", [] {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
  });
  py::class_<SnapshotReader>(m, "Snapshot")
      .def_static(
          "read_file",
          [](const std::string& path) {
            try {
              const py::gil_scoped_release released;
              return std::make_unique<SnapshotReader>(ByteSource::open_file(path));
            } catch (const std::system_error& problem) {
              errno = problem.code().value();
              PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
              throw py::error_already_set();
            }
          },
          py::arg("path"))
      .def_static(
          "read_bytes",
          [](const py::bytes& data) {
            const std::string_view text = data;
            const py::gil_scoped_release released;
            return std::make_unique<SnapshotReader>(ByteSource(
                std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size())));
          },
          py::arg("data"))
      .def_property_readonly("devices", &SnapshotReader::devices)
      .def_property_readonly("used_devices", &SnapshotReader::used_devices)
      .def_property_readonly("settings",
                             [](const SnapshotReader& self) { return text_of(self.settings()); })
      .def_property_readonly("has_whole_history", &SnapshotReader::has_whole_history)
      .def(
          "tables",
          [](const SnapshotReader& self, std::int64_t device) {
            SnapshotTables tables;
            {
              const py::gil_scoped_release released;
              tables = self.tables(device);
            }
            return dict_of(std::move(tables));
          },
          py::arg("device"));
}

}  // namespace npusim::lab
