// SPDX-License-Identifier: BSD-3-Clause
// The timeline of the devices as rows for Python, and the switches of the profiler.
#include <pybind11/stl.h>

#include "backend/promised_end.h"
#include "backend/timeline.h"
#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/python/sites.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/profiler.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

class Recorded final : public npusim::Timeline {};

npusim::Timeline& timeline() {
  static auto* made = new Recorded;  // observers live as long as the process
  return *made;
}

constexpr const char* kOrderWords[] = {
    "event_record",   "event_block",    "event_wait", "event_end", "stream_wait", "device_wait",
    "allocator_wait", "allocator_mark", "query",      "host_time", "host_layer"};
constexpr const char* kCommandWords[] = {
    "kernel",   "copy_h2d",  "copy_d2h",  "copy_h2d_pageable", "copy_d2h_pageable",
    "copy_d2d", "copy_peer", "collective"};

// The order of timeline.Row in torch_npusim/sim/timeline.py.
py::tuple row_tuple(const npusim::TimelineRow& row) {
  return py::make_tuple(row.is_command ? kCommandWords[static_cast<std::size_t>(row.command)]
                                       : kOrderWords[static_cast<std::size_t>(row.order)],
                        row.is_command ? row.name : "", static_cast<int>(row.device),
                        static_cast<int>(row.stream), row.thread, row.paid, row.in_body,
                        row.host_ns, row.start_ns, row.end_ns, row.extra_ns, row.flops, row.bytes,
                        static_cast<int>(row.precision), static_cast<int>(row.work),
                        row.operand_bytes, row.tiles, row.aligned, row.done, row.cached,
                        row.kernels, row.event, row.version, row.site);
}

void begin_timeline(std::size_t most_rows, bool sites) {
  const py::gil_scoped_release no_gil;
  translated([&] {
    npusim::initialize();
    want_sites(SiteUser::timeline, sites);
    npusim::pass_backlog(npusim::current_device());
    timeline().begin(most_rows);
  });
}

// The fields of timeline.Rates.
py::dict rates_of(const npusim::DeviceSpec& spec) {
  py::dict bandwidth;
  bandwidth["memory"] = spec.memory_bytes_per_s;
  bandwidth["host"] = spec.host_bytes_per_s;
  bandwidth["pageable"] = spec.pageable_bytes_per_s;
  bandwidth["peer"] = spec.peer_bytes_per_s;
  py::dict out;
  out["peak_flops"] = py::tuple(py::cast(spec.peak_flops_per_s));
  py::list matrix;
  for (std::size_t i = 0; i < npusim::kPrecisionCount; ++i) {
    matrix.append(spec.has_matrix_units(static_cast<npusim::Precision>(i)));
  }
  out["matrix"] = py::tuple(matrix);
  out["achievable"] = py::tuple(py::cast(spec.achievable));
  out["achievable_plain"] = py::tuple(py::cast(spec.achievable_plain));
  out["achievable_bandwidth"] = py::tuple(py::cast(spec.achievable_bandwidth));
  out["narrow_flops"] = spec.narrow_flops_per_s;
  out["overlap"] = spec.overlap;
  out["wave_loss"] = spec.wave_loss;
  out["cache_bytes"] = spec.cache_bytes;
  out["cache_gain"] = spec.cache_gain;
  out["leaves_out"] = spec.leaves_out;
  out["cache_rate"] = spec.cache_bytes_per_s;
  out["multiprocessors"] = spec.multiprocessor_count;
  out["ramp_ns"] = py::tuple(py::cast(spec.ramp_ns));
  out["bandwidth"] = bandwidth;
  out["launch_latency_ns"] = spec.launch_latency_ns;
  out["next_floor_ns"] = spec.next_floor_ns;
  out["kernel_floor_ns"] = spec.kernel_floor_ns;
  out["copy_floor_ns"] = spec.copy_floor_ns;
  out["pageable_floor_ns"] = spec.pageable_floor_ns;
  out["query_ns"] = spec.query_ns;
  out["record_ns"] = spec.record_ns;
  return out;
}

py::dict device_rates(int device) {
  const int index = checked_device(static_cast<c10::DeviceIndex>(device));
  return rates_of(npusim::device_spec(index));
}

// A specification from a file, whose numbers Python has checked.
void define_spec(const std::string& name, std::size_t memory_bytes,
                 const std::array<double, npusim::kPrecisionCount>& peak_flops,
                 const std::array<npusim::Shares, 3>& achievable,
                 const std::array<std::int64_t, npusim::kWorkCount>& ramp_ns,
                 const std::array<double, 7>& shape, const std::array<double, 4>& bandwidth,
                 const std::array<std::int64_t, 7>& latency_ns,
                 const std::array<int, 3>& hardware) {
  npusim::DeviceSpec spec;
  spec.name = name;
  spec.memory_bytes = memory_bytes;
  spec.peak_flops_per_s = peak_flops;
  spec.achievable = achievable[0];
  spec.achievable_plain = achievable[1];
  spec.achievable_bandwidth = achievable[2];
  spec.overlap = shape[0];
  spec.wave_loss = shape[1];
  spec.cache_bytes = shape[2];
  spec.cache_gain = shape[3];
  spec.narrow_flops_per_s = shape[4];
  spec.cache_bytes_per_s = shape[5];
  spec.leaves_out = shape[6];
  spec.ramp_ns = ramp_ns;
  spec.memory_bytes_per_s = bandwidth[0];
  spec.host_bytes_per_s = bandwidth[1];
  spec.pageable_bytes_per_s = bandwidth[2];
  spec.peer_bytes_per_s = bandwidth[3];
  spec.launch_latency_ns = latency_ns[0];
  spec.kernel_floor_ns = latency_ns[1];
  spec.copy_floor_ns = latency_ns[2];
  spec.query_ns = latency_ns[3];
  spec.record_ns = latency_ns[4];
  spec.next_floor_ns = latency_ns[5];
  spec.pageable_floor_ns = latency_ns[6];
  spec.capability_major = hardware[0];
  spec.capability_minor = hardware[1];
  spec.multiprocessor_count = hardware[2];
  npusim::define_spec(spec);
}

// `settle`: for the end of communication that is still on its way.
py::dict end_timeline(bool settle) {
  {
    const py::gil_scoped_release no_gil;
    if (settle) npusim::keep_all_promises(npusim::current_device());
    timeline().end();
    want_sites(SiteUser::timeline, false);
  }
  py::list rows;
  for (const npusim::TimelineRow& row : timeline().rows()) rows.append(row_tuple(row));
  py::dict out;
  out["rows"] = rows;
  out["begin_ns"] = timeline().host_begin_ns();
  out["end_ns"] = timeline().host_end_ns();
  out["dropped"] = timeline().dropped();
  return out;
}

}  // namespace

void bind_timeline(py::module& m) {
  m.def("begin_timeline", &begin_timeline);
  m.def("end_timeline", &end_timeline);
  m.def("site", &site_dict);
  m.def("device_rates", &device_rates);
  m.def("spec_rates", [](const std::string& name) {
    return translated([&] { return rates_of(npusim::named_spec(name)); });
  });
  m.def("define_spec", &define_spec);
  m.def("set_trace_names",
        [](bool cuda) { set_trace_names(cuda ? TraceNames::cuda : TraceNames::npusim); });
  m.def("set_profiling_paused", &set_profiling_paused);
}

}  // namespace torch_npusim
