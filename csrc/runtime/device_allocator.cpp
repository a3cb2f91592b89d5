// SPDX-License-Identifier: BSD-3-Clause
// The one place that knows both the allocator and the device.
#include "csrc/runtime/device_allocator.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "csrc/errors.h"
#include "csrc/runtime/allocator_config.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/device_provider.h"
#include "csrc/runtime/memory_pools.h"
#include "csrc/runtime/poison.h"

namespace torch_npusim {

namespace {

using npusim::alloc::Block;
using npusim::alloc::LiveAllocator;

struct DeviceMemory {
  explicit DeviceMemory(c10::DeviceIndex device)
      : provider(device), allocator(make_allocator(provider, device)) {}
  DeviceProvider provider;
  std::unique_ptr<LiveAllocator> allocator;
};

std::vector<std::unique_ptr<DeviceMemory>>& all_memory() {
  // Never destroyed: tensors may be freed after main() has returned.
  static auto* memory = [] {
    auto made = std::make_unique<std::vector<std::unique_ptr<DeviceMemory>>>();
    for (int i = 0; i < npusim::device_count(); ++i) {
      made->push_back(std::make_unique<DeviceMemory>(static_cast<c10::DeviceIndex>(i)));
    }
    return made.release();
  }();
  return *memory;
}

std::atomic<ContextGatherer> g_gatherer{nullptr};

void report_to_profiler(const Block& block, int64_t bytes, c10::DeviceIndex device) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  const npusim::alloc::Stats stats = block.owner->stats();
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(block.address), bytes,
                                   static_cast<std::size_t>(stats.allocated_bytes[0].current),
                                   static_cast<std::size_t>(stats.reserved_bytes[0].current),
                                   c10::Device(c10::kPrivateUse1, device));
}

[[noreturn]] void throw_out_of_memory(const npusim::alloc::OutOfMemoryReport& report,
                                      c10::DeviceIndex device) {
  if (c10::memoryProfilingEnabled()) {
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(report.requested_bytes),
                                     report.allocated_bytes, report.reserved_bytes,
                                     c10::Device(c10::kPrivateUse1, device));
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false,
                   npusim::alloc::format_out_of_memory(report, "NPUSIM", device));
}

c10::CachingAllocator::Stat to_c10(const npusim::alloc::Stat& stat) {
  c10::CachingAllocator::Stat out;
  out.current = stat.current;
  out.peak = stat.peak;
  out.allocated = stat.allocated;
  out.freed = stat.freed;
  return out;
}

c10::CachingAllocator::StatArray to_c10(const npusim::alloc::StatArray& stats) {
  c10::CachingAllocator::StatArray out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_c10(stats[i]);
  return out;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return allocate_on_device(bytes, checked_device(static_cast<c10::DeviceIndex>(-1)));
  }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    translated([&] {
      npusim::copy(dest, src, bytes, npusim::current_stream(npusim::device_of(dest)),
                   /*blocking=*/false);
    });
  }

  bool initialized() override { return npusim::initialized(); }
  void emptyCache(c10::MempoolId_t pool) override {
    release_cached_memory({pool.first, pool.second});
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (Block* block = block_of(data)) {
      npusim::Stream& used_on = backend_stream(stream);
      translated([&] { block->owner->record_stream(block, used_on.id()); });
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const LiveAllocator& allocator = live_allocator(device);
    const npusim::alloc::Stats stats = allocator.stats();
    c10::CachingDeviceAllocator::DeviceStats out;
    for (const npusim::alloc::PoolInfo& pool : allocator.pools()) {
      out.reserved_bytes_by_private_pools[{pool.id.first, pool.id.second}] =
          to_c10(pool.reserved_bytes);
    }
    out.allocation = to_c10(stats.allocation);
    out.segment = to_c10(stats.segment);
    out.active = to_c10(stats.active);
    out.inactive_split = to_c10(stats.inactive_split);
    out.allocated_bytes = to_c10(stats.allocated_bytes);
    out.reserved_bytes = to_c10(stats.reserved_bytes);
    out.active_bytes = to_c10(stats.active_bytes);
    out.inactive_split_bytes = to_c10(stats.inactive_split_bytes);
    out.requested_bytes = to_c10(stats.requested_bytes);
    out.num_alloc_retries = stats.num_alloc_retries;
    out.num_ooms = stats.num_ooms;
    out.oversize_allocations = to_c10(stats.oversize_allocations);
    out.oversize_segments = to_c10(stats.oversize_segments);
    out.num_sync_all_streams = stats.num_sync_all_streams;
    out.num_device_alloc = stats.num_device_alloc;
    out.num_device_free = stats.num_device_free;
    out.max_split_size = stats.max_split_bytes;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    live_allocator(device).reset_accumulated_stats();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    live_allocator(device).reset_peak_stats();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const c10::DeviceIndex index = checked_device(device);
    const npusim::MemoryInfo info = translated([&] { return npusim::memory_info(index); });
    return {info.free_bytes, info.total_bytes};
  }
};

}  // namespace

