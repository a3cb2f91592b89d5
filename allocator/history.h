// SPDX-License-Identifier: BSD-3-Clause
// History: the ring buffer of events. While it is off, recording costs its caller one branch.
// CachingAllocator owns one, under its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/snapshot.h"

namespace npusim::alloc {

class History {
 public:
  bool recording() const noexcept { return max_entries_ > 0; }

  // set_capacity() drops all entries; 0 turns recording off.
  void set_capacity(std::size_t max_entries);
  void clear();
  void add(const HistoryEntry& entry);  // overwrites the oldest entry when full

  std::vector<HistoryEntry> entries() const;  // oldest first
  std::uint64_t dropped() const noexcept { return dropped_; }

 private:
  std::size_t max_entries_ = 0;
  std::size_t oldest_ = 0;
  std::uint64_t dropped_ = 0;
  std::vector<HistoryEntry> ring_;
};

}  // namespace npusim::alloc
