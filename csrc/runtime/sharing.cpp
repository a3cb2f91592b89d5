// SPDX-License-Identifier: BSD-3-Clause
// A sent block is freed through backend/sharing.h, which knows who else has it.
#include "csrc/runtime/sharing.h"

#include <c10/core/impl/COW.h>

#include <memory>
#include <utility>

#include "backend/backend.h"
#include "backend/observer.h"
#include "backend/promised_end.h"
#include "csrc/errors.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

using Received = std::shared_ptr<npusim::ReceivedBlock>;

// As in torch.cuda, commands on the memory are over before the sender may have it again.
void release_received(void* context) noexcept {
  const std::unique_ptr<Received> received(static_cast<Received*>(context));
  if (npusim::in_bad_fork()) {
    new Received(std::move(*received));  // the parent's: never given up here
    return;
  }
  auto* address = reinterpret_cast<void*>((*received)->address());
  const int device = npusim::device_of(address);
  npusim::wait_until_ns(npusim::device_done_at_ns(device));
  npusim::note_order(npusim::OrderKind::allocator_wait, device, nullptr);
  npusim::note_memory(npusim::MemoryKind::free, address, (*received)->bytes(), nullptr);
}

}  // namespace

npusim::SharedBlock send_storage(c10::StorageImpl& storage) {
  translated([] { npusim::check_not_forked(); });
  TORCH_CHECK_NOT_IMPLEMENTED(!npusim::dry(),
                              "a tensor of a dry run has no bytes to send to another process");
  TORCH_CHECK(!storage.received_cuda(),
              "Attempted to send a device tensor received from another process; this is not "
              "currently supported. Consider cloning before sending.");
  const c10::DeviceIndex device = storage.device().index();
  void* address = storage.mutable_data();  // a lazy copy gets bytes of its own
  npusim::alloc::Block* block = block_of(storage.data_ptr());
  TORCH_CHECK(block != nullptr && block->owner != nullptr &&
                  block->address == reinterpret_cast<npusim::alloc::Address>(address),
              "Attempted to send a device tensor whose memory is not the allocator's own: it came "
              "through DLPack or belongs to a graph. Consider cloning before sending.");
  return translated([&] {
    npusim::Stream& stream = npusim::current_stream(device);
    npusim::detail::check_may_wait("sending a tensor to another process", &stream);
    const std::size_t bytes = storage.nbytes();
    npusim::run_now(stream, {"share", npusim::CommandKind::copy_d2d},
                    [&] { npusim::note_range(address, bytes, /*written=*/false); });
    npusim::keep_promises(stream);
    npusim::wait_until_ns(stream.done_at_ns());
    npusim::collect_sent(32);
    npusim::SharedBlock sent = npusim::send_block(device, block->address, block->bytes);
    name_block_as_sent(storage.mutable_data_ptr());
    return sent;
  });
}

c10::intrusive_ptr<c10::StorageImpl> receive_storage(const npusim::SharedBlock& block,
                                                     std::size_t bytes) {
  return translated([&] {
    npusim::check_not_forked();
    TORCH_CHECK(block.device < npusim::device_count(), "a tensor was sent from device ",
                block.device, " of its process, but this one has ", npusim::device_count(),
                " device(s): give both the same NPUSIM_DEVICE_COUNT and NPUSIM_VISIBLE_DEVICES");
    npusim::initialize();
    auto received = std::make_unique<Received>(npusim::receive_block(block));
    auto* address = reinterpret_cast<void*>((*received)->address());
    const auto device = static_cast<c10::DeviceIndex>(block.device);
    npusim::note_memory(npusim::MemoryKind::allocate, address, block.bytes,
                        &npusim::current_stream(device), /*pool=*/block.receipt);
    auto storage = c10::make_intrusive<DeviceStorage>(
        c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
        c10::DataPtr(address, received.release(), &release_received,
                     c10::Device(c10::kPrivateUse1, device)),
        /*allocator=*/nullptr, /*resizable=*/false);
    storage->set_received_cuda(true);
    return storage;
  });
}

}  // namespace torch_npusim
