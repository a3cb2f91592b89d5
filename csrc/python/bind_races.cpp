// SPDX-License-Identifier: BSD-3-Clause
// The race detector's voice: what it finds goes to a Python function, which warns or raises.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>

#include "backend/races.h"
#include "csrc/errors.h"
#include "csrc/observers/host_accesses.h"
#include "csrc/observers/observed_operand.h"
#include "csrc/python/bindings.h"
#include "csrc/python/sites.h"
#include "csrc/runtime/device_allocator.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

py::dict access_dict(const npusim::RacingAccess& access) {
  py::dict out = site_dict(access.site);
  out["name"] = access.name;
  out["device"] = access.device;
  out["stream"] = access.stream;
  out["written"] = access.written;
  out["dtype"] = access.type;
  out["shape"] = access.sizes;
  out["sequence"] = access.sequence;
  return out;
}

py::dict race_dict(const npusim::Race& race) {
  constexpr const char* kMissing[] = {"wait_stream", "record_stream", "synchronize", "event"};
  py::dict allocation = site_dict(race.allocation_site);
  allocation["bytes"] = race.allocation_bytes;
  allocation["device"] = race.allocation_device;
  allocation["stream"] = race.allocation_stream;
  py::dict out;
  out["missing"] = kMissing[static_cast<std::size_t>(race.missing)];
  out["first"] = access_dict(race.first);
  out["second"] = access_dict(race.second);
  out["allocation"] = allocation;
  out["freed"] = site_dict(race.free_site);
  out["same_place"] = race.same_place;
  return out;
}

// What Python does with races; guarded by the GIL, never destroyed.
py::object& python_listener() {
  static auto* listener = new py::object;
  return *listener;
}

class Detector final : public npusim::RaceDetector {
 public:
  void after_command() override {
    if (C10_LIKELY(!has_races()) || Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire gil;
    const py::object listener = python_listener();
    if (!listener || listener.is_none()) return;
    try {
      py::list found;
      for (const npusim::Race& race : take_races()) found.append(race_dict(race));
      if (!found.empty()) listener(found);
    } catch (py::error_already_set& error) {  // a form that crosses threads of the autograd engine
      error.restore();
      python_error carried;
      carried.persist();
      throw carried;
    }
  }
};

Detector& detector() {
  static auto* made = new Detector;  // observers live as long as the process
  return *made;
}

std::atomic<unsigned long> g_main_thread{0};  // Python's, since the first watch_races()

// Called within an operator of the host, where nothing may be thrown: Python's main thread raises
// as soon as the operator has returned; a race that another thread found waits for its next
// command.
void deliver_soon() {
  if (!detector().has_races() || PyThread_get_thread_ident() != g_main_thread) return;
  Py_AddPendingCall(
      [](void*) -> int {
        try {
          detector().after_command();
          return 0;
        } catch (python_error& error) {
          error.restore();
          return -1;
        }
      },
      nullptr);
}

// What was allocated before the watch began.
void announce_live_blocks() {
  for (int device = 0; npusim::initialized() && device < npusim::device_count(); ++device) {
    const auto index = static_cast<c10::DeviceIndex>(device);
    for (const auto& segment : live_allocator(index).inspect().segments) {
      for (const npusim::alloc::BlockInfo& block : segment.blocks) {
        if (block.state != npusim::alloc::BlockState::allocated) continue;
        npusim::note_memory(npusim::MemoryKind::allocate, reinterpret_cast<void*>(block.address),
                            block.bytes, &npusim::stream_from_id(device, segment.stream),
                            (segment.pool.first << 32) | segment.pool.second);
      }
    }
  }
}

void watch_races(py::object listener) {
  const bool on = !listener.is_none();
  const py::object main_thread = py::module::import("threading").attr("main_thread")();
  g_main_thread = main_thread.attr("ident").cast<unsigned long>();
  python_listener() = std::move(listener);
  const py::gil_scoped_release no_gil;
  translated([&] {
    npusim::detach(detector());
    detector().forget();
    watch_host_accesses(on ? &deliver_soon : nullptr);
    want_sites(SiteUser::races, on);
    if (!on) return;
    npusim::attach(detector());
    announce_live_blocks();
    npusim::note_pinned_allocations();
  });
}

// The host reads pinned memory without an operator. `as_of` is 0 for a read of now, which raises
// here; or npusim::newest_record() when an array was made that goes now: nothing may be thrown, and
// Python's main thread raises as soon as it can. The last argument is for callbacks of weak
// references.
void tell_read_of_pinned(const at::Tensor& tensor, std::uint64_t as_of,
                         const py::object& /*gone*/) {
  if (!npusim::observed() || !tensor.is_cpu() || !tensor.has_storage()) return;
  if (!npusim::is_pinned(tensor.storage().data())) return;
  const DescribedOperand operand(*tensor.unsafeGetTensorImpl(), tensor.storage().data(),
                                 Use::reads);
  if (operand.get() == nullptr) return;
  npusim::note_host_access(as_of == 0 ? "Tensor.tolist()" : "an array of Tensor.numpy()",
                           *operand.get(), as_of);
  if (as_of == 0) return detector().after_command();
  deliver_soon();
}

}  // namespace

void bind_races(py::module& m) {
  m.def("watch_races", &watch_races, py::arg("listener").none(true));
  m.def("note_read_of_pinned", &tell_read_of_pinned, py::arg("tensor"), py::arg("as_of"),
        py::arg("gone") = py::none());
  m.def("newest_record", &npusim::newest_record);
  m.def("deliver_races", [] { detector().after_command(); });
  m.def("report_races_again", [] { detector().report_again(); });
}

}  // namespace torch_npusim
