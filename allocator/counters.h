// SPDX-License-Identifier: BSD-3-Clause
// Counters: the counters behind Stats, laid out for the hot path. A decrease is one subtraction;
// `freed` is derived: allocated - freed = current - base. CachingAllocator's lock guards it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "allocator/stats.h"

namespace npusim::alloc {

class Counters {
 public:
  enum Quantity : std::uint8_t {
    kAllocation,
    kAllocatedBytes,
    kActive,
    kActiveBytes,
    kRequestedBytes,
    kInactiveSplit,
    kInactiveSplitBytes,
    kSegment,
    kReservedBytes,
    kQuantities
  };

  struct Counter {
    std::int64_t current = 0;
    std::int64_t peak = 0;
    std::int64_t allocated = 0;
    std::int64_t base = 0;  // current at the last reset_accumulated()

    void increase(std::int64_t amount) noexcept {
      current += amount;
      allocated += amount;
      if (current > peak) peak = current;
    }
    void decrease(std::int64_t amount) noexcept { current -= amount; }
    // change() books one net amount of either sign.
    void change(std::int64_t net) noexcept {
      current += net;
      allocated += std::max<std::int64_t>(net, 0);
      peak = std::max(peak, current);
    }
    Stat stat() const noexcept { return {current, peak, allocated, allocated + base - current}; }
  };

  void increase(Quantity what, bool is_small, std::int64_t amount) noexcept {
    pools_[0][what].increase(amount);
    pools_[is_small ? 1 : 2][what].increase(amount);
  }
  void decrease(Quantity what, bool is_small, std::int64_t amount) noexcept {
    pools_[0][what].decrease(amount);
    pools_[is_small ? 1 : 2][what].decrease(amount);
  }
  void change(Quantity what, bool is_small, std::int64_t net) noexcept {
    pools_[0][what].change(net);
    pools_[is_small ? 1 : 2][what].change(net);
  }
  std::int64_t current(Quantity what) const noexcept { return pools_[0][what].current; }

  void reset_peak() noexcept;
  void reset_accumulated() noexcept;
  Stats stats(std::int64_t max_split_bytes) const;

  Counter oversize_allocations;
  Counter oversize_segments;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  std::int64_t num_sync_all_streams = 0;
  std::int64_t num_device_alloc = 0;
  std::int64_t num_device_free = 0;

 private:
  template <class Visit>
  void for_each_counter(Visit visit) {
    for (auto& pool : pools_) {
      for (Counter& counter : pool) visit(counter);
    }
    visit(oversize_allocations);
    visit(oversize_segments);
  }

  std::array<std::array<Counter, kQuantities>, 3> pools_{};  // all, small, large
};

}  // namespace npusim::alloc
