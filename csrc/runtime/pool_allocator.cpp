// SPDX-License-Identifier: BSD-3-Clause
// CPU-side allocators whose memory is device memory.
#include "csrc/runtime/pool_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

constexpr c10::DeviceIndex kNoPool = -1;
thread_local c10::DeviceIndex t_pool_device = kNoPool;

// A function of its own, so that its address marks the blocks that came from a pool.
void pool_block_deleter(void* block) { free_block_deleter(block); }

c10::DataPtr allocate_from_pool(std::size_t bytes, c10::DeviceIndex device) {
  npusim::alloc::Block* block = allocate_block(bytes, device);
  if (block == nullptr) return c10::DataPtr(nullptr, c10::Device(c10::kCPU));
  void* host = npusim::host_alias(reinterpret_cast<void*>(block->address));
  return {host, block, &pool_block_deleter, c10::Device(c10::kCPU)};
}

class PoolAllocator final : public c10::Allocator {
 public:
  explicit PoolAllocator(c10::DeviceIndex device) : device_(device) {}
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_from_pool(bytes, device_); }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    default_copy_data(dest, src, bytes);
  }

 private:
  c10::DeviceIndex device_;
};

// Stands in front of torch's CPU allocator; one thread-local test when no scope is open.
class ForwardingAllocator final : public c10::Allocator {
 public:
  explicit ForwardingAllocator(c10::Allocator* next) : next_(next) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    if (C10_LIKELY(t_pool_device == kNoPool)) return next_->allocate(bytes);
    return allocate_from_pool(bytes, t_pool_device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    next_->copy_data(dest, src, bytes);
  }

 private:
  c10::Allocator* next_;
};

}  // namespace

c10::Allocator* pool_allocator_of(c10::DeviceIndex device) {
  // Never destroyed: storages that point here may outlive main().
  static auto* allocators = [] {
    auto* made = new std::vector<std::unique_ptr<PoolAllocator>>;
    for (int i = 0; i < npusim::device_count(); ++i) {
      made->push_back(std::make_unique<PoolAllocator>(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  return allocators->at(static_cast<std::size_t>(device)).get();
}

npusim::alloc::Block* pool_block_of(const c10::DataPtr& data) noexcept {
  return data.get_deleter() == &pool_block_deleter
             ? static_cast<npusim::alloc::Block*>(data.get_context())
             : nullptr;
}

PoolScope::PoolScope(c10::DeviceIndex device) noexcept : outer_(t_pool_device) {
  t_pool_device = device;
}
PoolScope::~PoolScope() { t_pool_device = outer_; }

HostScope::HostScope() noexcept : outer_(t_pool_device) { t_pool_device = kNoPool; }
HostScope::~HostScope() { t_pool_device = outer_; }

void register_pool_allocator() {
  static auto* forwarding = new ForwardingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(forwarding);
}

}  // namespace torch_npusim
