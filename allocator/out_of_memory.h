// SPDX-License-Identifier: BSD-3-Clause
// What the allocator knows at the moment it runs out, as numbers and as the text people read.
// malloc() fills an OutOfMemoryReport; csrc turns it into torch.OutOfMemoryError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "allocator/provider.h"

namespace npusim::alloc {

struct OutOfMemoryReport {
  enum class Cause : std::uint8_t {
    device_full,      // the provider had no room, or an injected failure said so
    ram_full,         // the machine under the simulated device has no room
    over_limit,       // the memory fraction forbids it
    over_one_exabyte  // the request was refused before any search; the numbers below are still true
  };
  Cause cause = Cause::device_full;
  std::size_t requested_bytes = 0;           // the caller's number
  std::size_t segment_bytes = 0;             // what the allocator tried to buy
  std::size_t total_bytes = 0;               // capacity of the device
  std::size_t free_bytes = 0;                // of the device
  std::optional<std::size_t> allowed_bytes;  // set by a memory fraction below 1
  std::size_t allocated_bytes = 0;
  std::size_t reserved_bytes = 0;
  std::size_t cached_bytes = 0;  // reserved and free: 'reserved but unallocated', less pending
  std::size_t largest_free_bytes = 0;    // the largest cached block
  std::size_t pending_bytes = 0;         // freed, waiting for other streams
  std::size_t private_cached_bytes = 0;  // the part of cached_bytes that lies in private pools
  std::string reason;                    // the provider's words

  // fragmentation() is 1 - largest_free / cached, 0 where nothing is cached.
  double fragmentation() const noexcept;
};

// format_bytes() writes 512 bytes, 2.00 KiB, 20.00 MiB, 1.50 GiB.
std::string format_bytes(std::size_t bytes);

// format_out_of_memory() writes the text of torch.OutOfMemoryError for a device called e.g.
// "NPUSIM"; of "CUDA" it says "GPU 0", as torch does. `remedy` replaces the advice at the end,
// which otherwise follows from the numbers.
std::string format_out_of_memory(const OutOfMemoryReport& report, std::string_view device_name,
                                 int device_index, std::string_view remedy = {});

}  // namespace npusim::alloc
