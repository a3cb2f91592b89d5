// SPDX-License-Identifier: BSD-3-Clause
// Reserves the addresses of all devices, twice: the view that users see and that of kernels.
// Invariant: both start on a huge page, nothing is accessible yet, no memory is used (rule M7).
// Called once, by memory.cpp.
#pragma once

#include <cstddef>
#include <string>

namespace npusim {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

std::size_t page_bytes();

inline std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Reservation {
  char* users = nullptr;  // the same as `kernels` without isolation
  char* kernels = nullptr;
  std::size_t device_bytes = 0;  // addresses that each device can use
  std::size_t stride_bytes = 0;  // from one device to the next; a power of two
  std::size_t view_bytes = 0;    // of one view
  std::string backing;           // for memory_backing()
};

// reserve_devices() reserves the same addresses in every process, or others where these are taken.
// It takes up to 64 times the capacity, so that neither holes between segments nor ranges of
// expandable ones use it up, and less under a limited address space. Warns on stderr when isolation
// does not fit. Throws OutOfMemory with the remedy when nothing fits.
Reservation reserve_devices(std::size_t capacity_bytes, int count, bool isolated);

// advise_device_memory() keeps a fresh mapping out of children and core dumps and asks for huge
// pages. A kernel that refuses a wish is still usable.
void advise_device_memory(void* start, std::size_t bytes) noexcept;

}  // namespace npusim
