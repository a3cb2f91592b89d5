// SPDX-License-Identifier: BSD-3-Clause
// Segments and ranges: which addresses of a device are free, and whether RAM can back more pages.
//
//   one device's offsets    |  segment  |      free      |  range: ..mapped..      |  free  ...
//   in the maps below       |   used    |      free      |  ranges     mapped      |
//   kernels' view           |   RW      |   PROT_NONE    |  NONE    RW       NONE  |  NONE
//
// A segment is accessible as a whole; a range only reserves addresses, and pages in it are mapped
// and unmapped one run at a time. Accessible memory is charged against two budgets: the simulated
// capacity (used_bytes), and RAM, because a page that is touched later without RAM behind it would
// end the process (SIGBUS, the OOM killer) instead of raising an error here. Pages that are shared
// with other processes lie in one file per device, at the offset that they have in the device.
#include "backend/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/config.h"
#include "backend/device.h"
#include "backend/error.h"
#include "backend/fault.h"
#include "backend/process.h"
#include "backend/ram_budget.h"
#include "backend/reservation.h"
#include "backend/stream.h"

namespace npusim {

constinit AddressMap g_address_map;

namespace {

using Ranges = std::map<std::size_t, std::size_t>;  // offset in the device -> bytes

struct DeviceMemory {
  std::size_t capacity_bytes = 0;
  std::size_t used_bytes = 0;  // of segments and mapped pages
  Ranges free;                 // addresses that are neither a segment's nor a range's
  Ranges used;                 // segments
  Ranges ranges;               // reserved ones,
  Ranges mapped;               // and the runs of mapped pages in them
  Ranges shared;               // of segments and mapped pages, those that lie in `file`
  int file = -1;               // see share_pages()
};

struct Memory {
  std::mutex mutex;  // guards everything below; held while pages are promised or given back
  std::vector<DeviceMemory> devices;
  std::size_t device_bytes = 0;  // addresses of each
  std::string backing = "not mapped yet";
};

Memory& memory() {
  static Memory* const kMemory = new Memory();  // leaked: frees arrive while the process exits
  return *kMemory;
}

// A size that rounding would overflow is far above any capacity; unrounded it fails alike.
std::size_t whole_pages(std::size_t bytes) {
  return bytes > SIZE_MAX / 2 ? bytes : round_up(bytes, page_bytes());
}

// --- promising pages ----------------------------------------------------------------------------

// Pages of [start, start + bytes) that are in RAM now, in bytes.
std::size_t resident_bytes(char* start, std::size_t bytes) {
  constexpr std::size_t kChunkPages = 1 << 16;
  static unsigned char pages[kChunkPages];  // under Memory::mutex
  std::size_t resident = 0;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t chunk = std::min(bytes - done, kChunkPages * page_bytes());
    if (mincore(start + done, chunk, pages) != 0) return resident;
    const auto end = pages + chunk / page_bytes();
    resident += page_bytes() * static_cast<std::size_t>(
                                   std::count_if(pages, end, [](auto p) { return (p & 1) != 0; }));
    done += chunk;
  }
  return resident;
}

char* kernel_view(int device, std::size_t offset) {
  const Address base =
      g_address_map.base + (static_cast<Address>(device) << g_address_map.stride_log2);
  return static_cast<char*>(kernel_alias(reinterpret_cast<void*>(base + offset)));
}

std::size_t touched_locked(const Memory& all) {
  std::size_t touched = 0;
  for (std::size_t device = 0; device < all.devices.size(); ++device) {
    for (const Ranges* accessible : {&all.devices[device].used, &all.devices[device].mapped}) {
      for (const auto& [offset, bytes] : *accessible) {
        touched += resident_bytes(kernel_view(static_cast<int>(device), offset), bytes);
      }
    }
  }
  // A sandbox may call every page resident; the resident size of the process is an upper bound.
  std::size_t total_pages = 0;
  std::size_t resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> total_pages >> resident_pages) {
    touched = std::min(touched, resident_pages * page_bytes());
  }
  return touched;
}

// Of what a probe finds free, this share may be promised before the next probe.
constexpr std::uint64_t kCreditShare = 16;

