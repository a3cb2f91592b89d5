// SPDX-License-Identifier: BSD-3-Clause
// Memory of the devices: a caching c10::DeviceAllocator, whose statistics torch.accelerator shows.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime.h"

namespace mychip {
namespace {

constexpr std::size_t kGranule = 512;  // sizes are rounded up to it

struct Block {
  void* address;
  std::size_t bytes;      // of the device
  std::size_t requested;  // by torch
  c10::DeviceIndex device;
  int stream;                       // in whose order it may be used again at once
  std::vector<c10::Stream> others;  // of record_stream()
};

struct Waiting {  // for streams that still use it
  Block block;
  std::vector<c10::Event> events;
};

struct Pool {                                                // of one device
  std::multimap<std::pair<int, std::size_t>, Block> cached;  // (stream, bytes)
  std::vector<Waiting> waiting;
  c10::CachingDeviceAllocator::DeviceStats stats;
};

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    check_process();
    const c10::DeviceIndex index = current_device();
    const c10::Device device(c10::kPrivateUse1, index);
    if (bytes == 0) return {nullptr, nullptr, &free_address, device};
    const std::lock_guard<std::mutex> lock(mutex_);
    Block block = take(index, (bytes + kGranule - 1) / kGranule * kGranule);
    block.requested = bytes;
    count(block, true);
    live_[block.address] = block;
    return {block.address, block.address, &free_address, device};
  }

  // With the address as its only context, a tensor's memory can be shared until it is written to
  // (torch._lazy_clone): torch then needs this function and copy_data().
  c10::DeleterFnPtr raw_deleter() const override { return &free_address; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const c10::DeviceIndex device = current_device();
    check(mychip_copy_between(device, current_stream(device), to, device, from, bytes));
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) release(device);
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(data.get());
    if (found == live_.end()) return;  // no memory of ours
    Block& block = found->second;
    const bool is_own = stream.device_index() == block.device && stream.id() == block.stream;
    if (!is_own) block.others.push_back(stream);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pools_[device].stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counted(pools_[device].stats)) (*stat)[0].reset_accumulated();
    pools_[device].stats.num_alloc_retries = 0;
    pools_[device].stats.num_ooms = 0;
    pools_[device].stats.num_device_alloc = 0;
    pools_[device].stats.num_device_free = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : counted(pools_[device].stats)) (*stat)[0].reset_peak();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::size_t free_bytes = 0, total_bytes = 0;
    check(mychip_memory_info(device, &free_bytes, &total_bytes));
    return {free_bytes, total_bytes};
  }

 private:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  static void free_address(void* address);

  static std::vector<c10::CachingAllocator::StatArray*> counted(Stats& stats) {
    return {&stats.allocation,      &stats.segment,         &stats.active,
            &stats.allocated_bytes, &stats.requested_bytes, &stats.reserved_bytes,
            &stats.active_bytes};
  }

  static void add(c10::CachingAllocator::StatArray& stat, bool more, std::size_t amount) {
    more ? stat[0].increase(amount) : stat[0].decrease(amount);  // [0]: of all pools
  }

  void count(const Block& block, bool is_live) {
    Stats& stats = pools_[block.device].stats;
    add(stats.allocation, is_live, 1);
    add(stats.active, is_live, 1);
    add(stats.allocated_bytes, is_live, block.bytes);
    add(stats.active_bytes, is_live, block.bytes);
    add(stats.requested_bytes, is_live, block.requested);
  }

  // A block that is free for the current stream: of the cache, or of the driver.
  Block take(c10::DeviceIndex device, std::size_t bytes) {
    Pool& pool = pools_[device];
    collect(pool);
    const int stream = current_stream(device);
    const auto found = pool.cached.find({stream, bytes});
    if (found != pool.cached.end()) return pool.cached.extract(found).mapped();
    void* address = nullptr;
    mychip_status status = mychip_malloc(device, bytes, &address);
    if (status == MYCHIP_OUT_OF_MEMORY) {
      pool.stats.num_alloc_retries += 1;
      release(device);
      status = mychip_malloc(device, bytes, &address);
    }
    if (status == MYCHIP_OUT_OF_MEMORY) pool.stats.num_ooms += 1;
    check(status);
    pool.stats.num_device_alloc += 1;
    add(pool.stats.segment, true, 1);
    add(pool.stats.reserved_bytes, true, bytes);
    return {address, bytes, bytes, device, stream, {}};
  }

  void give(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Block block = live_.extract(address).mapped();
    count(block, false);
    Pool& pool = pools_[block.device];
    std::vector<c10::Event> events;
    for (const c10::Stream& stream : block.others) {
      events.emplace_back(c10::kPrivateUse1).record(stream);
    }
    block.others.clear();
    pool.waiting.push_back({std::move(block), std::move(events)});
    collect(pool);
  }

  // Caches blocks that no stream uses any more.
  static void collect(Pool& pool) {
    const auto is_used = [](const Waiting& one) {
      return !std::all_of(one.events.begin(), one.events.end(),
                          [](const c10::Event& event) { return event.query(); });
    };
    const auto done = std::partition(pool.waiting.begin(), pool.waiting.end(), is_used);
    for (auto one = done; one != pool.waiting.end(); ++one) {
      pool.cached.emplace(std::pair(one->block.stream, one->block.bytes), one->block);
    }
    pool.waiting.erase(done, pool.waiting.end());
  }

  // Gives what is cached back to the driver.
  void release(c10::DeviceIndex device) {
    Pool& pool = pools_[device];
    collect(pool);
    for (const auto& [key, block] : pool.cached) {
      check(mychip_synchronize(device, block.stream));
      check(mychip_free(device, block.address));
      pool.stats.num_device_free += 1;
      add(pool.stats.segment, false, 1);
      add(pool.stats.reserved_bytes, false, block.bytes);
    }
    pool.cached.clear();
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> live_;
  Pool pools_[kDevicesMax];
};

Memory& memory() {
  static auto* one = new Memory;  // tensors may outlive static objects
  return *one;
}
REGISTER_ALLOCATOR(c10::kPrivateUse1, &memory())

void Memory::free_address(void* address) {
  if (address != nullptr && !is_in_bad_fork()) memory().give(address);
}

}  // namespace

c10::DeviceAllocator* allocator() { return &memory(); }

void grow(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr larger = memory().allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) memory().copy_data(larger.get(), storage.data(), kept);
  storage.set_data_ptr(std::move(larger));
  storage.set_nbytes(bytes);
}

}  // namespace mychip
