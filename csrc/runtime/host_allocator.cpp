// SPDX-License-Identifier: BSD-3-Clause
// torch's CachingHostAllocatorImpl, told how to pin, and when a stream is done with a block.
#include "csrc/runtime/host_allocator.h"

#include "backend/backend.h"
#include "csrc/errors.h"
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
    : at::CachingHostAllocatorInterface<PinnedAllocatorImpl, &free_pinned> {};

PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator;  // never destroyed: blocks may outlive main()
  return *allocator;
}

void free_pinned(void* context) { pinned_allocator().free(context); }

}  // namespace

at::HostAllocator* host_allocator() noexcept { return &pinned_allocator(); }

void register_host_allocator() { at::setHostAllocator(c10::kPrivateUse1, host_allocator()); }

void note_pinned_use(const c10::DataPtr& host_data, const c10::Stream& stream) {
  pinned_allocator().record_event(host_data.get(), host_data.get_context(), stream);
}

}  // namespace torch_npusim
