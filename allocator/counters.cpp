// SPDX-License-Identifier: BSD-3-Clause
// From counters to the Stats that people read.
#include "allocator/counters.h"

namespace npusim::alloc {

void Counters::reset_peak() noexcept {
  for_each_counter([](Counter& counter) { counter.peak = counter.current; });
}

void Counters::reset_accumulated() noexcept {
  for_each_counter([](Counter& counter) {
    counter.allocated = 0;
    counter.base = counter.current;
  });
  num_alloc_retries = num_ooms = num_sync_all_streams = num_device_alloc = num_device_free = 0;
}

Stats Counters::stats(std::int64_t max_split_bytes) const {
  Stats out;
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    out.allocation[pool] = pools_[pool][kAllocation].stat();
    out.segment[pool] = pools_[pool][kSegment].stat();
    out.active[pool] = pools_[pool][kActive].stat();
    out.inactive_split[pool] = pools_[pool][kInactiveSplit].stat();
    out.allocated_bytes[pool] = pools_[pool][kAllocatedBytes].stat();
    out.reserved_bytes[pool] = pools_[pool][kReservedBytes].stat();
    out.active_bytes[pool] = pools_[pool][kActiveBytes].stat();
    out.inactive_split_bytes[pool] = pools_[pool][kInactiveSplitBytes].stat();
    out.requested_bytes[pool] = pools_[pool][kRequestedBytes].stat();
  }
  out.num_alloc_retries = num_alloc_retries;
  out.num_ooms = num_ooms;
  out.num_sync_all_streams = num_sync_all_streams;
  out.num_device_alloc = num_device_alloc;
  out.num_device_free = num_device_free;
  out.oversize_allocations = oversize_allocations.stat();
  out.oversize_segments = oversize_segments.stat();
  out.max_split_bytes = max_split_bytes;
  return out;
}

}  // namespace npusim::alloc
