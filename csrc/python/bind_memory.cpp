// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the device allocators and the pinned host allocator.
#include <pybind11/stl.h>

#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/python/memory_history.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/host_allocator.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

npusim::alloc::CachingAllocator& allocator_at(int device) {
  return caching_allocator(static_cast<c10::DeviceIndex>(device));
}

py::dict stat_dict(const npusim::alloc::Stat& stat) {
  py::dict out;
  out["current"] = stat.current;
  out["peak"] = stat.peak;
  out["allocated"] = stat.allocated;
  out["freed"] = stat.freed;
  return out;
}

py::dict stat_dict(const npusim::alloc::StatArray& stats) {
  using npusim::alloc::PoolKind;
  py::dict out;
  out["all"] = stat_dict(stats[PoolKind::all]);
  out["small_pool"] = stat_dict(stats[PoolKind::small_pool]);
  out["large_pool"] = stat_dict(stats[PoolKind::large_pool]);
  return out;
}

py::dict memory_stats(int device) {
  const npusim::alloc::Stats stats = allocator_at(device).stats();
  py::dict out;
  out["allocation"] = stat_dict(stats.allocation);
  out["segment"] = stat_dict(stats.segment);
  out["active"] = stat_dict(stats.active);
  out["inactive_split"] = stat_dict(stats.inactive_split);
  out["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  out["reserved_bytes"] = stat_dict(stats.reserved_bytes);
  out["active_bytes"] = stat_dict(stats.active_bytes);
  out["inactive_split_bytes"] = stat_dict(stats.inactive_split_bytes);
  out["requested_bytes"] = stat_dict(stats.requested_bytes);
  out["oversize_allocations"] = stat_dict(stats.oversize_allocations);
  out["oversize_segments"] = stat_dict(stats.oversize_segments);
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  out["num_sync_all_streams"] = stats.num_sync_all_streams;
  out["num_device_alloc"] = stats.num_device_alloc;
  out["num_device_free"] = stats.num_device_free;
  out["max_split_size"] = stats.max_split_bytes;
  return out;
}

std::uintptr_t raw_alloc(std::size_t bytes, int device, npusim::StreamId stream) {
  npusim::alloc::OutOfMemoryReport report;
  npusim::alloc::CachingAllocator& allocator = allocator_at(device);
  const auto* block = translated([&] {
    npusim::stream_from_id(device, stream);  // raises for a stream that does not exist
    return allocator.malloc(bytes, stream, &report, gather_context());
  });
  TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr || bytes == 0,
                   npusim::alloc::format_out_of_memory(report, "NPUSIM", device));
  return block == nullptr ? 0 : block->address;
}

void raw_delete(std::uintptr_t address) {
  if (address == 0) return;
  const int device = npusim::device_of(reinterpret_cast<const void*>(address));
  TORCH_CHECK(device >= 0, "invalid device pointer: 0x", std::hex, address,
              " is not an address of an npusim device");
  std::string why;
  const auto status = allocator_at(device).free_address(address, &why);
  TORCH_CHECK(status == npusim::alloc::FreeStatus::ok, why);
}

py::dict host_memory_stats() {
  const at::HostStats stats = host_allocator()->get_stats();
  py::dict out;
  const auto put = [&](const char* name, const c10::CachingAllocator::Stat& stat) {
    const std::string prefix = name;
    out[py::str(prefix + ".current")] = stat.current;
    out[py::str(prefix + ".peak")] = stat.peak;
    out[py::str(prefix + ".allocated")] = stat.allocated;
    out[py::str(prefix + ".freed")] = stat.freed;
  };
  put("allocations", stats.allocations);
  put("allocated_bytes", stats.allocated_bytes);
  put("active_requests", stats.active_requests);
  put("active_bytes", stats.active_bytes);
  out["num_host_alloc"] = stats.num_host_alloc;
  out["num_host_free"] = stats.num_host_free;
  return out;
}

}  // namespace

void bind_memory(py::module& m) {
  m.def("memory_stats", &memory_stats);
  m.def("memory_info", [](int device) {
    const int index = checked_device(static_cast<c10::DeviceIndex>(device));
    const npusim::MemoryInfo info = translated([&] { return npusim::memory_info(index); });
    return std::make_pair(info.free_bytes, info.total_bytes);
  });
  m.def("allocator_config", [](int device) { return config_dict(allocator_at(device).config()); });
  m.def("largest_free_block", [](int device) { return allocator_at(device).largest_free_block(); });
  m.def("empty_cache", &release_cached_memory, py::call_guard<py::gil_scoped_release>());
  m.def("reset_peak_memory_stats", [](int device) { allocator_at(device).reset_peak_stats(); });
  m.def("reset_accumulated_memory_stats",
        [](int device) { allocator_at(device).reset_accumulated_stats(); });
  m.def("set_memory_fraction", [](int device, double fraction) {
    translated([&] { allocator_at(device).set_memory_fraction(fraction); });
  });
  m.def("get_memory_fraction", [](int device) { return allocator_at(device).memory_fraction(); });
  m.def("memory_snapshot", &memory_snapshot);
  m.def("record_memory_history", &record_memory_history);
  m.def("newest_allocation", &newest_allocation);
  m.def("live_blocks", &live_blocks);
  m.def("allocation_frames", &allocation_frames);
  m.def("caching_allocator_alloc", &raw_alloc);
  m.def("caching_allocator_delete", &raw_delete);
  m.def("host_memory_stats", &host_memory_stats);
  m.def("reset_peak_host_memory_stats", [] { host_allocator()->reset_peak_stats(); });
  m.def("reset_accumulated_host_memory_stats", [] { host_allocator()->reset_accumulated_stats(); });
  m.def("empty_host_cache", [] { host_allocator()->empty_cache(); });
}

}  // namespace torch_npusim
