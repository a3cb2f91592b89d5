// SPDX-License-Identifier: BSD-3-Clause
// The observer's records as Python tuples: for whoever checks from the outside what the devices and
// the race detector say.
#include <pybind11/stl.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/observer.h"
#include "csrc/errors.h"
#include "csrc/python/bindings.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

struct Touched {
  npusim::Address first;
  bool written;
  std::uint32_t element_bytes;
  std::vector<std::int64_t> sizes, strides;
};

// One record of any kind; what a kind does not have is 0.
struct Logged {
  const char* kind = "";
  std::string name;
  npusim::Cost cost;
  std::optional<std::pair<int, npusim::StreamId>> stream;
  int device = -1;
  std::uintptr_t event = 0;
  std::uint64_t version = 0;
  npusim::Address address = 0;
  std::size_t bytes = 0;
  std::uint64_t pool = 0;
  std::vector<Touched> operands;
};

// In the order of OrderKind; the kinds behind these order nothing.
const char* name_of(npusim::OrderKind kind) {
  constexpr std::array kNames{"event_record", "event_block", "event_wait",    "event_end",
                              "stream_wait",  "device_wait", "allocator_wait"};
  const auto i = static_cast<std::size_t>(kind);
  return i < kNames.size() ? kNames[i] : "other";
}

const char* name_of(npusim::MemoryKind kind) {
  constexpr const char* kNames[] = {"allocate", "free", "record_stream", "pinned_allocate",
                                    "pinned_free"};
  return kNames[static_cast<std::size_t>(kind)];
}

// Keeps everything that it hears until it is taken: for programs of a few thousand commands.
class EventLog final : public npusim::Observer {
 public:
  void on_command(const npusim::CommandRecord& record,
                  std::span<const npusim::Operand> operands) noexcept override {
    Logged& entry = add("command", &record.stream);
    entry.name = record.info.name;
    entry.cost = record.cost;
    copy(entry, operands);
  }
  void on_host_access(const npusim::HostAccessRecord& record,
                      std::span<const npusim::Operand> operands) noexcept override {
    Logged& entry = add("host_access", nullptr);
    entry.name = record.name;
    copy(entry, operands);
  }
  void on_order(const npusim::OrderRecord& record) noexcept override {
    Logged& entry = add(name_of(record.kind), record.stream);
    entry.device = record.device;
    entry.event = reinterpret_cast<std::uintptr_t>(record.event);
    entry.version = record.version;
  }
  void on_memory(const npusim::MemoryRecord& record) noexcept override {
    Logged& entry = add(name_of(record.kind), record.stream);
    entry.address = record.address;
    entry.bytes = record.bytes;
    entry.pool = record.pool;
  }

  std::vector<Logged> take() {
    std::vector<Logged> taken;
    const std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(entries_);
    return taken;
  }

 private:
  // Records come one at a time, under the observers' lock; the mutex is for take().
  Logged& add(const char* kind, const npusim::Stream* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Logged& entry = entries_.emplace_back();
    entry.kind = kind;
    if (stream != nullptr) entry.stream.emplace(stream->device(), stream->id());
    return entry;
  }
  static void copy(Logged& entry, std::span<const npusim::Operand> operands) {
    for (const npusim::Operand& operand : operands) {
      entry.operands.push_back({operand.first,
                                operand.written,
                                operand.element_bytes,
                                {operand.sizes.begin(), operand.sizes.end()},
                                {operand.strides.begin(), operand.strides.end()}});
    }
  }

  std::mutex mutex_;
  std::vector<Logged> entries_;
};

EventLog& event_log() {
  static auto* made = new EventLog;  // observers live as long as the process
  return *made;
}

py::dict as_dict(const Logged& entry) {
  py::list operands;
  for (const Touched& one : entry.operands) {
    operands.append(
        py::make_tuple(one.first, one.written, one.element_bytes, one.sizes, one.strides));
  }
  py::dict out;
  out["kind"] = entry.kind;
  out["name"] = entry.name;
  out["flops"] = entry.cost.flops;
  out["moved"] = entry.cost.bytes;
  out["stream"] = entry.stream;
  out["device"] = entry.device;
  out["event"] = entry.event;
  out["version"] = entry.version;
  out["address"] = entry.address;
  out["bytes"] = entry.bytes;
  out["pool"] = entry.pool;
  out["operands"] = operands;
  return out;
}

py::list take_event_log() {
  translated([] { npusim::detach(event_log()); });
  py::list out;
  for (const Logged& entry : event_log().take()) out.append(as_dict(entry));
  return out;
}

}  // namespace

void bind_event_log(py::module& m) {
  m.def("start_event_log", [] {
    event_log().take();
    translated([] { npusim::attach(event_log()); });
  });
  m.def("take_event_log", &take_event_log);
}

}  // namespace torch_npusim
