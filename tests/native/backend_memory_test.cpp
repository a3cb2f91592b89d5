// SPDX-License-Identifier: BSD-3-Clause
// Device memory: addresses, capacity, placement, what is given back, what the host can back.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "backend/backend.h"
#include "backend/ram_budget.h"
#include "tests/native/backend_small_devices.h"
#include "tests/native/check.h"

using namespace npusim;
using Status = SegmentResult::Status;

namespace {

Address base_of(int device) {
  return g_address_map.base + (static_cast<Address>(device) << g_address_map.stride_log2);
}

// Takes mappings of the process until the host refuses one more.
class NoMoreMappings {
 public:
  NoMoreMappings() {
    void* const area = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED);
    start_ = static_cast<char*>(area);
    for (std::size_t at = 0; mprotect(start_ + at, 4096, PROT_READ) == 0;) at += 2 * 4096;
    CHECK_EQ(errno, ENOMEM);
    // A new one is refused one later than a part of an old one.
    last_ = mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
  }
  ~NoMoreMappings() {
    munmap(start_, kBytes);
    munmap(last_, 4096);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 34;  // two million mappings
  char* start_ = nullptr;
  void* last_ = nullptr;
};

bool is_open(Address address) {  // for kernels
  std::array<int, 2> ends{};
  CHECK_EQ(pipe(ends.data()), 0);
  const bool open = write(ends[1], bytes_of(address), 1) == 1;
  for (const int end : ends) close(end);
  return open;
}

}  // namespace

TEST(an_address_tells_its_device_by_range) {  // (rule M1)
  SmallDevices devices;
  for (const int device : {0, 1}) {
    const SegmentResult segment = acquire_segment(device, kMiB);
    CHECK_EQ(segment.status, Status::ok);
    CHECK_EQ(device_of(pointer(segment.address)), device);
    CHECK_EQ(device_of(pointer(segment.address + kMiB - 1)), device);
    CHECK(device_alias(kernel_alias(pointer(segment.address))) == pointer(segment.address));
    CHECK(!is_device_address(bytes_of(segment.address)));
    release_segment(device, segment.address, kMiB);
  }
  CHECK_EQ(device_of(&devices), -1);
  CHECK_EQ(device_of(nullptr), -1);
  CHECK_EQ(device_of(pointer(g_address_map.base - 1)), -1);
  CHECK_EQ(device_of(pointer(g_address_map.end)), -1);
  CHECK_EQ(device_of(pointer(~Address{0})), -1);
}

TEST(memory_is_isolated_by_default) {  // (rule M2); the fault itself: backend_process_test
  SmallDevices devices;
  CHECK(memory_backing().rfind("anonymous memory, isolated", 0) == 0);
  CHECK(g_address_map.kernel_delta != 0);
}

TEST(segments_take_the_lowest_free_address) {  // (rule M3)
  SmallDevices devices;
  const SegmentResult a = acquire_segment(0, 2 * kMiB);
  const SegmentResult b = acquire_segment(0, 4 * kMiB);
  const SegmentResult c = acquire_segment(0, 2 * kMiB);
  CHECK_EQ(a.address, base_of(0));
  CHECK_EQ(b.address, base_of(0) + 2 * kMiB);
  CHECK_EQ(c.address, base_of(0) + 6 * kMiB);
  release_segment(0, b.address, 4 * kMiB);
  const SegmentResult page = acquire_segment(0, 1);
  CHECK_EQ(page.address, b.address);
  // From 2 MiB on starts are 2 MiB aligned, so the next one is behind the page.
  const SegmentResult d = acquire_segment(0, 2 * kMiB);
  CHECK_EQ(d.address, b.address + 2 * kMiB);
  const SegmentResult other = acquire_segment(1, 4096);
  CHECK_EQ(other.address, base_of(1));
  release_segment(1, other.address, 4096);
  release_segment(0, a.address, 2 * kMiB);
  release_segment(0, c.address, 2 * kMiB);
  release_segment(0, d.address, 2 * kMiB);
  release_segment(0, page.address, 1);
}

