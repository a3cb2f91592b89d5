// SPDX-License-Identifier: BSD-3-Clause
// Bindings of dry runs: their beginning and end, and what they answered.
#include <pybind11/stl.h>

#include "csrc/aten/cuda_attention.h"
#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/python/memory_history.h"
#include "csrc/python/sites.h"
#include "csrc/routes/cuda_kernels.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/dry_answers.h"
#include "csrc/runtime/known_values.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

// An empty name is the specification in force, 0 bytes its capacity, and a launch latency below 0
// its launch latency.
void begin(const std::string& spec_name, std::size_t memory_bytes, double selected_share,
           int64_t patience, bool cuda_temporaries, std::size_t outside_bytes,
           std::int64_t launch_latency_ns) {
  const py::gil_scoped_release no_gil;
  npusim::DeviceSpec spec = translated([&] {
    npusim::initialize();
    return spec_name.empty() ? npusim::device_spec(0) : npusim::named_spec(spec_name);
  });
  if (memory_bytes != 0) spec.memory_bytes = memory_bytes;
  if (launch_latency_ns >= 0) spec.launch_latency_ns = launch_latency_ns;
  begin_dry_run(spec, outside_bytes);
  record_as_before();
  begin_answers(selected_share, patience, &gather_site);
  begin_known_values();
  if (cuda_temporaries) {
    begin_cuda_temporaries();
    begin_cuda_attention();
  }
}

void end() {
  const py::gil_scoped_release no_gil;
  end_known_values();
  end_cuda_attention();
  end_cuda_temporaries();
  end_dry_run();
}

py::list answers() {
  py::list out;
  for (const DryAnswer& each : dry_answers()) {
    out.append(py::make_tuple(each.op, each.what, each.answer, each.count, each.site));
  }
  return out;
}

}  // namespace

void bind_dry_runs(py::module& m) {
  m.def("begin_dry_run", &begin);
  m.def("end_dry_run", &end);
  m.def("in_dry_run", &npusim::dry);
  m.def("in_dry_run_of_npusim", [] { return npusim::dry() && !as_cuda(); });
  m.def("dry_answers", &answers);
  m.def("cuda_kernels", [] {
    py::list out;
    for (const KernelsRow& row : cuda_kernels()) {
      out.append(py::make_tuple(row.operators, row.kernels, row.source));
    }
    return out;
  });
  m.def("cuda_temporaries", [] {
    py::list out;
    for (const TemporariesRow& row : cuda_temporaries()) {
      out.append(py::make_tuple(row.op, row.what, row.source, row.condition));
    }
    return out;
  });
}

}  // namespace torch_npusim
