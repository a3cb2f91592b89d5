// SPDX-License-Identifier: BSD-3-Clause
// The ring grows up to its capacity, so a large limit costs nothing until it is used.
#include "allocator/history.h"

namespace npusim::alloc {

void History::set_capacity(std::size_t max_entries) {
  clear();
  max_entries_ = max_entries;
}

void History::clear() {
  ring_.clear();
  ring_.shrink_to_fit();
  oldest_ = 0;
  dropped_ = 0;
}

void History::add(const HistoryEntry& entry) {
  if (ring_.size() < max_entries_) {
    ring_.push_back(entry);
    return;
  }
  ring_[oldest_] = entry;
  oldest_ = (oldest_ + 1) % ring_.size();
  ++dropped_;
}

std::vector<HistoryEntry> History::entries() const {
  const auto middle = ring_.begin() + static_cast<std::ptrdiff_t>(oldest_);
  std::vector<HistoryEntry> out(middle, ring_.end());
  out.insert(out.end(), ring_.begin(), middle);
  return out;
}

}  // namespace npusim::alloc