TEST(capacity_counts_whole_pages_and_refuses_with_a_reason) {  // (rule M3)
  SmallDevices devices;
  const SegmentResult page = acquire_segment(0, 1);
  CHECK_EQ(memory_info(0).free_bytes, kCapacity - 4096);
  CHECK_EQ(memory_info(1).free_bytes, kCapacity);
  const SegmentResult all = acquire_segment(0, kCapacity);
  CHECK_EQ(all.status, Status::device_full);
  CHECK_EQ(all.reason, "");
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 4095, std::size_t{1} << 60}) {
    CHECK_EQ(acquire_segment(0, bytes).status, Status::device_full);
  }
  const SegmentResult rest = acquire_segment(0, kCapacity - 4096);
  CHECK_EQ(rest.status, Status::ok);
  CHECK_EQ(memory_info(0).free_bytes, 0);
  release_segment(0, page.address, 1);
  release_segment(0, rest.address, kCapacity - 4096);
  CHECK_THROWS(acquire_segment(0, 0), InvalidArgument);
  CHECK_THROWS(acquire_segment(2, 1), InvalidArgument);
  CHECK_THROWS(memory_info(-1), InvalidArgument);
}

TEST(fragmented_addresses_do_not_use_up_the_capacity) {  // (rule M3)
  SmallDevices devices;
  std::vector<Address> segments;
  for (int i = 0; i < 32; ++i) segments.push_back(acquire_segment(0, 2 * kMiB).address);
  for (std::size_t i = 0; i < segments.size(); i += 2) {
    release_segment(0, segments[i], 2 * kMiB);
  }
  // Half of the capacity is free in holes of 2 MiB; one segment of that size still fits.
  const SegmentResult large = acquire_segment(0, kCapacity / 2);
  CHECK_EQ(large.status, Status::ok);
  release_segment(0, large.address, kCapacity / 2);
  for (std::size_t i = 1; i < segments.size(); i += 2) {
    release_segment(0, segments[i], 2 * kMiB);
  }
}

TEST(release_gives_pages_back_and_fresh_memory_is_zero) {  // (rule M4)
  SmallDevices devices;
  const SegmentResult first = acquire_segment(0, 8 * kMiB);
  CHECK_EQ(touched_bytes(), 0);  // sparse until used
  std::memset(bytes_of(first.address), 0xFF, 8 * kMiB);
  CHECK_EQ(touched_bytes(), 8 * kMiB);
  release_segment(0, first.address, 8 * kMiB);
  CHECK_EQ(touched_bytes(), 0);
  const SegmentResult second = acquire_segment(0, 8 * kMiB);
  CHECK_EQ(second.address, first.address);
  for (std::size_t i = 0; i < 8 * kMiB; i += 512) CHECK_EQ(bytes_of(second.address)[i], 0);
  release_segment(0, second.address, 8 * kMiB);
}

TEST(a_release_of_something_else_changes_nothing) {
  SmallDevices devices;
  const SegmentResult segment = acquire_segment(0, 2 * kMiB);
  release_segment(0, segment.address + 4096, 2 * kMiB);
  release_segment(0, segment.address, kMiB);
  release_segment(1, segment.address, 2 * kMiB);
  release_segment(7, 42, 1);
  CHECK_EQ(memory_info(0).free_bytes, kCapacity - 2 * kMiB);
  release_segment(0, segment.address, 2 * kMiB);
}

TEST(the_host_refuses_what_it_cannot_back) {  // (rule M5)
  SmallDevices devices;
  set_ram_budget_for_testing(kRamHeadroomBytes + 10 * kMiB);
  const SegmentResult one = acquire_segment(0, 8 * kMiB);
  CHECK_EQ(one.status, Status::ok);
  // Promised to the first segment, although not touched: 2 MiB are left, also for device 1.
  const SegmentResult two = acquire_segment(1, 4 * kMiB);
  CHECK_EQ(two.status, Status::ram_full);
  CHECK(two.reason.find("the host cannot back 4.00 MiB more") == 0);
  CHECK(two.reason.find("8.00 MiB of them are promised") != std::string::npos);
  CHECK(two.reason.find("NPUSIM_DEVICE_MEMORY") != std::string::npos);
  CHECK_EQ(memory_info(1).free_bytes, kCapacity);
  const SegmentResult three = acquire_segment(1, 2 * kMiB);
  CHECK_EQ(three.status, Status::ok);
  release_segment(1, three.address, 2 * kMiB);
  release_segment(0, one.address, 8 * kMiB);
}