c10::DeviceAllocator* device_allocator() noexcept {
  static auto* allocator = new Allocator;  // never destroyed, as the memory behind it
  return allocator;
}

LiveAllocator& live_allocator(c10::DeviceIndex device) {
  const c10::DeviceIndex index = checked_device(device);
  return translated([&]() -> LiveAllocator& {
    return *all_memory()[static_cast<std::size_t>(index)]->allocator;
  });
}

Block* allocate_block(std::size_t bytes, c10::DeviceIndex device) {
  LiveAllocator& allocator = live_allocator(device);
  if (bytes == 0) return nullptr;
  npusim::alloc::OutOfMemoryReport report;
  Block* block = translated([&] {
    return allocator.malloc(bytes, npusim::current_stream(device).id(), &report, gather_context(),
                            current_pool(device));
  });
  if (C10_UNLIKELY(block == nullptr)) throw_out_of_memory(report, device);
  poison_fresh(reinterpret_cast<void*>(block->address), block->bytes);
  report_to_profiler(*block, static_cast<int64_t>(block->bytes), device);
  return block;
}

c10::DataPtr allocate_on_device(std::size_t bytes, c10::DeviceIndex device) {
  Block* block = allocate_block(bytes, device);
  const c10::Device where(c10::kPrivateUse1, device);
  if (block == nullptr) return {nullptr, where};
  return {reinterpret_cast<void*>(block->address), block, &free_block_deleter, where};
}

void free_block_deleter(void* context) noexcept {
  if (npusim::in_bad_fork()) return;  // the parent's block: not this process's to free
  auto* block = static_cast<Block*>(context);
  try {
    auto* address = reinterpret_cast<void*>(block->address);
    poison_freed(address, block->bytes);
    report_to_profiler(*block, -static_cast<int64_t>(block->bytes),
                       static_cast<c10::DeviceIndex>(npusim::device_of(address)));
    block->owner->free(block, gather_context());
  } catch (const std::exception& error) {
    // A deleter has nobody to throw to; this is a bug of ours and must be seen.
    TORCH_WARN("npusim: freeing a block failed: ", error.what());
  }
}

Block* block_of(const c10::DataPtr& data) noexcept {
  return data.get_deleter() == &free_block_deleter ? static_cast<Block*>(data.get_context())
                                                   : nullptr;
}

void release_cached_memory(npusim::alloc::PoolId pool) {
  if (!npusim::initialized()) return;
  for (int i = 0; i < npusim::device_count(); ++i) {
    LiveAllocator& allocator = live_allocator(static_cast<c10::DeviceIndex>(i));
    translated([&] { allocator.empty_cache(pool); });
  }
}

npusim::alloc::ContextId gather_context() {
  const ContextGatherer gatherer = g_gatherer.load(std::memory_order_relaxed);
  return C10_LIKELY(gatherer == nullptr) ? 0 : gatherer();
}

void set_context_gatherer(ContextGatherer gatherer) noexcept {
  g_gatherer.store(gatherer, std::memory_order_relaxed);
}

void register_device_allocator() { c10::SetAllocator(c10::kPrivateUse1, device_allocator()); }

}  // namespace torch_npusim
