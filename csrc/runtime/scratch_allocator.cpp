// SPDX-License-Identifier: BSD-3-Clause
// CPU allocators whose memory is device memory.
#include "csrc/runtime/scratch_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/hash.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/host_blocks.h"

namespace torch_npusim {

namespace {

using npusim::alloc::Block;

thread_local constinit CallMemory* t_call = nullptr;
constexpr c10::DeviceIndex kNoDevice = -1;  // of a call without results

// A forked child has a copy of the lock, which another thread may have held: it leaks the block.
void host_block_deleter(void* block) {
  if (!npusim::in_bad_fork()) host_blocks().give(block);
}

c10::DataPtr host_memory(std::size_t bytes, c10::Allocator& next) {
  if (bytes < HostBlocks::kFrom) return next.allocate(bytes);
  void* block = host_blocks().take(bytes);
  return {block, block, &host_block_deleter, c10::Device(c10::kCPU)};
}

// Whether an allocation becomes a result, by its key, as this thread's calls have shown.
constexpr std::size_t kKnownAtMost = 1 << 16;
std::unordered_map<std::uint64_t, bool>& known_allocations() {
  thread_local std::unordered_map<std::uint64_t, bool> known;
  return known;
}

void* host_address_of(const Block& block) {
  return npusim::kernel_alias(reinterpret_cast<void*>(block.address));
}

npusim::alloc::Address device_address_of(const void* host) {
  return reinterpret_cast<npusim::alloc::Address>(npusim::device_alias(const_cast<void*>(host)));
}

}  // namespace

// The allocators' way into a call.
struct CallAllocations {
  // The newest allocation at an address is the live one.
  static CallMemory::Allocation* at(CallMemory* call, const void* host) noexcept {
    if (call == nullptr || host == nullptr) return nullptr;
    for (std::size_t i = call->allocations_.size(); i > 0; --i) {
      CallMemory::Allocation& one = call->allocations_[i - 1];
      if (one.host == host) return &one;
    }
    return nullptr;
  }
  static c10::DataPtr allocate(CallMemory& call, std::size_t bytes, c10::Allocator& next);
};

namespace {

// The context of such a DataPtr is the host address itself, because oneDNN takes its scratch memory
// through raw_allocate(), which insists on that. A function of its own, so that its address marks
// the memory that came from here.
void scratch_deleter(void* host) {
  if (npusim::in_bad_fork()) return;  // the parent's block
  auto* known = CallAllocations::at(t_call, host);
  if (known != nullptr && known->block != nullptr) {
    known->host = nullptr;  // a later block may lie there
    free_block_deleter(std::exchange(known->block, nullptr));
  } else if (Block* block = block_at(device_address_of(host))) {
    free_block_deleter(block);
  }
}

c10::DataPtr scratch_over(const Block* block) {
  if (block == nullptr) return c10::DataPtr(nullptr, c10::Device(c10::kCPU));
  void* host = host_address_of(*block);
  return {host, host, &scratch_deleter, c10::Device(c10::kCPU)};
}

class ScratchAllocator final : public c10::Allocator {
 public:
  explicit ScratchAllocator(c10::DeviceIndex device) : device_(device) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    return scratch_over(allocate_block(bytes, device_));
  }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    default_copy_data(dest, src, bytes);
  }

 private:
  c10::DeviceIndex device_;
};

// Stands in front of torch's CPU allocator; one thread-local test outside of calls.
class ForwardingAllocator final : public c10::Allocator {
 public:
  explicit ForwardingAllocator(c10::Allocator* next) : next_(next) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    if (C10_LIKELY(t_call == nullptr)) return next_->allocate(bytes);
    return CallAllocations::allocate(*t_call, bytes, *next_);
  }
  // One deleter for both kinds of memory; raw_allocate() keeps no other mark of where it came from.
  c10::DeleterFnPtr raw_deleter() const override {
    static const c10::DeleterFnPtr next_deleter = next_->raw_deleter();  // there is one forwarder
    return [](void* memory) {
      const bool scratch = npusim::is_device_address(npusim::device_alias(memory));
      if (scratch) {
        scratch_deleter(memory);
      } else if (npusim::in_bad_fork() || !host_blocks().give(memory)) {
        next_deleter(memory);
      }
    };
  }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    next_->copy_data(dest, src, bytes);
  }

 private:
  c10::Allocator* next_;
};

}  // namespace

// A graph's nodes run again and again with the blocks of their capture, in their order, which are
// those of results alone. So a capture believes nothing, and a node what its own replays have
// shown.
c10::DataPtr CallAllocations::allocate(CallMemory& call, std::size_t bytes, c10::Allocator& next) {
  if (bytes == 0 || call.device_ == kNoDevice) return host_memory(bytes, next);
  auto& known = known_allocations();
  if (call.allocations_.empty()) {
    if (C10_UNLIKELY(known.size() > kKnownAtMost && call.outer_ == nullptr)) known.clear();
    call.key_ = c10::hash_combine(call.signature(), GraphBlocks::number());
  }
  call.key_ = c10::hash_combine(call.key_, bytes);
  const auto found = GraphBlocks::capturing() ? known.end() : known.find(call.key_);
  bool* const is_result = found == known.end() ? nullptr : &found->second;
  Block* block = nullptr;
  if (is_result != nullptr && *is_result) block = allocate_block(bytes, call.device_);
  c10::DataPtr data = block != nullptr ? scratch_over(block) : host_memory(bytes, next);
  call.allocations_.push_back({data.get(), call.key_, is_result, block});
  return data;
}

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
  const auto* known = CallAllocations::at(t_call, data.get_context());
  if (C10_LIKELY(known != nullptr && known->block != nullptr)) return known->block;
  return block_at(device_address_of(data.get_context()));
}

CallMemory::CallMemory(c10::DeviceIndex device, bool open) noexcept
    : device_(device), open_(open), outer_(t_call) {
  if (open_) t_call = this;
}
CallMemory::~CallMemory() {
  if (open_) t_call = outer_;
}

bool CallMemory::claim(const void* host) noexcept {
  Allocation* const made = CallAllocations::at(this, host);
  if (made == nullptr) return false;
  if (made->claimed == 0) made->claimed = ++claims_;
  return true;
}

// An allocation that is a result in one call and not in another like it, or that is out of order,
// stays the host's.
void CallMemory::learn() {
  if (GraphBlocks::capturing()) return;
  std::uint32_t last = 0;
  bool in_order = true;
  for (const Allocation& one : allocations_) {
    if (one.claimed == 0) continue;
    in_order &= one.claimed > last;
    last = one.claimed;
  }
  for (const Allocation& one : allocations_) {
    const bool is_result = one.claimed > 0 && in_order;
    if (one.known == nullptr) {
      known_allocations().try_emplace(one.key, is_result);
    } else if (!is_result) {
      *one.known = false;
    }
  }
}

Temporaries::Temporaries() noexcept : CallMemory(kNoDevice, !npusim::dry()) {}

HostMemoryScope::HostMemoryScope() noexcept : outer_(std::exchange(t_call, nullptr)) {}
HostMemoryScope::~HostMemoryScope() { t_call = outer_; }

void register_scratch_allocator() {
  static auto* forwarding = new ForwardingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(forwarding);
}

}  // namespace torch_npusim
