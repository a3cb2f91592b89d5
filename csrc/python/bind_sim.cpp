// SPDX-License-Identifier: BSD-3-Clause
// Bindings of what only a simulator has: its clock, its faults, its knobs and its counters.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/errors.h"
#include "csrc/launch/alignment.h"
#include "csrc/launch/fallback_stats.h"
#include "csrc/launch/rules.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/host_sync.h"
#include "csrc/runtime/poison.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

// The words of an enum, in the order of its values.
template <std::size_t N>
struct Words {
  const char* what;
  std::array<const char*, N> words;

  std::size_t parse(const std::string& word) const {
    std::string accepted;
    for (std::size_t i = 0; i < N; ++i) {
      if (word == words[i]) return i;
      accepted += std::string(i == 0 ? "'" : ", '") + words[i] + "'";
    }
    throw py::value_error(std::string(what) + ": got '" + word + "', expected one of " + accepted);
  }
  template <class Enum>
  std::string text(Enum value) const {
    return words[static_cast<std::size_t>(value)];
  }
};

constexpr Words<3> kStrictAlign{"strict alignment", {"off", "error", "copy"}};
constexpr Words<3> kFallback{"fallback policy", {"silent", "warn", "error"}};
constexpr Words<4> kPoison{"poison mode", {"off", "freed", "fresh", "all"}};
constexpr Words<3> kStability{"stability", {"stable", "experimental", "internal"}};
constexpr Words<2> kDeviceAssert{"device assert", {"now", "late"}};
constexpr Words<8> kVerdict{"verdict of a rule",
                            {"refuse", "unavailable", "nondeterministic", "widen", "keep", "fft",
                             "sum_of_numbers", "asserts"}};
constexpr Words<npusim::kFaultKindCount> kFault{
    "fault kind", {"oom", "launch", "hang", "device", "slow", "link", "kill"}};

py::dict counts(const std::vector<FallbackCount>& all) {
  py::dict out;
  for (const FallbackCount& count : all) out[py::str(count.op)] = count.calls;
  return out;
}

// A row: operator, verdict, condition, dtypes, text.
using PythonRule =
    std::tuple<std::string, std::string, std::string, std::vector<at::ScalarType>, std::string>;

void set_python_rules(const std::vector<PythonRule>& rows) {
  std::vector<RuleRow> all;
  all.reserve(rows.size());
  for (const auto& [op, verdict, when, dtypes, text] : rows) {
    RuleRow row{op, static_cast<RuleRow::Verdict>(kVerdict.parse(verdict)), when, 0, text};
    for (const at::ScalarType dtype : dtypes) row.dtypes |= dtype_bit(static_cast<int>(dtype));
    all.push_back(std::move(row));
  }
  const py::gil_scoped_release no_gil;
  set_rules(all);
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
  npusim::FaultRule rule;
  rule.kind = static_cast<npusim::FaultKind>(kFault.parse(kind));
  rule.at = nth;
  rule.every = every;
  rule.probability = probability;
  rule.seed = seed;
  rule.device = device;
  rule.rank = rank;
  rule.factor = factor;
  rule.name = name;
  translated([&] { npusim::inject_fault(rule); });
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
    out[kFault.words[i]] = counted.injected[i];
  }
  out["reported"] = counted.reported;
  return out;
}

}  // namespace

void bind_sim(py::module& m) {
  m.def("host_time_ns", &npusim::host_now_ns);
  m.def("advance_host_time",
        [](std::int64_t ns) { translated([&] { npusim::advance_host_ns(ns); }); });
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
  m.def("get_fallback_policy", [] { return kFallback.text(fallback_policy()); });
  m.def("set_fallback_policy", [](const std::string& policy) {
    set_fallback_policy(static_cast<FallbackPolicy>(kFallback.parse(policy)));
  });

  m.def("set_rules", &set_python_rules);
  m.def("widened_calls", &widened);
  m.def("get_device_assert", [] { return kDeviceAssert.text(device_assert()); });
  m.def("set_device_assert", [](const std::string& when) {
    set_device_assert(static_cast<DeviceAssert>(kDeviceAssert.parse(when)));
  });

  m.def("get_strict_align", [] { return kStrictAlign.text(strict_align()); });
  m.def("set_strict_align", [](const std::string& mode) {
    set_strict_align(static_cast<StrictAlign>(kStrictAlign.parse(mode)));
  });
  m.def("realigned_count", &realigned_count);
  m.def("set_sync_observer", &set_python_sync_observer);
  m.def("get_poison", [] { return kPoison.text(poison_mode()); });
  m.def("set_poison", [](const std::string& mode) {
    set_poison_mode(static_cast<npusim::PoisonMode>(kPoison.parse(mode)));
  });
}

}  // namespace torch_npusim
