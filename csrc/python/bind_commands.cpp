// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the tally of commands: how often each ran and what it cost, by name; and of commands
// whose bodies are Python's.
#include <c10/core/GradMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/observer.h"
#include "csrc/errors.h"
#include "csrc/python/bindings.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

constexpr std::array<const char*, npusim::kPrecisionCount> kPrecisions = {"f32", "f64",   "f16",
                                                                          "i8",  "other", "tf32"};

struct Row {
  std::int64_t calls = 0;
  double bytes = 0;
  double largest = 0;  // bytes of a call
  double flops = 0;
  std::int64_t modelled_ns = 0;
  std::array<double, npusim::kPrecisionCount> products{};  // of flops
  double again = 0;                                        // of products
};

bool is_product(npusim::Work work) {
  return work != npusim::Work::streaming && work != npusim::Work::normalization &&
         work != npusim::Work::strided;
}

// Whether a backward pass computes a checkpointed part again: gradients are on only there, unless
// the pass keeps its graph. Commands are told on the thread that launches them.
bool is_computed_again() {
  return c10::GradMode::is_enabled() && torch::autograd::get_current_graph_task_id() >= 0 &&
         !torch::autograd::get_current_graph_task_keep_graph();
}

using Rows = std::map<std::string_view, Row>;

// The tallies that are open: each counts every command from its begin to its end.
class CommandTallies final : public npusim::Observer {
 public:
  void on_command(const npusim::CommandRecord& record,
                  std::span<const npusim::Operand>) noexcept override {
    const std::lock_guard lock(mutex_);
    for (auto& [number, rows] : open_) add(record, rows[record.info.name]);
  }

  // Returns the number of the new tally.
  std::int64_t begin() {
    const std::lock_guard lock(mutex_);
    open_.try_emplace(++newest_);
    return newest_;
  }

  Rows end(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    auto ended = open_.extract(number);
    NPUSIM_CHECK(!ended.empty(), "there is no open tally ", number);
    return std::move(ended.mapped());
  }

  bool is_empty() {
    const std::lock_guard lock(mutex_);
    return open_.empty();
  }

 private:
  static void add(const npusim::CommandRecord& record, Row& row) {
    row.calls += 1;
    row.bytes += record.cost.bytes;
    row.largest = std::max(row.largest, record.cost.bytes);
    row.flops += record.cost.flops;
    row.modelled_ns += record.end_ns - record.start_ns;
    if (!is_product(record.cost.work)) return;
    row.products[static_cast<std::size_t>(record.cost.precision)] += record.cost.flops;
    if (is_computed_again()) row.again += record.cost.flops;
  }

  std::mutex mutex_;
  std::int64_t newest_ = 0;
  std::map<std::int64_t, Rows> open_;  // names live as long as the process
};

CommandTallies& tallies() {
  static auto* const made = new CommandTallies;  // leaked: observers live as long as the process
  return *made;
}

py::dict as_dict(const Rows& rows) {
  py::dict out;
  for (const auto& [name, row] : rows) {
    py::dict entry;
    entry["calls"] = row.calls;
    entry["bytes"] = row.bytes;
    entry["largest"] = row.largest;
    entry["flops"] = row.flops;
    entry["modelled_ns"] = row.modelled_ns;
    for (std::size_t i = 0; i < kPrecisions.size(); ++i) entry[kPrecisions[i]] = row.products[i];
    entry["again"] = row.again;
    out[py::str(std::string(name))] = entry;
  }
  return out;
}

// What a body of Python's returns: bytes, operations, and (address, bytes, written) of what it
// touched.
using Done = std::tuple<double, double, std::vector<std::tuple<std::intptr_t, std::size_t, bool>>>;

const char* kept_name(const std::string& name) {
  static auto* const names = new std::set<std::string>;  // guarded by the GIL
  return names->insert(name).first->c_str();
}

// The addresses that `body` dereferences are those for kernels: user addresses + kernel_delta().
void launch_python(int device, const std::string& name, const py::function& body) {
  const npusim::CommandInfo info{kept_name(name), npusim::CommandKind::kernel, {}};
  translated([&] {
    npusim::initialize();
    npusim::check_device(device);
    npusim::submit(npusim::current_stream(device), info, [&] {
      const auto [bytes, flops, touched] = body().cast<Done>();
      for (const auto& [first, size, written] : touched) {
        npusim::note_range(reinterpret_cast<const void*>(first), size, written);
      }
      npusim::recharge({flops, bytes, npusim::Precision::f32});
    });
  });
}

// Occupies the current stream of the current device for that long, charged as a kernel that moves
// as many bytes as the device can meanwhile.
void sleep(double ns) {
  translated([&] {
    npusim::initialize();
    npusim::Stream& stream = npusim::current_stream(npusim::current_device());
    const auto kernel = npusim::CommandKind::kernel;
    const npusim::CostRates& rates = stream.rates();
    const auto floor = static_cast<double>(rates.floor_ns[static_cast<std::size_t>(kernel)]);
    const double bytes = (ns - floor) / rates.ns_per_byte[static_cast<std::size_t>(kernel)][0];
    npusim::submit(stream, {"npusim::sleep", kernel, {0, std::max(0.0, bytes)}}, [] {});
  });
}

}  // namespace

void bind_commands(py::module& m) {
  m.def("launch_python", &launch_python);
  m.def("sleep", &sleep, py::call_guard<py::gil_scoped_release>());
  m.def("kernel_delta", [] {
    translated([] { npusim::initialize(); });
    return npusim::g_address_map.kernel_delta.load();
  });
  m.def("begin_command_tally", [] {
    std::int64_t number = 0;
    translated([&] {
      npusim::attach(tallies());
      number = tallies().begin();
    });
    return number;
  });
  m.def("end_command_tally", [](std::int64_t number) {
    Rows rows;
    translated([&] {
      rows = tallies().end(number);
      if (tallies().is_empty()) npusim::detach(tallies());
    });
    return as_dict(rows);
  });
}

}  // namespace torch_npusim
