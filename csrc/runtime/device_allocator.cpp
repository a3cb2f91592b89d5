// SPDX-License-Identifier: BSD-3-Clause
// The one place that knows both the allocator and the device.
#include "csrc/runtime/device_allocator.h"

#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/observer.h"
#include "backend/sharing.h"
#include "csrc/errors.h"
#include "csrc/runtime/allocator_config.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/device_provider.h"
#include "csrc/runtime/dry_answers.h"
#include "csrc/runtime/gpu_trace.h"
#include "csrc/runtime/host_blocks.h"
#include "csrc/runtime/memory_pools.h"
#include "csrc/runtime/out_of_memory_observers.h"
#include "csrc/runtime/poison.h"
#include "csrc/runtime/storage.h"
#include "csrc/runtime/vector_functions.h"

namespace torch_npusim {

namespace {

using Listener = c10::impl::PyInterpreterVTable;
using npusim::alloc::Block;
using npusim::alloc::LiveAllocator;

struct DeviceMemory {
  DeviceMemory(std::unique_ptr<DeviceProvider> made, c10::DeviceIndex device)
      : provider(std::move(made)), allocator(make_allocator(*provider, device)) {}
  std::unique_ptr<DeviceProvider> provider;
  std::unique_ptr<LiveAllocator> allocator;
};
using Memory = std::vector<std::unique_ptr<DeviceMemory>>;

template <class Make>
Memory memory_of_all(const Make& make) {
  Memory made;
  for (int i = 0; i < npusim::device_count(); ++i) {
    made.push_back(std::make_unique<DeviceMemory>(make(i), static_cast<c10::DeviceIndex>(i)));
  }
  return made;
}

// None of them is ever destroyed: tensors may be freed after main() has returned.
// The first reader also settles the functions that kernels will call.
Memory& real_memory() {
  static auto* memory = [] {
    settle_vector_functions();
    return new Memory(memory_of_all([](int i) { return std::make_unique<DeviceProvider>(i); }));
  }();
  return *memory;
}

// Of the dry run that is on, if one is, and of earlier ones.
std::atomic<Memory*> g_dry_memory{nullptr};
std::vector<Memory*>& ended_dry_runs() {
  static auto* runs = new std::vector<Memory*>;
  return *runs;
}

Memory& all_memory() {
  Memory* dry = g_dry_memory.load(std::memory_order_acquire);
  return C10_LIKELY(dry == nullptr) ? real_memory() : *dry;
}

bool is_live(const LiveAllocator* owner) noexcept {
  for (const auto& memory : all_memory()) {
    if (memory->allocator.get() == owner) return true;
  }
  return false;
}

bool is_backed(const LiveAllocator* owner) noexcept {
  for (const auto& memory : real_memory()) {
    if (memory->allocator.get() == owner) return true;
  }
  return false;
}

std::atomic<ContextGatherer> g_gatherer{nullptr};
std::atomic<bool> g_gathers_of_frees{false};

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
  tell_out_of_memory_observers(report, device);
  if (c10::memoryProfilingEnabled()) {
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(report.requested_bytes),
                                     report.allocated_bytes, report.reserved_bytes,
                                     c10::Device(c10::kPrivateUse1, device));
  }
  TORCH_CHECK_WITH(
      OutOfMemoryError, false,
      npusim::alloc::format_out_of_memory(report, c10::DeviceTypeName(c10::kPrivateUse1, false),
                                          device, out_of_memory_advice(report, device)));
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

// Deleters for DataPtrs whose context is the address, not the block: torch's copy on write replaces
// the context, and sent blocks outlive the storage that sent them.
void free_address_deleter(void* address) noexcept {
  if (npusim::in_bad_fork()) return;
  if (Block* block = block_at(reinterpret_cast<npusim::alloc::Address>(address))) {
    free_block_deleter(block);
  }
}

void free_sent_deleter(void* address) noexcept {
  if (npusim::in_bad_fork()) return;
  const auto at = reinterpret_cast<npusim::alloc::Address>(address);
  if (Block* block = block_at(at)) npusim::release_sent(at, &free_block_deleter, block);
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
      npusim::note_memory(npusim::MemoryKind::record_stream, data.get(), block->bytes, &used_on);
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
    const npusim::alloc::MemoryInfo info = device_memory_info(index);
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

void for_each_allocator(c10::function_ref<void(LiveAllocator&)> visit) {
  for (const auto& memory : real_memory()) visit(*memory->allocator);
  const Memory* dry = g_dry_memory.load(std::memory_order_acquire);
  if (dry == nullptr) return;
  for (const auto& memory : *dry) visit(*memory->allocator);
}

namespace {
// What ended runs have cached; a run without any tensor left goes as a whole.
void forget_ended_dry_runs() {
  std::erase_if(ended_dry_runs(), [](Memory* run) {
    bool used = false;
    for (const auto& memory : *run) {
      translated([&] { memory->allocator->empty_cache({}); });
      used |= memory->allocator->stats().reserved_bytes[0].current > 0;
    }
    if (!used) delete run;
    return !used;
  });
}
}  // namespace

void begin_dry_run(const npusim::DeviceSpec& spec, std::size_t outside_bytes) {
  forget_ended_dry_runs();
  translated([&] {
    npusim::begin_dry(spec);
    const std::size_t capacity = spec.memory_bytes;
    g_dry_memory.store(new Memory(memory_of_all(
        [&](int i) { return std::make_unique<DryProvider>(i, capacity, outside_bytes); })));
  });
  detail::g_storages_differ.store(true);
}

void end_dry_run() {
  if (!npusim::dry()) return;
  release_cached_memory();
  ended_dry_runs().push_back(g_dry_memory.exchange(nullptr));
  npusim::end_dry();
}

bool is_of_other_kind(const c10::DataPtr& data) noexcept {
  const Block* block = block_of(data);
  return block != nullptr && block->owner != nullptr && !is_live(block->owner);
}

npusim::alloc::MemoryInfo device_memory_info(c10::DeviceIndex device) {
  const c10::DeviceIndex index = checked_device(device);
  return translated(
      [&] { return all_memory()[static_cast<std::size_t>(index)]->provider->memory_info(); });
}

void tell_observers(const Block& block, npusim::Stream& stream, c10::DeviceIndex device) {
  const npusim::alloc::PoolId pool = current_pool(device);
  npusim::note_memory(npusim::MemoryKind::allocate, reinterpret_cast<void*>(block.address),
                      block.bytes, &stream, (pool.first << 32) | pool.second);
}

namespace {
constinit thread_local GraphBlocks* t_graph_blocks = nullptr;
}  // namespace

GraphBlocks::GraphBlocks(List& list, Mode mode) noexcept
    : list_(list), mode_(mode), outer_(t_graph_blocks) {
  static std::atomic<std::uint64_t> captures{0};
  if (mode == Mode::capture) list.number = ++captures;
  t_graph_blocks = this;
}
GraphBlocks::~GraphBlocks() { t_graph_blocks = outer_; }

bool GraphBlocks::replaying() noexcept {
  return t_graph_blocks != nullptr && t_graph_blocks->mode_ == Mode::replay;
}
bool GraphBlocks::capturing() noexcept {
  return t_graph_blocks != nullptr && t_graph_blocks->mode_ == Mode::capture;
}
std::uint64_t GraphBlocks::number() noexcept {
  return replaying() ? t_graph_blocks->list_.number : 0;
}

// Replay gives the blocks of the capture in their order; a request that does not fit takes a new
// one.
Block* GraphBlocks::next(std::size_t bytes) {
  std::vector<Block>& blocks = list_.blocks;
  if (used_ == blocks.size() || blocks[used_].bytes < bytes) return nullptr;
  return &blocks[used_++];
}

Block* GraphBlocks::given(npusim::alloc::Address address) noexcept {
  if (mode_ != Mode::replay) return nullptr;
  for (std::size_t i = used_; i > 0; --i) {
    if (list_.blocks[i - 1].address == address) return &list_.blocks[i - 1];
  }
  return nullptr;
}

// Observers hear of the block before poison writes to it. Before an out-of-memory error, blocks
// that other processes have released are collected once.
Block* allocate_block(std::size_t bytes, c10::DeviceIndex device, npusim::Stream* stream) {
  LiveAllocator& allocator = live_allocator(device);
  if (bytes == 0) return nullptr;
  if (C10_UNLIKELY(t_graph_blocks != nullptr) &&
      t_graph_blocks->mode_ == GraphBlocks::Mode::replay) {
    if (Block* replayed = t_graph_blocks->next(bytes)) return replayed;
  }
  npusim::Stream& user = stream != nullptr ? *stream : npusim::current_stream(device);
  npusim::alloc::OutOfMemoryReport report;
  const auto allocated = [&] {
    return allocator.malloc(bytes, user.id(), &report, gather_context(), current_pool(device));
  };
  Block* block = translated(allocated);
  if (C10_UNLIKELY(block == nullptr) && npusim::collect_sent()) block = translated(allocated);
  if (C10_UNLIKELY(block == nullptr)) throw_out_of_memory(report, device);
  auto* address = reinterpret_cast<void*>(block->address);
  if (C10_UNLIKELY(npusim::observed())) tell_observers(*block, user, device);
  trace(&Listener::trace_gpu_memory_allocation, handle_of(address));
  if (C10_LIKELY(!npusim::dry())) {
    poison_fresh(address, block->bytes);
  } else {
    const npusim::RunningCommand* maker = npusim::detail::t_state.run;
    remember_maker(block->address, maker == nullptr ? "" : maker->info().name);
  }
  report_to_profiler(*block, static_cast<int64_t>(block->bytes), device);
  if (C10_UNLIKELY(t_graph_blocks != nullptr) &&
      t_graph_blocks->mode_ == GraphBlocks::Mode::capture) {
    Block captured;
    captured.address = block->address;
    captured.bytes = block->bytes;
    captured.requested_bytes = block->requested_bytes;
    captured.state = npusim::alloc::BlockState::allocated;
    t_graph_blocks->list_.blocks.push_back(captured);
  }
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
  if (block->owner == nullptr) return;  // GraphBlocks
  try {
    auto* address = reinterpret_cast<void*>(block->address);
    trace(&Listener::trace_gpu_memory_deallocation, handle_of(address));
    npusim::note_memory(npusim::MemoryKind::free, address, block->bytes, nullptr);
    if (poison_mode() != npusim::PoisonMode::off && is_backed(block->owner)) {
      poison_freed(address, block->bytes);
    }
    report_to_profiler(*block, -static_cast<int64_t>(block->bytes),
                       static_cast<c10::DeviceIndex>(npusim::device_of(address)));
    block->owner->free(block, gather_context_of_free());
  } catch (const std::exception& error) {
    // A deleter has nobody to throw to; this is a bug of ours and must be seen.
    if (npusim::config().failed_free_aborts) {
      std::fprintf(stderr, "npusim: freeing a block failed: %s\n", error.what());
      std::abort();
    }
    TORCH_WARN("npusim: freeing a block failed: ", error.what());
  }
}

namespace {
void name_by_address(c10::DataPtr& data, c10::DeleterFnPtr deleter) {
  void* address = data.get();
  const c10::Device device = data.device();
  data.release_context();
  data = {address, address, deleter, device};
}
}  // namespace

void name_block_by_address(c10::DataPtr& data) {
  if (data.get_deleter() == &free_block_deleter) name_by_address(data, &free_address_deleter);
}

void name_block_as_sent(c10::DataPtr& data) { name_by_address(data, &free_sent_deleter); }

// Three kinds of DataPtr own a block: with the block as context, by address, and copy on write.
Block* block_of(const c10::DataPtr& data) noexcept {
  if (C10_LIKELY(data.get_deleter() == &free_block_deleter)) {
    return static_cast<Block*>(data.get_context());
  }
  const bool by_address =
      data.get_deleter() == &free_address_deleter || data.get_deleter() == &free_sent_deleter;
  if (!by_address && !c10::impl::cow::is_cow_data_ptr(data)) return nullptr;
  return block_at(reinterpret_cast<npusim::alloc::Address>(data.get()));
}

Block* block_at(npusim::alloc::Address address) {
  if (C10_UNLIKELY(t_graph_blocks != nullptr)) {
    if (Block* replayed = t_graph_blocks->given(address)) return replayed;
  }
  const int device = npusim::device_of(reinterpret_cast<void*>(address));
  if (device < 0) return nullptr;
  const auto index = static_cast<std::size_t>(device);
  if (Block* block = live_allocator(static_cast<c10::DeviceIndex>(device)).find(address)) {
    return block;
  }
  if (C10_LIKELY(!detail::g_storages_differ.load(std::memory_order_relaxed))) return nullptr;
  if (Block* block = real_memory()[index]->allocator->find(address)) return block;
  for (Memory* run : ended_dry_runs()) {
    if (Block* block = (*run)[index]->allocator->find(address)) return block;
  }
  return nullptr;
}

void release_cached_memory(npusim::alloc::PoolId pool) {
  host_blocks().release();
  if (!npusim::initialized()) return;
  npusim::collect_sent();
  for (int i = 0; i < npusim::device_count(); ++i) {
    LiveAllocator& allocator = live_allocator(static_cast<c10::DeviceIndex>(i));
    translated([&] { allocator.empty_cache(pool, gather_context_of_free()); });
  }
}

npusim::alloc::ContextId gather_context() {
  const ContextGatherer gatherer = g_gatherer.load(std::memory_order_relaxed);
  return C10_LIKELY(gatherer == nullptr) ? 0 : gatherer();
}

npusim::alloc::ContextId gather_context_of_free() {
  return g_gathers_of_frees.load(std::memory_order_relaxed) ? gather_context() : 0;
}

void set_context_gatherer(ContextGatherer gatherer, bool of_frees_too) noexcept {
  g_gatherer.store(gatherer, std::memory_order_relaxed);
  g_gathers_of_frees.store(of_frees_too, std::memory_order_relaxed);
}

void register_device_allocator() { c10::SetAllocator(c10::kPrivateUse1, device_allocator()); }

}  // namespace torch_npusim