// Whether RAM can back `bytes` besides everything that is charged and not touched yet. Three
// answers of growing cost: a credit from the last probe; a probe that counts all charged memory as
// untouched; a probe that counts what is resident. `reason` is set when the answer is no.
bool ram_can_back(const Memory& all, std::size_t bytes, std::string* reason) {
  if (spend_ram_credit(bytes)) return true;
  const RamBudget budget = ram_budget();
  std::uint64_t promised = 0;
  for (const DeviceMemory& device : all.devices) promised += device.used_bytes;
  const auto fits = [&](std::uint64_t untouched) {
    return budget.available_bytes >= kRamHeadroomBytes &&
           budget.available_bytes - kRamHeadroomBytes >= untouched &&
           budget.available_bytes - kRamHeadroomBytes - untouched >= bytes;
  };
  if (fits(promised)) {  // as if nothing were touched: cheap, and enough almost always
    grant_ram_credit((budget.available_bytes - kRamHeadroomBytes - promised - bytes) /
                     kCreditShare);
    return true;
  }
  const std::uint64_t untouched = promised - std::min<std::uint64_t>(promised, touched_locked(all));
  if (fits(untouched)) return true;
  *reason = detail::join("the host cannot back ", format_bytes(bytes),
                         " more: ", format_bytes(budget.available_bytes), " are left by ",
                         budget.limit, ", ", format_bytes(untouched),
                         " of them are promised to memory already "
                         "allocated and ",
                         format_bytes(kRamHeadroomBytes),
                         " are kept for the process. Use less device memory, raise that limit, or "
                         "set NPUSIM_DEVICE_MEMORY to what the host has");
  return false;
}

// The lowest place for `bytes`; false when no free range is long enough. Large places begin on a
// huge page, so that the kernel may back them with huge pages.
bool find_place(const Ranges& free, std::size_t bytes, std::size_t* offset) {
  const std::size_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : page_bytes();
  for (const auto& [start, length] : free) {
    const std::size_t aligned = round_up(start, alignment);
    if (aligned - start <= length && length - (aligned - start) >= bytes) {
      *offset = aligned;
      return true;
    }
  }
  return false;
}

// Cuts [offset, offset + bytes) out of the free range around it.
void take(Ranges& free, std::size_t offset, std::size_t bytes) {
  const auto range = std::prev(free.upper_bound(offset));
  const auto [start, length] = *range;
  free.erase(range);
  if (offset > start) free[start] = offset - start;
  if (start + length > offset + bytes) free[offset + bytes] = start + length - offset - bytes;
}

// Puts a range back and joins it with its neighbours.
void put_back(Ranges& free, std::size_t offset, std::size_t bytes) {
  auto range = free.emplace(offset, bytes).first;
  const auto next = std::next(range);
  if (next != free.end() && offset + bytes == next->first) {
    range->second += next->second;
    free.erase(next);
  }
  if (range != free.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second == offset) {
      before->second += range->second;
      free.erase(range);
    }
  }
}

// Gives the pages back and makes them PROT_NONE. A fresh mapping over the old one also takes them
// off the limits of committed memory; if the table of mappings is full, dropping them must suffice.
void drop_pages(char* start, std::size_t bytes) {
  void* fresh =
      mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (fresh == MAP_FAILED) {
    madvise(start, bytes, MADV_DONTNEED);
    mprotect(start, bytes, PROT_NONE);
    return;
  }
  advise_device_memory(start, bytes);
}

using Status = SegmentResult::Status;

// Makes [offset, offset + bytes) accessible and charges it to the capacity.
SegmentResult commit(Memory& all, int device, std::size_t offset, std::size_t bytes) {
  std::string reason;
  if (!ram_can_back(all, bytes, &reason)) return {0, Status::ram_full, reason};
  char* const start = kernel_view(device, offset);
  if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) {
    return {
        0, Status::ram_full,
        detail::join("the host refused to commit ", format_bytes(bytes), " (", std::strerror(errno),
                     "). Use less device memory, or raise the limit that "
                     "applies: ulimit -d, ulimit -v, vm.overcommit_memory, vm.max_map_count")};
  }
  all.devices[static_cast<std::size_t>(device)].used_bytes += bytes;
  return {reinterpret_cast<Address>(device_alias(start)), Status::ok, {}};
}

SegmentResult acquire_locked(Memory& all, int device, std::size_t bytes) {
  DeviceMemory& own = all.devices[static_cast<std::size_t>(device)];
  const std::size_t left = own.capacity_bytes - own.used_bytes;
  if (bytes > left) {
    return {0, Status::device_full, ""};  // memory_info() says the rest
  }
  std::size_t offset = 0;
  if (!find_place(own.free, bytes, &offset)) {
    return {0, Status::device_full,
            detail::join("no free range of addresses is ", format_bytes(bytes), " long, although ",
                         format_bytes(left), " are free: the address space is fragmented")};
  }
  SegmentResult result = commit(all, device, offset, bytes);
  if (result.status != Status::ok) return result;
  take(own.free, offset, bytes);
  own.used.emplace(offset, bytes);
  return result;
}

