// SPDX-License-Identifier: BSD-3-Clause
// Ids, scopes and the end of private pools.
#include "csrc/runtime/memory_pools.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "backend/backend.h"
#include "csrc/errors.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

using npusim::alloc::PoolId;

std::atomic<std::uint64_t> g_last_id{0};

// A list, innermost first: one load tells an allocation that there is none.
struct Scope {
  PoolId pool;
  c10::DeviceIndex device;
  const npusim::Stream* stream;  // whose allocations; null: of all streams
  Scope* outer;
};
constinit thread_local Scope* t_innermost = nullptr;

Scope** find_scope(PoolId pool, c10::DeviceIndex device) noexcept {
  Scope** at = &t_innermost;
  while (*at != nullptr && ((*at)->pool != pool || (*at)->device != device)) at = &(*at)->outer;
  return at;
}

}  // namespace

PrivatePool::PrivatePool(PoolId id, npusim::alloc::PoolOptions options,
                         const std::optional<PluggableFunctions>& functions, bool gives_back)
    : id_(id),
      device_(checked_device(static_cast<c10::DeviceIndex>(-1))),
      options_(options),
      functions_(functions),
      gives_back_(gives_back) {
  translated([&] { live_allocator(device_).retain_pool(id_, options_on(device_)); });
}

npusim::alloc::PoolOptions PrivatePool::options_on(c10::DeviceIndex device) const {
  npusim::alloc::PoolOptions options = options_;
  if (functions_.has_value()) options.provider = &pluggable_provider(*functions_, device);
  return options;
}

PrivatePool::~PrivatePool() {
  if (npusim::in_bad_fork()) return;  // the parent's pool
  try {
    live_allocator(device_).release_pool(id_);
    if (gives_back_) release_cached_memory(id_);
  } catch (const std::exception& error) {
    TORCH_WARN("npusim: giving back a memory pool failed: ", error.what());
  }
}

std::size_t PrivatePool::use_count() const {
  for (const npusim::alloc::PoolInfo& pool : live_allocator(device_).pools()) {
    if (pool.id == id_) return pool.users;
  }
  return 0;
}

void PrivatePool::add_captured(npusim::alloc::Address begin, npusim::alloc::Address end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  npusim::alloc::Address& known = captured_[begin];
  known = std::max(known, end);
}

bool PrivatePool::was_captured(npusim::alloc::Address address) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto after = captured_.upper_bound(address);
  return after != captured_.begin() && address < std::prev(after)->second;
}

namespace {
struct KnownPools {
  std::mutex mutex;  // guards the rest
  std::map<std::uint64_t, std::weak_ptr<PrivatePool>> pools;
};
KnownPools& known_pools() {
  static auto* made = new KnownPools;
  return *made;
}

std::shared_ptr<PrivatePool> made_known(std::shared_ptr<PrivatePool> pool) {
  const std::lock_guard<std::mutex> lock(known_pools().mutex);
  std::erase_if(known_pools().pools, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<PrivatePool>& known = known_pools().pools[pool->id().second];
  if (auto other = known.lock()) return other;  // another thread has made it meanwhile
  known = pool;
  return pool;
}
}  // namespace

std::shared_ptr<PrivatePool> make_pool(bool use_on_oom, bool no_split,
                                       const std::optional<PluggableFunctions>& functions) {
  const npusim::alloc::PoolOptions options{
      .use_on_oom = use_on_oom, .no_split = no_split, .provider = nullptr};
  return made_known(
      std::make_shared<PrivatePool>(PoolId{0, ++g_last_id}, options, functions, true));
}

PoolId make_pool_handle() { return {0, ++g_last_id}; }

std::shared_ptr<PrivatePool> find_pool(PoolId id) {
  if (id.first != 0 || id.second == 0 || id.second > g_last_id) return nullptr;
  {
    const std::lock_guard<std::mutex> lock(known_pools().mutex);
    const auto known = known_pools().pools.find(id.second);
    if (known != known_pools().pools.end()) {
      if (std::shared_ptr<PrivatePool> pool = known->second.lock()) return pool;
    }
  }
  return made_known(
      std::make_shared<PrivatePool>(id, npusim::alloc::PoolOptions{}, std::nullopt, false));
}

void begin_allocating_from(const PrivatePool& pool, c10::DeviceIndex device,
                           const npusim::Stream* stream) {
  const c10::DeviceIndex index = checked_device(device);
  TORCH_CHECK(*find_scope(pool.id(), index) == nullptr, "this thread allocates from pool (",
              pool.id().first, ", ", pool.id().second, ") of device ", static_cast<int>(index),
              " already; leave that scope before entering it again");
  auto scope = std::make_unique<Scope>(Scope{pool.id(), index, stream, t_innermost});
  translated([&] { live_allocator(index).retain_pool(pool.id(), pool.options_on(index)); });
  t_innermost = scope.release();
}

void end_allocating_from(const PrivatePool& pool, c10::DeviceIndex device) {
  const c10::DeviceIndex index = checked_device(device);
  Scope** at = find_scope(pool.id(), index);
  TORCH_CHECK(*at != nullptr, "this thread does not allocate from pool (", pool.id().first, ", ",
              pool.id().second, ") of device ", static_cast<int>(index),
              "; leave a scope on the thread that entered it");
  const std::unique_ptr<Scope> scope(*at);
  *at = scope->outer;
  translated([&] { live_allocator(index).release_pool(pool.id()); });
}

PoolId current_pool(c10::DeviceIndex device) noexcept {
  for (const Scope* scope = t_innermost; scope != nullptr; scope = scope->outer) {
    if (scope->device != device) continue;
    if (scope->stream == nullptr || scope->stream == &npusim::current_stream(device)) {
      return scope->pool;
    }
  }
  return {};
}

}  // namespace torch_npusim
