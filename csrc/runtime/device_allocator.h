// SPDX-License-Identifier: BSD-3-Clause
// The join of allocator/ and backend/: one allocator per simulated device, registered with torch as
// the c10::DeviceAllocator of PrivateUse1.
// Invariant: nothing here takes the GIL; a block may be freed on any thread, at any time, also
// after main() has returned (the allocators are never destroyed).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "backend/backend.h"

namespace torch_npusim {

// device_allocator() is the object registered with c10::SetAllocator.
c10::DeviceAllocator* device_allocator() noexcept;

// live_allocator() validates device and initialises the simulator on first use.
npusim::alloc::LiveAllocator& live_allocator(c10::DeviceIndex device);

// for_each_allocator() visits the allocators of all devices, and those of a dry run that is on.
void for_each_allocator(c10::function_ref<void(npusim::alloc::LiveAllocator&)> visit);

// A dry run has an allocator of its own for each device, empty at first: what was cached before
// does not show in it, and none of its segments comes back afterwards. begin_dry_run() says what
// the devices are until end_dry_run(), and how much of each is taken by what is no allocator's.
// Tensors of the run may be freed at any time.
void begin_dry_run(const npusim::DeviceSpec& spec, std::size_t outside_bytes);
void end_dry_run();

// is_of_other_kind() is whether data was made by a dry run and none is on, or the other way round,
// or in another dry run.
bool is_of_other_kind(const c10::DataPtr& data) noexcept;

// device_memory_info() is what is free on the device, and its capacity.
npusim::alloc::MemoryInfo device_memory_info(c10::DeviceIndex device);

// allocate_block() returns nullptr for bytes == 0; throws c10::OutOfMemoryError. The block belongs
// to the current pool of `device` on this thread, and to `stream`, by default the current one.
npusim::alloc::Block* allocate_block(std::size_t bytes, c10::DeviceIndex device,
                                     npusim::Stream* stream = nullptr);

// GraphBlocks: how a node of a graph gets the same addresses at every replay. While it lives, this
// thread's allocations are added to `blocks` (capture), or are given these blocks in order
// (replay); a block that is given so has no owner, and freeing it does nothing. The list belongs to
// the caller, and gets a number at its capture.
class GraphBlocks {
 public:
  enum class Mode : std::uint8_t { capture, replay };
  struct List {
    std::vector<npusim::alloc::Block> blocks;
    std::uint64_t number = 0;
  };
  GraphBlocks(List& list, Mode mode) noexcept;
  ~GraphBlocks();
  GraphBlocks(const GraphBlocks&) = delete;
  GraphBlocks& operator=(const GraphBlocks&) = delete;
  // replaying() is whether this thread's allocations are given blocks of a capture.
  static bool replaying() noexcept;
  static bool capturing() noexcept;
  // number() is that of the list that is replayed, from 1 on, or 0.
  static std::uint64_t number() noexcept;

 private:
  friend npusim::alloc::Block* allocate_block(std::size_t bytes, c10::DeviceIndex device,
                                              npusim::Stream* stream);
  friend npusim::alloc::Block* block_at(npusim::alloc::Address address);
  npusim::alloc::Block* next(std::size_t bytes);
  npusim::alloc::Block* given(npusim::alloc::Address address) noexcept;

  List& list_;
  const Mode mode_;
  std::size_t used_ = 0;
  GraphBlocks* const outer_;
};

// allocate_on_device() wraps allocate_block(); the DataPtr's context is the Block.
c10::DataPtr allocate_on_device(std::size_t bytes, c10::DeviceIndex device);

// free_block_deleter() returns a Block (passed as the DataPtr's context) to its allocator.
void free_block_deleter(void* block) noexcept;

// name_block_by_address() makes the address the context of data from allocate_on_device(). Freeing
// has to look the block up then, but core's lazy copies want it that way.
void name_block_by_address(c10::DataPtr& data);

// name_block_as_sent() does the same to data that other processes map: freeing then waits until
// they have let go (backend/sharing.h).
void name_block_as_sent(c10::DataPtr& data);

// block_of() returns nullptr unless data was made by allocate_on_device().
npusim::alloc::Block* block_of(const c10::DataPtr& data) noexcept;

// block_at() is the block that starts at a device address, or nullptr. A replay's own block comes
// before a live one, which belongs to the holder of a result of the graph.
npusim::alloc::Block* block_at(npusim::alloc::Address address);

// release_cached_memory() gives the cached segments of all devices back: of the default pool and of
// private pools without users, or of one private pool if that has none.
void release_cached_memory(npusim::alloc::PoolId pool = {});

// A frame description for a gathered context id; set by the Python bindings (memory history). What
// is freed and given back has one only on request.
using ContextGatherer = npusim::alloc::ContextId (*)();
void set_context_gatherer(ContextGatherer gatherer, bool of_frees_too) noexcept;
npusim::alloc::ContextId gather_context();  // 0 without a gatherer
npusim::alloc::ContextId gather_context_of_free();

void register_device_allocator();

}  // namespace torch_npusim