TEST(touched_memory_is_not_counted_twice) {  // (rule M5)
  SmallDevices devices;
  const SegmentResult one = acquire_segment(0, 8 * kMiB);
  std::memset(bytes_of(one.address), 1, 8 * kMiB);
  // What is left is left besides the pages that are touched already.
  set_ram_budget_for_testing(kRamHeadroomBytes + 4 * kMiB);
  const SegmentResult two = acquire_segment(0, 4 * kMiB);
  CHECK_EQ(two.status, Status::ok);
  CHECK_EQ(acquire_segment(0, 4096).status, Status::ram_full);
  release_segment(0, two.address, 4 * kMiB);
  release_segment(0, one.address, 8 * kMiB);
  set_ram_budget_for_testing(0);
  CHECK_EQ(acquire_segment(0, 4096).status, Status::ram_full);
}

// The oracle: one flag per page, searched from the front.
TEST(placement_agrees_with_a_bitmap) {  // (rule M3)
  SmallDevices devices;
  constexpr std::size_t kPages = 4 * kCapacity / 4096;
  std::vector<bool> taken(kPages);
  std::vector<std::pair<std::size_t, std::size_t>> live;  // page, pages
  std::size_t used = 0;
  std::mt19937 random(1);
  for (int step = 0; step < 3000; ++step) {
    if (!live.empty() && random() % 2 == 0) {
      const std::size_t victim = random() % live.size();
      const auto [page, pages] = live[victim];
      release_segment(0, base_of(0) + page * 4096, pages * 4096);
      for (std::size_t i = 0; i < pages; ++i) taken[page + i] = false;
      used -= pages;
      live[victim] = live.back();
      live.pop_back();
      continue;
    }
    const std::size_t pages = random() % 4 == 0 ? 512 + random() % 3000 : 1 + random() % 700;
    const SegmentResult segment = acquire_segment(0, pages * 4096 - random() % 4096);
    if (used + pages > kCapacity / 4096) {
      CHECK_EQ(segment.status, Status::device_full);
      continue;
    }
    const std::size_t unit = pages >= 512 ? 512 : 1;
    std::size_t page = 0;
    for (std::size_t run = 0; run < pages;) {
      if (taken[page + run]) {
        page = (page + run) / unit * unit + unit;
        run = 0;
      } else {
        ++run;
      }
    }
    CHECK_EQ(segment.status, Status::ok);
    CHECK_EQ(segment.address, base_of(0) + page * 4096);
    for (std::size_t i = 0; i < pages; ++i) taken[page + i] = true;
    used += pages;
    live.emplace_back(page, pages);
  }
  for (const auto& [page, pages] : live) {
    release_segment(0, base_of(0) + page * 4096, pages * 4096);
  }
}

TEST(pinned_memory_is_known_by_address) {  // (rule M6)
  SmallDevices devices;
  char* a = static_cast<char*>(pinned_allocate(1000));
  char* b = static_cast<char*>(pinned_allocate(2 * kMiB));
  CHECK_EQ(reinterpret_cast<Address>(a) % 64, 0);
  CHECK(is_pinned(a) && is_pinned(a + 999) && !is_pinned(a + 1000) && is_pinned(b + kMiB));
  CHECK(!is_pinned(nullptr) && !is_pinned(&devices));
  CHECK_EQ(pinned_bytes(), 1000 + 2 * kMiB);
  pinned_free(a);
  CHECK(!is_pinned(a));
  pinned_free(a);  // reported and ignored
  pinned_free(nullptr);
  pinned_free(b);
  CHECK_EQ(pinned_bytes(), 0);
  CHECK_THROWS(pinned_allocate(0), InvalidArgument);
  CHECK_THROWS(pinned_allocate(SIZE_MAX), OutOfMemory);
  set_ram_budget_for_testing(kRamHeadroomBytes);
  CHECK_THROWS(pinned_allocate(2 * kMiB), OutOfMemory);
}

#if !defined(__SANITIZE_THREAD__)  // whose runtime ends the process where it gets no mapping
TEST(memory_is_given_back_where_the_host_has_no_mapping_left) {  // (rule M4)
  SmallDevices devices;
  const Address segment = acquire_segment(0, kMiB).address;
  bytes_of(segment)[0] = 1;
  CHECK(is_open(segment));
  {
    const NoMoreMappings all_taken;
    release_segment(0, segment, kMiB);
  }
  CHECK(!is_open(segment));
  CHECK_EQ(acquire_segment(0, kMiB).address, segment);
  CHECK_EQ(bytes_of(segment)[0], 0);
  release_segment(0, segment, kMiB);
}
#endif
