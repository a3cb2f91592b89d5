// SPDX-License-Identifier: BSD-3-Clause
// Bindings of what only a simulator has: its clock, its faults, its knobs and its counters.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "backend/device_loss.h"
#include "backend/host_layer.h"
#include "csrc/cost/host_layers.h"
#include "csrc/cuda_rules/cuda_rules.h"
#include "csrc/cuda_rules/operators_without_cuda.h"
#include "csrc/errors.h"
#include "csrc/operands/alignment.h"
#include "csrc/python/bindings.h"
#include "csrc/routes/fallback_stats.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/host_sync.h"
#include "csrc/runtime/poison.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

// The names of an enum's values, in their order.
template <std::size_t N>
struct EnumNames {
  const char* what;
  std::array<const char*, N> names;

  std::size_t parse(const std::string& name) const {
    std::string accepted;
    for (std::size_t i = 0; i < N; ++i) {
      if (name == names[i]) return i;
      accepted += std::string(i == 0 ? "'" : ", '") + names[i] + "'";
    }
    throw py::value_error(std::string(what) + ": got '" + name + "', expected one of " + accepted);
  }
  template <class Enum>
  std::string text(Enum value) const {
    return names[static_cast<std::size_t>(value)];
  }
};

constexpr EnumNames<3> kStrictAlign{"strict alignment", {"off", "error", "copy"}};
constexpr EnumNames<3> kFallback{"fallback policy", {"silent", "warn", "error"}};
constexpr EnumNames<4> kPoison{"poison mode", {"off", "freed", "fresh", "all"}};
constexpr EnumNames<3> kStability{"stability", {"stable", "experimental", "internal"}};
constexpr EnumNames<3> kDeviceAssert{"device assert", {"now", "lasting", "late"}};
constexpr EnumNames<10> kVerdict{"verdict of a rule",
                                 {"refuse", "nondeterministic", "widen", "keep", "statistics",
                                  "fft", "sum_of_numbers", "assume", "by zero", "asserts"}};
constexpr EnumNames<npusim::kFaultKindCount> kFault{
    "fault kind", {"oom", "launch", "hang", "device", "slow", "link", "kill"}};

// bind_mode() binds get_NAME() and set_NAME(text) of a mode that is an enum.
template <std::size_t N, class Enum>
void bind_mode(py::module& m, const std::string& name, const EnumNames<N>& names,
               Enum (*get)() noexcept, void (*set)(Enum) noexcept) {
  m.def(("get_" + name).c_str(), [&names, get] { return names.text(get()); });
  m.def(("set_" + name).c_str(),
        [&names, set](const std::string& text) { set(static_cast<Enum>(names.parse(text))); });
}

py::dict counts(const std::vector<FallbackCount>& all) {
  py::dict out;
  for (const FallbackCount& count : all) out[py::str(count.op)] = count.calls;
  return out;
}

// A row: operator, verdict, condition, dtypes, text.
using PythonRule =
    std::tuple<std::string, std::string, std::string, std::vector<at::ScalarType>, std::string>;

void set_python_rules(const std::vector<PythonRule>& rows) {
  std::vector<CudaRule> all;
  all.reserve(rows.size());
  for (const auto& [op, verdict, when, dtypes, text] : rows) {
    CudaRule row{op, static_cast<CudaRule::Verdict>(kVerdict.parse(verdict)), when, 0, text};
    for (const at::ScalarType dtype : dtypes) row.dtypes |= dtype_bit(static_cast<int>(dtype));
    all.push_back(std::move(row));
  }
  const py::gil_scoped_release no_gil;
  set_cuda_rules(all);
}

py::dict widened() {
  py::dict out;
  for (const auto& [op, calls] : widened_calls()) out[py::str(op)] = calls;
  return out;
}

py::list knob_list() {
  py::list out;
  for (const npusim::Knob& knob : npusim::knobs()) {
    const npusim::KnobValue value = npusim::knob_value(knob);
    py::dict row;
    row["name"] = knob.name;
    row["default"] = knob.default_value;
    row["values"] = knob.values;
    row["doc"] = knob.doc;
    row["stability"] = kStability.text(knob.stability);
    row["value"] = value.text;
    row["origin"] = value.is_set ? "environment" : "default";
    out.append(row);
  }
  return out;
}

void inject(const std::string& kind, std::uint64_t nth, std::uint64_t every, double probability,
            std::uint64_t seed, int device, int rank, double factor, const std::string& name) {
  npusim::Fault fault;
  fault.kind = static_cast<npusim::FaultKind>(kFault.parse(kind));
  fault.at = nth;
  fault.every = every;
  fault.probability = probability;
  fault.seed = seed;
  fault.device = device;
  fault.rank = rank;
  fault.factor = factor;
  fault.name = name;
  translated([&] { npusim::inject_fault(fault); });
}

