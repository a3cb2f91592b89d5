// SPDX-License-Identifier: BSD-3-Clause
// Device memory: one reserved range for all devices, seen twice (rules M1-M7).
//
//   users see    [base ........ device 0 ........ | ........ device 1 ........ )  never accessible
//                   + kernel_delta, one addition
//   kernels see  [            readable and writable where a segment is acquired             )
//
// Invariant: device i owns [base + i << stride_log2, base + (i + 1) << stride_log2), cut at `end`.
// Segments are acquired by csrc/runtime/device_allocator.cpp; kernels and copies translate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace npusim {

using Address = std::uintptr_t;

// Bytes that poisoning writes (NPUSIM_POISON).
inline constexpr unsigned char kPoisonFresh = 0xD0;
inline constexpr unsigned char kPoisonFreed = 0xDF;

struct AddressMap {
  std::atomic<Address> base{0}, end{0};
  std::atomic<unsigned> stride_log2{0};
  std::atomic<std::ptrdiff_t> kernel_delta{0};
};
// Written once by initialize(), `end` last; all zero before.
extern constinit AddressMap g_address_map;

// is_device_address() is one range compare; false for everything before initialize().
inline bool is_device_address(const void* pointer) noexcept {
  const Address address = reinterpret_cast<Address>(pointer);
  const Address end = g_address_map.end.load(std::memory_order_acquire);
  return address < end && address >= g_address_map.base.load(std::memory_order_relaxed);
}

// device_of() is the device that owns the address, or -1.
inline int device_of(const void* pointer) noexcept {
  if (!is_device_address(pointer)) return -1;
  const Address offset =
      reinterpret_cast<Address>(pointer) - g_address_map.base.load(std::memory_order_relaxed);
  return static_cast<int>(offset >> g_address_map.stride_log2.load(std::memory_order_relaxed));
}

// kernel_alias() is where kernels read and write a device address; device_alias() is the way back.
// Neither checks; both are meaningless for other addresses.
inline void* kernel_alias(const void* device_address) noexcept {
  return reinterpret_cast<void*>(
      reinterpret_cast<Address>(device_address) +
      static_cast<Address>(g_address_map.kernel_delta.load(std::memory_order_relaxed)));
}
inline void* device_alias(const void* host_address) noexcept {
  return reinterpret_cast<void*>(
      reinterpret_cast<Address>(host_address) -
      static_cast<Address>(g_address_map.kernel_delta.load(std::memory_order_relaxed)));
}

struct SegmentResult {
  enum class Status {
    ok,
    device_full,  // the simulated capacity is used up
    ram_full,     // the machine or its cgroup could not back the bytes; `reason` has the remedy
    injected,     // an armed oom fault (rule F2)
  };
  Address address = 0;
  Status status = Status::ok;
  std::string reason;  // empty when ok, and when the capacity simply is used up
};

// acquire_segment() makes `bytes`, rounded up to whole pages, accessible at the lowest free address
// of the device: 2 MiB aligned from 2 MiB on, page aligned below. Fresh pages read as zero. Bytes
// are charged to the capacity at once and to the host when touched. Thread-safe. Throws
// InvalidArgument (bytes == 0, bad device, forked child). A lost device answers `injected`.
SegmentResult acquire_segment(int device, std::size_t bytes);

// release_segment() gives pages and capacity back; the caller has synchronised. Does nothing in a
// forked child. An unknown segment is reported on stderr and ignored.
void release_segment(int device, Address address, std::size_t bytes) noexcept;

// Memory by the page, for segments that grow and shrink in place. reserve_range() keeps `bytes`,
// rounded up to whole pages, of the device's addresses, placed like a segment but without memory:
// no capacity is charged and nothing is accessible. map_pages() makes a part accessible, all of it
// or none, with the charges, faults and answers of acquire_segment(); the part is whole pages of
// one range, none of them mapped. unmap_pages() takes back any part that is mapped, however it was;
// release_range() ends a range in which no page is mapped by map_pages(). The two that give back
// are as release_segment(); the others throw InvalidArgument for what is against these rules.
SegmentResult reserve_range(int device, std::size_t bytes);
void release_range(int device, Address address, std::size_t bytes) noexcept;
SegmentResult map_pages(int device, Address address, std::size_t bytes);
void unmap_pages(int device, Address address, std::size_t bytes) noexcept;

// share_pages() moves the accessible pages of [address, address + bytes) into the device's file, at
// the offset that they have in the device, so that other processes may map them. The file has no
// name. All streams of this process wait meanwhile (AllTurns), unless the pages are there already.
// Pages leave the file when they are released. Throws InvalidArgument for memory that is not
// accessible, OutOfMemory if the host has no file or mapping left.
struct SharedPages {
  int file;              // this process's descriptor, for as long as it lives
  std::uint64_t offset;  // of `address` in the file
};
SharedPages share_pages(int device, Address address, std::size_t bytes);

// file_tail() is where the pages of a device end in its file; share_pages() leaves kFileTailBytes
// after them for the receipts of sharing.h.
std::uint64_t file_tail(int device);
inline constexpr std::uint64_t kFileTailBytes = std::uint64_t{8} << 20;

// map_file() makes a whole range of reserve_range() accessible: pages of another process's device,
// which charge nothing here. release_range() ends that too.
void map_file(int device, Address address, std::size_t bytes, int file, std::uint64_t offset);

struct MemoryInfo {
  std::size_t free_bytes, total_bytes;
};
MemoryInfo memory_info(int device);

// memory_backing(): "anonymous memory, isolated" or "single mapping (no isolation): <why>", and
// whether addresses differ from run to run.
std::string memory_backing();

// touched_bytes() is the acquired memory of all devices that is in RAM now.
std::size_t touched_bytes();

namespace detail {
// Throws OutOfMemory where to write at the end of so long a file would end the process (SIGXFSZ).
void check_file_limit(std::uint64_t bytes);

void map_device_memory();  // once, by initialize(), under its lock
}  // namespace detail

}  // namespace npusim
