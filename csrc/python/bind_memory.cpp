// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the device allocators and the pinned host allocator.
#include <pybind11/stl.h>

#include <algorithm>

#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/python/memory_history.h"
#include "csrc/runtime/allocator_config.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/memory_pools.h"
#include "csrc/runtime/out_of_memory_observers.h"
#include "csrc/runtime/pinned_allocator.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

npusim::alloc::LiveAllocator& allocator_at(int device) {
  return live_allocator(static_cast<c10::DeviceIndex>(device));
}

py::dict memory_stats(int device) {
  const npusim::alloc::LiveAllocator& allocator = allocator_at(device);
  py::dict out;
  const auto put = [&out](const std::string& name, std::int64_t value) {
    out[py::str(name)] = value;
  };
  npusim::alloc::for_each_field(allocator.stats(), put);
  for (const npusim::alloc::PoolInfo& pool : allocator.pools()) {
    const std::string name = "reserved_bytes_by_private_pools." + std::to_string(pool.id.first) +
                             "_" + std::to_string(pool.id.second);
    npusim::alloc::for_each_field(name, pool.reserved_bytes, put);
  }
  return out;
}

std::uintptr_t raw_alloc(std::size_t bytes, int device, npusim::StreamId id) {
  npusim::Stream& stream =
      translated([&]() -> npusim::Stream& { return npusim::stream_from_id(device, id); });
  const auto* block = allocate_block(bytes, static_cast<c10::DeviceIndex>(device), &stream);
  return block == nullptr ? 0 : block->address;
}

void raw_delete(std::uintptr_t address) {
  if (address == 0) return;
  const int device = npusim::device_of(reinterpret_cast<const void*>(address));
  TORCH_CHECK(device >= 0, "invalid device pointer: 0x", std::hex, address,
              " is not an address of an npusim device");
  if (npusim::alloc::Block* block = block_at(address)) return free_block_deleter(block);
  std::string why;
  allocator_at(device).free_address(address, &why);
  TORCH_CHECK(false, why);
}

py::dict host_memory_stats() {
  const at::HostStats stats = pinned_allocator()->get_stats();
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

// The segments of a private pool of a device, for restore_pool().
struct PoolCheckpoint {
  npusim::alloc::PoolId pool;
  std::vector<npusim::alloc::SegmentInfo> segments;
};

PoolCheckpoint pool_checkpoint(int device, std::pair<std::uint64_t, std::uint64_t> pool) {
  PoolCheckpoint out{{pool.first, pool.second}, allocator_at(device).inspect().segments};
  std::erase_if(out.segments, [&](const auto& segment) { return segment.pool != out.pool; });
  return out;
}

// Storages whose block goes stop owning it; others begin to own theirs.
void restore_pool(int device, const PoolCheckpoint& then, const std::vector<std::intptr_t>& stale,
                  const std::vector<std::intptr_t>& owners) {
  auto* allocator = dynamic_cast<npusim::alloc::CachingAllocator*>(&allocator_at(device));
  TORCH_CHECK(allocator != nullptr, "a placement policy has no checkpoints of its pools");
  const auto storage = [](std::intptr_t pointer) {
    return reinterpret_cast<c10::StorageImpl*>(pointer);  // NOLINT: as CUDA's own binding
  };
  for (const std::intptr_t pointer : owners) {
    TORCH_CHECK(storage(pointer)->data_ptr().get_context() == nullptr,
                "a storage that is to own its memory owns some already");
  }
  const std::vector<npusim::alloc::Address> freed =
      translated([&] { return allocator->restore_pool(then.pool, then.segments); });
  for (const std::intptr_t pointer : stale) {
    c10::StorageImpl& impl = *storage(pointer);
    void* const data = impl.mutable_data();
    const auto address = reinterpret_cast<npusim::alloc::Address>(data);
    if (std::find(freed.begin(), freed.end(), address) == freed.end()) continue;
    c10::DataPtr owner = impl.set_data_ptr(c10::DataPtr(data, impl.device()));
    owner.release_context();
  }
  for (const std::intptr_t pointer : owners) {
    c10::StorageImpl& impl = *storage(pointer);
    void* const data = impl.mutable_data();
    const auto address = reinterpret_cast<npusim::alloc::Address>(data);
    npusim::alloc::Block* block = block_at(address);
    TORCH_CHECK(block != nullptr && block->address == address &&
                    block->state == npusim::alloc::BlockState::allocated,
                "a storage that is to own its memory is none of the checkpoint");
    impl.set_data_ptr_noswap(c10::DataPtr(data, block, &free_block_deleter, impl.device()));
  }
}

void bind_pools(py::module& m) {
  py::class_<PluggableFunctions>(m, "_PluggableFunctions")
      .def(py::init([](std::uintptr_t alloc, std::uintptr_t free) {
        return PluggableFunctions{reinterpret_cast<decltype(PluggableFunctions::alloc)>(alloc),
                                  reinterpret_cast<decltype(PluggableFunctions::free)>(free)};
      }));
  py::class_<PrivatePool, std::shared_ptr<PrivatePool>>(m, "_PrivatePool")
      .def(py::init(&make_pool))
      .def(
          "id",
          [](const PrivatePool& pool) { return py::make_tuple(pool.id().first, pool.id().second); })
      .def("device", &PrivatePool::device)
      .def("use_count", &PrivatePool::use_count);
  m.def("begin_allocating_from", [](const PrivatePool& pool, c10::DeviceIndex device) {
    begin_allocating_from(pool, device);
  });
  m.def("begin_allocating_from_on_stream", [](const PrivatePool& pool, c10::DeviceIndex device) {
    begin_allocating_from(pool, device, &npusim::current_stream(checked_device(device)));
  });
  m.def("find_pool",
        [](std::uint64_t first, std::uint64_t second) { return find_pool({first, second}); });
  py::class_<PoolCheckpoint>(m, "_PoolCheckpoint");
  m.def("pool_checkpoint", &pool_checkpoint);
  m.def("restore_pool", &restore_pool);
  m.def("end_allocating_from", &end_allocating_from);
  m.def("change_allocator", py::overload_cast<const std::string&>(&change_allocator));
  m.def("change_allocator", py::overload_cast<const PluggableFunctions&>(&change_allocator));
  m.def("allocator_name", &allocator_name);
  m.def("set_allocator_settings", &set_allocator_settings);
  m.def("allocator_settings", &allocator_settings);
  m.def("allocator_choice", &allocator_choice);
}

void bind_library_memory(py::module& m) {
  m.def("cublas_workspace_bytes", &cublas_workspace_bytes);
  m.def("choose_cublas_workspace_bytes", &choose_cublas_workspace_bytes);
  m.def("clear_cublas_workspaces", [] { clear_cublas_workspaces(); });
  m.def("is_library_memory", [](std::uintptr_t address) {
    return is_library_memory(reinterpret_cast<const void*>(address));
  });
  m.def("cublas_workspaces", [] {
    py::list out;
    for (const auto& [device, address] : cublas_workspaces()) {
      out.append(py::make_tuple(device, reinterpret_cast<std::uintptr_t>(address)));
    }
    return out;
  });
}

// Errors that are none of device memory, or that another cause explains, keep the allocator's
// words.
void set_adviser(const py::function& adviser) {
  const py::handle kept = adviser.inc_ref();
  set_out_of_memory_adviser([kept](const npusim::alloc::OutOfMemoryReport& report,
                                   c10::DeviceIndex device) -> std::string {
    using Cause = npusim::alloc::OutOfMemoryReport::Cause;
    const bool of_device = report.cause == Cause::device_full || report.cause == Cause::over_limit;
    if (!of_device || Py_IsInitialized() == 0) return "";
    const py::gil_scoped_acquire gil;
    try {
      py::dict oom;
      oom["requested_bytes"] = report.requested_bytes;
      oom["segment_bytes"] = report.segment_bytes;
      oom["allocated_bytes"] = report.allocated_bytes;
      oom["reserved_bytes"] = report.reserved_bytes;
      oom["pending_bytes"] = report.pending_bytes;
      oom["cached_bytes"] = report.cached_bytes;
      oom["private_cached_bytes"] = report.private_cached_bytes;
      oom["largest_free_bytes"] = report.largest_free_bytes;
      oom["free_bytes"] = report.free_bytes;
      oom["total_bytes"] = report.total_bytes;
      oom["allowed_bytes"] = report.allowed_bytes;
      oom["is_private"] = current_pool(device) != npusim::alloc::PoolId{};
      return kept(oom, static_cast<int>(device)).cast<std::string>();
    } catch (const std::exception&) {
      return "";
    }
  });
}

}  // namespace