// The Python function that hears of host synchronisations: never destroyed, because another thread
// may be calling it while it is replaced. Guarded by the GIL.
py::object& python_sync_observer() {
  static auto* observer = new py::object;
  return *observer;
}

// The function returns None, or why the operation must not be; it may raise too.
void call_python_sync_observer(const char* what, bool hidden) {
  if (Py_IsInitialized() == 0) return;
  std::string refusal;
  {
    const py::gil_scoped_acquire gil;
    const py::object observer = python_sync_observer();
    if (!observer || observer.is_none()) return;
    try {
      const py::object answer = observer(what, hidden);
      if (!answer.is_none()) refusal = py::cast<std::string>(answer);
    } catch (py::error_already_set& error) {  // a form that crosses threads of the autograd engine
      error.restore();
      python_error carried;
      carried.persist();
      throw carried;
    }
  }
  TORCH_CHECK(refusal.empty(), refusal);
}

void set_python_sync_observer(py::object observer) {
  set_sync_observer(observer.is_none() ? nullptr : &call_python_sync_observer);
  python_sync_observer() = std::move(observer);
}

py::dict fault_counts() {
  const npusim::FaultCounts counted = npusim::fault_counts();
  py::dict out;
  for (std::size_t i = 0; i < npusim::kFaultKindCount; ++i) {
    out[kFault.names[i]] = counted.injected[i];
  }
  out["reported"] = counted.reported;
  return out;
}

}  // namespace

void bind_sim(py::module& m) {
  m.def("set_host_layers",
        [](std::int64_t backward_ns, std::int64_t library_ns, std::int64_t reduction_ns,
           std::int64_t call_ns, std::int64_t kernel_ns, std::int64_t input_ns) {
          set_host_layers({backward_ns, library_ns, reduction_ns, call_ns, kernel_ns, input_ns});
        });
  m.def("pass_graph_inputs",
        [](std::int64_t count) { npusim::pass_host_calls(npusim::HostCall::input, count); });
  m.def("host_time_ns", &npusim::host_now_ns);
  m.def("advance_host_time",
        [](std::int64_t ns) { translated([&] { npusim::advance_host_ns(ns); }); });
  m.def("advance_host_layer", [](std::int64_t ns) {
    translated([&] { npusim::advance_host_ns(ns, npusim::HostWork::layer); });
  });
  m.def("stream_time_ns", [](int device, npusim::StreamId id) {
    const int index = checked_device(static_cast<c10::DeviceIndex>(device));
    return translated([&] { return npusim::stream_from_id(index, id).done_at_ns(); });
  });

  m.def("inject_fault", &inject);
  m.def("clear_faults", &npusim::clear_faults);
  m.def("set_rank", &npusim::set_rank);
  m.def("set_thread_rank", &npusim::set_thread_rank);
  m.def("fault_counts", &fault_counts);

  m.def("knobs", &knob_list);
  m.def("memory_backing", [] { return translated([] { return npusim::memory_backing(); }); });

  m.def("fallback_counts", [] { return counts(fallback_counts()); });
  m.def("copied_result_counts", [] { return counts(copied_result_counts()); });
  m.def("reset_fallback_counts", [] {
    reset_fallback_counts();
    reset_copied_results();
  });
  bind_mode(m, "fallback_mode", kFallback, &fallback_mode, &set_fallback_mode);

  m.def("set_rules", &set_python_rules);
  m.def("set_cpu_only", &set_cpu_only);
  m.def("set_cpu_kernels", &set_cpu_kernels);
  m.def("adopt_cuda_kernels", &adopt_cuda_kernels);
  m.def("widened_calls", &widened);
  m.def("revive_devices", [] {
    std::vector<std::tuple<int, std::string, bool>> lost;
    for (auto& each : translated(&npusim::revive_devices)) {
      lost.emplace_back(each.device, std::move(each.text), each.told);
    }
    return lost;
  });
  bind_mode(m, "device_assert", kDeviceAssert, &device_assert, &set_device_assert);

  bind_mode(m, "strict_align", kStrictAlign, &strict_align, &set_strict_align);
  m.def("realigned_count", &realigned_count);
  m.def("set_sync_observer", &set_python_sync_observer);
  bind_mode(m, "poison", kPoison, &poison_mode, &set_poison_mode);
}

}  // namespace torch_npusim
