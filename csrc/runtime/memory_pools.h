// SPDX-License-Identifier: BSD-3-Clause
// Private pools on the live devices: the object behind torch.npusim.MemPool, and which pool a
// thread's allocations go to. Invariant: routing belongs to one thread, so what the autograd engine
// allocates on threads of its own is never routed, as on CUDA.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "allocator/allocator.h"
#include "csrc/runtime/pluggable_allocator.h"

namespace npusim {
class Stream;
}

namespace torch_npusim {

// PrivatePool lives while its owner does; then its free memory, on all devices, is given back, and
// the rest as soon as an empty_cache() finds it free.
class PrivatePool {
 public:
  // The constructor makes the pool on the current device. With functions its segments come from
  // them (pluggable_allocator.h). A pool that `gives_back` does so at its end, as
  // torch.cuda.MemPool; that of a graph keeps its memory until the next empty_cache(), as
  // CUDAGraph::reset() leaves it.
  PrivatePool(npusim::alloc::PoolId id, npusim::alloc::PoolOptions options,
              const std::optional<PluggableFunctions>& functions, bool gives_back);
  ~PrivatePool();
  PrivatePool(const PrivatePool&) = delete;
  PrivatePool& operator=(const PrivatePool&) = delete;

  npusim::alloc::PoolId id() const noexcept { return id_; }
  c10::DeviceIndex device() const noexcept { return device_; }
  std::size_t use_count() const;  // on device(): this object, and every scope that is open there
  npusim::alloc::PoolOptions options_on(c10::DeviceIndex device) const;

  // Memory that captures have had from this pool: their graphs use it without owning it. The
  // addresses stay the pool's for as long as it lives.
  void add_captured(npusim::alloc::Address begin, npusim::alloc::Address end);
  bool was_captured(npusim::alloc::Address address) const;

 private:
  npusim::alloc::PoolId id_;
  c10::DeviceIndex device_;
  npusim::alloc::PoolOptions options_;
  std::optional<PluggableFunctions> functions_;
  bool gives_back_;
  mutable std::mutex mutex_;                                           // guards the rest
  std::map<npusim::alloc::Address, npusim::alloc::Address> captured_;  // begin -> end
};

// make_pool() is a pool of a new id. find_pool() is the pool of that id, made anew if none lives,
// as on CUDA; nullptr for an id that was never given. A handle is an id without a pool yet.
std::shared_ptr<PrivatePool> make_pool(bool use_on_oom, bool no_split,
                                       const std::optional<PluggableFunctions>& functions);
std::shared_ptr<PrivatePool> find_pool(npusim::alloc::PoolId id);
npusim::alloc::PoolId make_pool_handle();

// begin_allocating_from() sends this thread's allocations on the device to the pool, until
// end_allocating_from(); with a stream those for that stream alone. The innermost scope of a device
// counts. Raises where this thread is in a scope of that pool and device already, or, at the end,
// in none.
void begin_allocating_from(const PrivatePool& pool, c10::DeviceIndex device,
                           const npusim::Stream* stream = nullptr);
void end_allocating_from(const PrivatePool& pool, c10::DeviceIndex device);

// current_pool() is where this thread's allocations on the device go.
npusim::alloc::PoolId current_pool(c10::DeviceIndex device) noexcept;

}  // namespace torch_npusim
