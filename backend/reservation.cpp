// SPDX-License-Identifier: BSD-3-Clause
// The view that users see is never accessible, so no shared file is needed behind it, and the other
// view can be ordinary private memory with huge pages (first touch is 5 times faster than with the
// small pages of a memfd; a refused commitment is an error, not a signal).
#include "backend/reservation.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <vector>

#include "backend/error.h"

namespace npusim {

namespace {

// Room that a limited address space must keep for stacks, libraries and the host's heap.
constexpr std::size_t kProcessReserve = std::size_t{256} << 20;
// Both views of all devices together ask for no more than this by choice.
constexpr std::size_t kWantedAddressSpace = std::size_t{1} << 43;
// Where the two views begin, at every run: far from where Linux puts programs, libraries and
// stacks, and from AddressSanitizer's shadow.
constexpr std::uintptr_t kUsersAt = std::uintptr_t{0x20} << 40;
constexpr std::uintptr_t kKernelsAt = std::uintptr_t{0x30} << 40;
// ThreadSanitizer has its shadow there, asks for address 0 instead, and ends where it gets that.
constexpr bool kHasWantedAddresses =
#if defined(__SANITIZE_THREAD__)
    false;
#else
    true;
#endif
// Addresses per device, in capacities: an expandable segment takes 9/8 of the capacity, and every
// stream and memory pool has two of them.
constexpr std::size_t kMostFactor = 64;

constexpr const char* kElsewhere =
    "; not at its fixed addresses, so pointers differ from run to run";

struct Layout {
  std::size_t device_bytes = 0;
  std::size_t stride = 0;
  int count = 0;
  bool isolated = true;
  // The last device needs no padding after it.
  std::size_t view_bytes() const {
    return static_cast<std::size_t>(count - 1) * stride + device_bytes;
  }
  std::size_t total_bytes() const { return (isolated ? 2 : 1) * (view_bytes() + kHugePageBytes); }
};

// An inaccessible range at `wanted`, or on another huge page if something lies there or the machine
// has no such address; nullptr when refused.
char* reserve(std::size_t bytes, std::uintptr_t wanted) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* start = MAP_FAILED;
  if (kHasWantedAddresses) {
    void* const there = reinterpret_cast<void*>(wanted);
    start = mmap(there, bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (start == there) return static_cast<char*>(start);
    if (start != MAP_FAILED) munmap(start, bytes);  // by a kernel without the flag
  }
  const std::size_t asked = bytes + kHugePageBytes;
  start = mmap(nullptr, asked, PROT_NONE, kFlags, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  char* const first = static_cast<char*>(start);
  const std::size_t before =
      (kHugePageBytes - reinterpret_cast<std::uintptr_t>(first)) % kHugePageBytes;
  if (before > 0) munmap(first, before);
  munmap(first + before + bytes, kHugePageBytes - before);
  return first + before;
}

bool try_reserve(const Layout& layout, Reservation* result) {
  char* const users = layout.isolated ? reserve(layout.view_bytes(), kUsersAt) : nullptr;
  if (layout.isolated && users == nullptr) return false;
  char* const kernels = reserve(layout.view_bytes(), layout.isolated ? kKernelsAt : kUsersAt);
  if (kernels == nullptr) {
    if (users != nullptr) munmap(users, layout.view_bytes());
    return false;
  }
  *result = {layout.isolated ? users : kernels,
             kernels,
             layout.device_bytes,
             layout.stride,
             layout.view_bytes(),
             {}};
  return true;
}

// How much address space `ulimit -v` leaves; SIZE_MAX without a limit.
std::size_t address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::size_t used = pages * page_bytes();
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

// Layouts from generous to just the capacity.
std::vector<Layout> candidate_layouts(std::size_t capacity, int count, bool isolated) {
  const std::size_t least = round_up(capacity, kHugePageBytes);
  const std::size_t least_stride = std::bit_ceil(least);
  std::vector<Layout> layouts;
  for (std::size_t factor = kMostFactor; factor > 1; factor /= 2) {
    const std::size_t stride = least_stride * factor;
    const Layout layout{stride, stride, count, isolated};
    if (layout.total_bytes() <= kWantedAddressSpace) layouts.push_back(layout);
  }
  layouts.push_back({least, least_stride, count, isolated});
  return layouts;
}

[[noreturn]] void throw_no_address_space(std::size_t capacity, int count, std::size_t left) {
  const std::string limit =
      left == SIZE_MAX ? "" : detail::join(" (ulimit -v leaves ", format_bytes(left), ")");
  throw OutOfMemory(detail::join(
      "npusim cannot reserve address space for ", count, " device(s) of ", format_bytes(capacity),
      " each", limit,
      ". Lower NPUSIM_DEVICE_MEMORY (for example 512MiB) or NPUSIM_DEVICE_COUNT, or raise the "
      "limit of the address space (ulimit -v unlimited)."));
}

void warn_not_isolated() {
  std::fprintf(stderr,
               "npusim: warning: the address space has no room for two views of the device memory, "
               "so host code that touches it will not fault. Lower NPUSIM_DEVICE_MEMORY or raise "
               "ulimit -v; NPUSIM_ISOLATION=0 silences this.\n");
}

}  // namespace

std::size_t page_bytes() {
  static const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return kPage;
}

void advise_device_memory(void* start, std::size_t bytes) noexcept {
  madvise(start, bytes, MADV_DONTFORK);
  madvise(start, bytes, MADV_DONTDUMP);
  madvise(start, bytes, MADV_HUGEPAGE);
}

Reservation reserve_devices(std::size_t capacity_bytes, int count, bool isolated) {
  const std::size_t left = address_space_left();
  std::vector<Layout> layouts = candidate_layouts(capacity_bytes, count, isolated);
  if (isolated) layouts.push_back(candidate_layouts(capacity_bytes, count, false).back());
  Reservation views;
  for (const Layout& layout : layouts) {
    const bool generous = layout.device_bytes > round_up(capacity_bytes, kHugePageBytes);
    // Under a limit the spare addresses may take half of what is left, the rest all but a reserve.
    const std::size_t most = generous ? left / 2 : left - std::min(left, kProcessReserve);
    if (layout.total_bytes() > (left == SIZE_MAX ? left : most)) continue;
    if (!try_reserve(layout, &views)) continue;
    advise_device_memory(views.kernels, views.view_bytes);
    if (layout.isolated) advise_device_memory(views.users, views.view_bytes);
    views.backing = layout.isolated ? "anonymous memory, isolated"
                    : isolated ? "single mapping (no isolation): the address space has no room for "
                                 "two views"
                               : "single mapping (no isolation): NPUSIM_ISOLATION=0";
    if (reinterpret_cast<std::uintptr_t>(views.users) != kUsersAt) views.backing += kElsewhere;
    if (isolated && !layout.isolated) warn_not_isolated();
    return views;
  }
  throw_no_address_space(capacity_bytes, count, left);
}

}  // namespace npusim