SegmentResult reserve_locked(Memory& all, int device, std::size_t bytes) {
  DeviceMemory& own = all.devices[static_cast<std::size_t>(device)];
  std::size_t offset = 0;
  if (!find_place(own.free, bytes, &offset)) {
    return {0, Status::device_full,
            detail::join("no free range of addresses is ", format_bytes(bytes),
                         " long; raise ulimit -v if it is set, use fewer streams and memory pools "
                         "or no expandable segments, or keep fewer tensors of other processes")};
  }
  take(own.free, offset, bytes);
  own.ranges.emplace(offset, bytes);
  return {reinterpret_cast<Address>(device_alias(kernel_view(device, offset))), Status::ok, {}};
}

// Where an address lies in its device.
std::size_t offset_of(int device, Address address) {
  return address - g_address_map.base - (static_cast<Address>(device) << g_address_map.stride_log2);
}

// contains() is whether one of the ranges has all of [offset, offset + bytes).
bool contains(const Ranges& ranges, std::size_t offset, std::size_t bytes) {
  const auto after = ranges.upper_bound(offset);
  if (after == ranges.begin()) return false;
  const auto& [start, length] = *std::prev(after);
  return offset - start <= length && bytes <= length - (offset - start);
}

bool touches(const Ranges& ranges, std::size_t offset, std::size_t bytes) {
  const auto after = ranges.lower_bound(offset + bytes);
  if (after == ranges.begin()) return false;
  const auto& [start, length] = *std::prev(after);
  return start + length > offset;
}

// The part of [offset, offset + bytes) that one of the ranges has, and that begins first.
std::pair<std::size_t, std::size_t> first_part(const Ranges& ranges, std::size_t offset,
                                               std::size_t bytes) {
  auto range = ranges.upper_bound(offset);
  if (range != ranges.begin() && std::prev(range)->first + std::prev(range)->second > offset) {
    --range;
  }
  if (range == ranges.end() || range->first >= offset + bytes) return {offset + bytes, 0};
  const std::size_t start = std::max(range->first, offset);
  return {start, std::min(range->first + range->second, offset + bytes) - start};
}

// Pages that are given back leave the file, so that it does not keep their memory.
void leave_file(DeviceMemory& own, std::size_t offset, std::size_t bytes) {
  for (;;) {
    const auto [start, length] = first_part(own.shared, offset, bytes);
    if (length == 0) return;
    fallocate(own.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start),
              static_cast<off_t>(length));
    take(own.shared, start, length);
  }
}

// give_back() calls try_to(memory of the device, offset) under the lock, which returns false for
// what was never given. That is a defect of the layer above, and a destructor calls: it is reported
// on stderr and ignored.
template <class GiveBack>
void give_back(int device, Address address, std::size_t bytes, const char* what,
               const GiveBack& try_to) noexcept {
  if (in_bad_fork() || !initialized()) return;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (device >= 0 && static_cast<std::size_t>(device) < all.devices.size() &&
      device_of(reinterpret_cast<void*>(address)) == device &&
      try_to(all.devices[static_cast<std::size_t>(device)], offset_of(device, address))) {
    return;
  }
  std::fprintf(stderr, "npusim: internal error: release of an unknown %s %#zx of %zu bytes\n", what,
               static_cast<std::size_t>(address), bytes);
}

Memory& mapped_memory(int device) {
  check_device(device);
  NPUSIM_CHECK(initialized(), "device memory is not mapped yet; call initialize() first");
  return memory();
}

}  // namespace

void detail::map_device_memory() {
  const int count = device_count();
  if (count == 0) {
    memory().backing = "none: no device is visible";
    return;
  }
  const std::size_t capacity = device_spec(0).memory_bytes / page_bytes() * page_bytes();
  Memory& all = memory();
  const Reservation views = reserve_devices(capacity, count, config().isolation);
  all.device_bytes = views.device_bytes;
  all.backing = views.backing;
  all.devices.resize(static_cast<std::size_t>(count));
  for (DeviceMemory& device : all.devices) {
    device.capacity_bytes = capacity;
    device.free[0] = views.device_bytes;
  }
  const Address base = reinterpret_cast<Address>(views.users);
  g_address_map.stride_log2 = static_cast<unsigned>(std::countr_zero(views.stride_bytes));
  g_address_map.kernel_delta =
      static_cast<std::ptrdiff_t>(reinterpret_cast<Address>(views.kernels) - base);
  g_address_map.base = base;
  g_address_map.end.store(base + views.view_bytes, std::memory_order_release);
}