void bind_memory(py::module& m) {
  bind_pools(m);
  bind_library_memory(m);
  m.def("memory_stats", &memory_stats);
  m.def("memory_info", [](int device) {
    const c10::DeviceIndex index = checked_device(static_cast<c10::DeviceIndex>(device));
    const npusim::alloc::MemoryInfo info = device_memory_info(index);
    return std::make_pair(info.free_bytes, info.total_bytes);
  });
  m.def("largest_free_block", [](int device) { return allocator_at(device).largest_free_block(); });
  m.def("set_out_of_memory_adviser", &set_adviser);
  m.def("empty_cache", [] { release_cached_memory(); }, py::call_guard<py::gil_scoped_release>());
  m.def("reset_peak_memory_stats", [](int device) { allocator_at(device).reset_peak_stats(); });
  m.def("reset_accumulated_memory_stats",
        [](int device) { allocator_at(device).reset_accumulated_stats(); });
  m.def("set_memory_fraction", [](int device, double fraction) {
    translated([&] { allocator_at(device).set_memory_fraction(fraction); });
  });
  m.def("get_memory_fraction", [](int device) { return allocator_at(device).memory_fraction(); });
  m.def("memory_snapshot", [](std::pair<std::uint64_t, std::uint64_t> pool, bool with_traces) {
    return memory_snapshot({pool.first, pool.second}, with_traces ? Traces::torchs : Traces::none);
  });
  m.def("whole_memory_history", [] { return memory_snapshot({}, Traces::whole); });
  m.def("record_memory_history", &record_memory_history);
  m.def("newest_allocation", &newest_allocation);
  m.def("live_blocks", &live_blocks);
  m.def("allocation_frames", &allocation_frames);
  m.def("caching_allocator_alloc", &raw_alloc);
  m.def("caching_allocator_delete", &raw_delete);
  m.def("host_memory_stats", &host_memory_stats);
  m.def("reset_peak_host_memory_stats", [] { pinned_allocator()->reset_peak_stats(); });
  m.def("reset_accumulated_host_memory_stats",
        [] { pinned_allocator()->reset_accumulated_stats(); });
  m.def("empty_host_cache", [] { pinned_allocator()->empty_cache(); });
}

}  // namespace torch_npusim
