// SPDX-License-Identifier: BSD-3-Clause
// torch's CachingHostAllocatorImpl, told how to pin, and when a stream is done with a block.
#include "csrc/runtime/pinned_allocator.h"

#include "backend/backend.h"
#include "backend/observer.h"
#include "csrc/errors.h"
#include "csrc/observers/host_accesses.h"
#include "csrc/runtime/device.h"

namespace torch_npusim {

namespace {

struct PinnedAllocatorImpl final
    : at::CachingHostAllocatorImpl<c10::Stream, std::shared_ptr<npusim::Event>> {
 private:
  using Event = std::shared_ptr<npusim::Event>;
  using Block = at::HostBlock<c10::Stream>;

  void allocate_host_memory(std::size_t bytes, void** data) override {
    *data = translated([&] { return npusim::pinned_allocate(bytes); });
  }
  void free_block(Block* block) override { npusim::pinned_free(block->ptr_); }
  void record_stream(std::optional<std::vector<Event>>& events, c10::Stream stream) override {
    npusim::Stream& on = backend_stream(stream);
    auto event = std::make_shared<npusim::Event>(on.device(), /*timing=*/false);
    event->record(on);
    events->push_back(std::move(event));
  }
  // The allocator's own polling costs no virtual time (rule C5).
  bool query_event(Event& event) override { return event->mark_ns() <= npusim::host_now_ns(); }
  c10::Stream get_current_stream() const override {
    return torch_stream(npusim::current_stream(npusim::current_device()));
  }
  bool stream_is_capturing(c10::Stream) const override { return false; }
};

void free_pinned(void* context);

struct PinnedAllocator final
    : at::CachingHostAllocatorInterface<PinnedAllocatorImpl, &free_pinned> {
  // A block that is handed out again is nobody's any more: the allocator has seen to that.
  at::DataPtr allocate(std::size_t bytes) override {
    at::DataPtr data = CachingHostAllocatorInterface::allocate(bytes);
    npusim::note_memory(npusim::MemoryKind::pinned_allocate, data.get(), bytes, nullptr);
    if (C10_UNLIKELY(npusim::observed())) watch_pinned_memory();
    return data;
  }
};

PinnedAllocator& torch_pinned_allocator() {
  static auto* allocator = new PinnedAllocator;  // never destroyed: blocks may outlive main()
  return *allocator;
}

void free_pinned(void* context) { torch_pinned_allocator().free(context); }

}  // namespace

at::HostAllocator* pinned_allocator() noexcept { return &torch_pinned_allocator(); }

void register_pinned_allocator() { at::setHostAllocator(c10::kPrivateUse1, pinned_allocator()); }

void record_pinned_stream(const c10::DataPtr& host_data, const c10::Stream& stream) {
  torch_pinned_allocator().record_event(host_data.get(), host_data.get_context(), stream);
}

}  // namespace torch_npusim