SegmentResult acquire_segment(int device, std::size_t bytes) {
  Memory& all = mapped_memory(device);
  NPUSIM_CHECK(bytes > 0, "a segment of 0 bytes was asked for; expected 1 byte or more");
  std::string reason;
  if (detail::draw_oom_fault(device, &reason)) return {0, Status::injected, reason};
  const std::lock_guard lock(all.mutex);
  return acquire_locked(all, device, whole_pages(bytes));
}

void release_segment(int device, Address address, std::size_t bytes) noexcept {
  give_back(device, address, bytes, "segment", [&](DeviceMemory& own, std::size_t offset) {
    const auto segment = own.used.find(offset);
    if (segment == own.used.end() || segment->second != whole_pages(bytes)) return false;
    drop_pages(kernel_view(device, offset), segment->second);
    leave_file(own, offset, segment->second);
    own.used_bytes -= segment->second;
    put_back(own.free, offset, segment->second);
    own.used.erase(segment);
    return true;
  });
}

SegmentResult reserve_range(int device, std::size_t bytes) {
  Memory& all = mapped_memory(device);
  NPUSIM_CHECK(bytes > 0, "a range of 0 bytes was asked for; expected 1 byte or more");
  const std::lock_guard lock(all.mutex);
  return reserve_locked(all, device, whole_pages(bytes));
}

void release_range(int device, Address address, std::size_t bytes) noexcept {
  give_back(device, address, bytes, "range", [&](DeviceMemory& own, std::size_t offset) {
    const auto range = own.ranges.find(offset);
    if (range == own.ranges.end() || range->second != whole_pages(bytes) ||
        touches(own.mapped, offset, range->second)) {
      return false;
    }
    drop_pages(kernel_view(device, offset), range->second);
    put_back(own.free, offset, range->second);
    own.ranges.erase(range);
    return true;
  });
}

SegmentResult map_pages(int device, Address address, std::size_t bytes) {
  Memory& all = mapped_memory(device);
  const std::size_t offset = offset_of(device, address);
  std::string reason;
  if (detail::draw_oom_fault(device, &reason)) return {0, Status::injected, reason};
  const std::lock_guard lock(all.mutex);
  DeviceMemory& own = all.devices[static_cast<std::size_t>(device)];
  NPUSIM_CHECK(bytes > 0 && bytes % page_bytes() == 0 && offset % page_bytes() == 0 &&
                   device_of(reinterpret_cast<void*>(address)) == device &&
                   contains(own.ranges, offset, bytes) && !touches(own.mapped, offset, bytes),
               "cannot map ", bytes, " bytes at ", reinterpret_cast<void*>(address), " of device ",
               device, "; expected whole pages of one range, none of them mapped");
  if (bytes > own.capacity_bytes - own.used_bytes) return {0, Status::device_full, ""};
  SegmentResult result = commit(all, device, offset, bytes);
  if (result.status == Status::ok) put_back(own.mapped, offset, bytes);
  return result;
}

void unmap_pages(int device, Address address, std::size_t bytes) noexcept {
  give_back(device, address, bytes, "run of pages", [&](DeviceMemory& own, std::size_t offset) {
    if (bytes % page_bytes() != 0 || offset % page_bytes() != 0 ||
        !contains(own.mapped, offset, bytes)) {
      return false;
    }
    drop_pages(kernel_view(device, offset), bytes);
    leave_file(own, offset, bytes);
    own.used_bytes -= bytes;
    take(own.mapped, offset, bytes);
    return true;
  });
}

