// SPDX-License-Identifier: BSD-3-Clause
// CPU allocators whose memory is device memory.
#include "csrc/runtime/scratch_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

using npusim::alloc::Block;

// The context of such a DataPtr is the host address itself, because oneDNN takes its scratch memory
// through raw_allocate(), which insists on that. The blocks of the open scopes are kept here, so
// that finding one costs a look at the last few entries and not a walk of the segment.
thread_local c10::SmallVector<Block*, 16> t_scope_blocks;

// What every kernel asks for, apart from the blocks: without a destructor, a thread's own is found
// faster, and most kernels that make their results themselves allocate nothing here.
struct OpenScopes {
  c10::DeviceIndex device = kHostMemory;
  std::size_t blocks = 0;  // as many as t_scope_blocks
};
constinit thread_local OpenScopes t_open;

void remember(Block* block, OpenScopes& open) {
  t_scope_blocks.push_back(block);
  ++open.blocks;
}

void* host_address_of(const Block& block) {
  return npusim::kernel_alias(reinterpret_cast<void*>(block.address));
}

npusim::alloc::Address device_address_of(void* host) {
  return reinterpret_cast<npusim::alloc::Address>(npusim::device_alias(host));
}

// The newest entry for an address is the live one: a later block at the same address, allocated on
// this thread, would be a later entry. Blocks of other threads and of closed scopes are not here.
// Returns how many entries there are up to the live one, or 0.
std::size_t entry_of(npusim::alloc::Address address) {
  for (std::size_t i = t_open.blocks; i > 0; --i) {
    const Block* block = t_scope_blocks[i - 1];
    if (block->address != address) continue;
    return block->state == npusim::alloc::BlockState::allocated ? i : 0;
  }
  return 0;
}

// A function of its own, so that its address marks the memory that came from here.
void scratch_deleter(void* host) {
  if (npusim::in_bad_fork()) return;  // the parent's block
  const npusim::alloc::Address address = device_address_of(host);
  const std::size_t entry = entry_of(address);
  if (C10_LIKELY(entry > 0)) {
    Block* block = t_scope_blocks[entry - 1];
    t_scope_blocks.erase(t_scope_blocks.begin() + static_cast<std::ptrdiff_t>(entry - 1));
    --t_open.blocks;
    free_block_deleter(block);
  } else if (GraphBlocks::replaying()) {
    // What is at the address belongs to whoever holds the results of the graph.
  } else if (Block* block = block_at(address)) {
    free_block_deleter(block);
  }
}

c10::DataPtr allocate_scratch(std::size_t bytes, c10::DeviceIndex device) {
  Block* block = allocate_block(bytes, device);
  if (block == nullptr) return c10::DataPtr(nullptr, c10::Device(c10::kCPU));
  if (OpenScopes& open = t_open; C10_LIKELY(open.device != kHostMemory)) remember(block, open);
  void* host = host_address_of(*block);
  return {host, host, &scratch_deleter, c10::Device(c10::kCPU)};
}

class ScratchAllocator final : public c10::Allocator {
 public:
  explicit ScratchAllocator(c10::DeviceIndex device) : device_(device) {}
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_scratch(bytes, device_); }
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
    const c10::DeviceIndex device = t_open.device;
    if (C10_LIKELY(device == kHostMemory)) return next_->allocate(bytes);
    return allocate_scratch(bytes, device);
  }
  // One deleter for both kinds of memory; raw_allocate() keeps no other mark of where it came from.
  c10::DeleterFnPtr raw_deleter() const override {
    static const c10::DeleterFnPtr next_deleter = next_->raw_deleter();  // there is one forwarder
    return [](void* memory) {
      const bool scratch = npusim::is_device_address(npusim::device_alias(memory));
      (scratch ? &scratch_deleter : next_deleter)(memory);
    };
  }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    next_->copy_data(dest, src, bytes);
  }

 private:
  c10::Allocator* next_;
};

}  // namespace

c10::Allocator* scratch_allocator_of(c10::DeviceIndex device) {
  // Never destroyed: storages that point here may outlive main().
  static auto* allocators = [] {
    auto* made = new std::vector<std::unique_ptr<ScratchAllocator>>;
    for (int i = 0; i < npusim::device_count(); ++i) {
      made->push_back(std::make_unique<ScratchAllocator>(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  return allocators->at(static_cast<std::size_t>(device)).get();
}

npusim::alloc::Block* scratch_block_of(const c10::DataPtr& data) noexcept {
  if (data.get_deleter() != &scratch_deleter) return nullptr;
  const npusim::alloc::Address address = device_address_of(data.get_context());
  const std::size_t entry = entry_of(address);
  return C10_LIKELY(entry > 0) ? t_scope_blocks[entry - 1] : block_at(address);
}

ScratchScope::ScratchScope(c10::DeviceIndex device) noexcept
    : outer_(t_open.device), outer_blocks_(t_open.blocks) {
  t_open.device = device;
}
ScratchScope::~ScratchScope() {
  OpenScopes& open = t_open;
  open.device = outer_;
  if (open.blocks <= outer_blocks_) return;
  t_scope_blocks.resize(outer_blocks_);
  open.blocks = outer_blocks_;
}

HostMemoryScope::HostMemoryScope() noexcept : outer_(t_open.device) { t_open.device = kHostMemory; }
HostMemoryScope::~HostMemoryScope() { t_open.device = outer_; }

void register_scratch_allocator() {
  static auto* forwarding = new ForwardingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(forwarding);
}

}  // namespace torch_npusim