namespace {

void open_file(const Memory& all, DeviceMemory& own) {
  if (own.file >= 0) return;
  const std::uint64_t bytes = all.device_bytes + kFileTailBytes;
  detail::check_file_limit(bytes);
  const int file = memfd_create("npusim_device", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    const std::string why = std::strerror(errno);
    if (file >= 0) close(file);
    throw OutOfMemory(
        detail::join("device memory cannot be shared: the host gives no file for it (", why, ")"));
  }
  own.file = file;
}

// Moves pages of the kernels' view into the file: a copy, put in their place by one mremap(), so
// that no address is ever unmapped. The caller holds AllTurns: no kernel writes meanwhile.
void move_into_file(char* pages, std::size_t bytes, int file, std::size_t offset) {
  void* copy =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (copy != MAP_FAILED) {
    static const std::vector<char> kZeros(page_bytes());
    for (std::size_t at = 0; at < bytes; at += page_bytes()) {  // untouched pages stay so
      if (std::memcmp(pages + at, kZeros.data(), page_bytes()) == 0) continue;
      std::memcpy(static_cast<char*>(copy) + at, pages + at, page_bytes());
    }
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pages) != MAP_FAILED) {
      advise_device_memory(pages, bytes);
      return;
    }
    munmap(copy, bytes);
  }
  throw OutOfMemory(detail::join("device memory cannot be shared: the host refused to map it (",
                                 std::strerror(errno),
                                 "); raise the limit that applies: ulimit -v, vm.max_map_count"));
}

}  // namespace

void detail::check_file_limit(std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes) return;
  throw OutOfMemory(detail::join("device memory cannot be shared: ulimit -f is below ",
                                 format_bytes(bytes), ", the addresses of a device; raise it"));
}

SharedPages share_pages(int device, Address address, std::size_t bytes) {
  Memory& all = mapped_memory(device);
  const std::size_t offset = offset_of(device, address);
  const std::size_t first = offset / page_bytes() * page_bytes();
  const std::size_t length = round_up(offset + bytes, page_bytes()) - first;
  DeviceMemory& own = all.devices[static_cast<std::size_t>(device)];
  {
    const std::lock_guard lock(all.mutex);
    if (contains(own.shared, first, length)) return {own.file, offset};
  }
  const AllTurns turns;
  const std::lock_guard lock(all.mutex);
  const Ranges& runs = contains(own.used, first, length) ? own.used : own.mapped;
  NPUSIM_CHECK(bytes > 0 && device_of(reinterpret_cast<void*>(address)) == device &&
                   contains(runs, first, length),
               "cannot share ", bytes, " bytes at ", reinterpret_cast<void*>(address),
               ": they are not memory that device ", device, " has given");
  open_file(all, own);
  // Whole huge pages, so that sharing a neighbour needs not stop all streams once more.
  const auto [run, run_bytes] = *std::prev(runs.upper_bound(first));
  const std::size_t end = std::min(run + run_bytes, round_up(first + length, kHugePageBytes));
  for (std::size_t at = std::max(run, first / kHugePageBytes * kHugePageBytes); at < end;) {
    const auto [there, there_bytes] = first_part(own.shared, at, end - at);
    while (at < there) {
      const std::size_t part = std::min(there - at, kHugePageBytes);
      move_into_file(kernel_view(device, at), part, own.file, at);
      put_back(own.shared, at, part);
      at += part;
    }
    at += there_bytes;
  }
  return {own.file, offset};
}

std::uint64_t file_tail(int device) { return mapped_memory(device).device_bytes; }

void map_file(int device, Address address, std::size_t bytes, int file, std::uint64_t offset) {
  Memory& all = mapped_memory(device);
  const std::size_t place = offset_of(device, address);
  const std::lock_guard lock(all.mutex);
  const DeviceMemory& own = all.devices[static_cast<std::size_t>(device)];
  const auto range = own.ranges.find(place);
  NPUSIM_CHECK(range != own.ranges.end() && range->second == bytes, "cannot map a file at ",
               reinterpret_cast<void*>(address), "; expected a range of ", bytes, " bytes");
  char* const view = kernel_view(device, place);
  if (mmap(view, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    drop_pages(view, bytes);
    throw OutOfMemory(detail::join("the host refused to map ", format_bytes(bytes),
                                   " of another process's device (", why,
                                   "); raise the limit that applies: ulimit -v, vm.max_map_count"));
  }
  advise_device_memory(view, bytes);
}

MemoryInfo memory_info(int device) {
  Memory& all = mapped_memory(device);
  const std::lock_guard lock(all.mutex);
  const DeviceMemory& own = all.devices[static_cast<std::size_t>(device)];
  return {own.capacity_bytes - own.used_bytes, own.capacity_bytes};
}

std::string memory_backing() {
  check_not_forked();
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  return all.backing;
}

std::size_t touched_bytes() {
  check_not_forked();
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  return touched_locked(all);
}

}  // namespace npusim
