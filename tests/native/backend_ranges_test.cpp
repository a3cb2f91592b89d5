// SPDX-License-Identifier: BSD-3-Clause
// Ranges of addresses whose pages come and go: charges, answers, contents, what is refused.
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

constexpr std::size_t kPage = 2 * kMiB;

}  // namespace

TEST(a_range_costs_addresses_only) {  // (rule M8)
  SmallDevices devices;
  const SegmentResult range = reserve_range(1, 9 * kCapacity / 8);
  CHECK_EQ(range.status, Status::ok);
  CHECK_EQ(range.address % kPage, 0);
  CHECK_EQ(device_of(pointer(range.address)), 1);
  CHECK_EQ(memory_info(1).free_bytes, kCapacity);
  const SegmentResult behind = acquire_segment(1, kPage);
  CHECK_EQ(behind.address, range.address + 9 * kCapacity / 8);
  release_segment(1, behind.address, kPage);
  release_range(1, range.address, 9 * kCapacity / 8);
  const SegmentResult again = acquire_segment(1, kPage);
  CHECK_EQ(again.address, range.address);
  release_segment(1, again.address, kPage);
}

TEST(many_ranges_fit_into_the_addresses_of_a_device) {  // (rule M8)
  SmallDevices devices;
  std::vector<Address> ranges;
  for (int i = 0; i < 56; ++i) {
    const SegmentResult range = reserve_range(0, 9 * kCapacity / 8);
    CHECK_EQ(range.status, Status::ok);
    ranges.push_back(range.address);
  }
  const SegmentResult one_more = reserve_range(0, 9 * kCapacity / 8);
  CHECK_EQ(one_more.status, Status::device_full);
  CHECK(one_more.reason.find("no free range of addresses is 72.00 MiB long") == 0);
  for (const Address range : ranges) release_range(0, range, 9 * kCapacity / 8);
}

TEST(pages_are_charged_when_mapped_and_zero_when_fresh) {  // (rules M4, M8)
  SmallDevices devices;
  const Address range = reserve_range(0, 2 * kCapacity).address;
  const SegmentResult mapped = map_pages(0, range + kPage, 3 * kPage);
  CHECK_EQ(mapped.status, Status::ok);
  CHECK_EQ(mapped.address, range + kPage);
  CHECK_EQ(memory_info(0).free_bytes, kCapacity - 3 * kPage);
  std::memset(bytes_of(range + kPage), 0xFF, 3 * kPage);
  CHECK_EQ(touched_bytes(), 3 * kPage);
  unmap_pages(0, range + 2 * kPage, kPage);  // the middle of what was mapped at once
  CHECK_EQ(touched_bytes(), 2 * kPage);
  CHECK_EQ(memory_info(0).free_bytes, kCapacity - 2 * kPage);
  CHECK_EQ(map_pages(0, range + 2 * kPage, kPage).status, Status::ok);
  for (std::size_t i = 0; i < kPage; i += 512) {
    CHECK_EQ(bytes_of(range + kPage)[i], '\xFF');
    CHECK_EQ(bytes_of(range + 2 * kPage)[i], 0);
  }
  unmap_pages(0, range + kPage, 3 * kPage);  // over two calls
  release_range(0, range, 2 * kCapacity);
}

TEST(the_capacity_is_shared_with_segments) {  // (rule M8)
  SmallDevices devices;
  const Address range = reserve_range(0, 2 * kCapacity).address;
  const SegmentResult segment = acquire_segment(0, kCapacity - 2 * kPage);
  const SegmentResult too_much = map_pages(0, range, 3 * kPage);
  CHECK_EQ(too_much.status, Status::device_full);
  CHECK_EQ(too_much.reason, "");
  CHECK_EQ(map_pages(0, range, 2 * kPage).status, Status::ok);
  CHECK_EQ(acquire_segment(0, 1).status, Status::device_full);
  unmap_pages(0, range, 2 * kPage);
  release_segment(0, segment.address, kCapacity - 2 * kPage);
  release_range(0, range, 2 * kCapacity);
}

TEST(mapping_can_be_refused_by_the_host_and_by_a_fault) {  // (rules M5, F2)
  SmallDevices devices;
  const Address range = reserve_range(0, kCapacity).address;
  set_ram_budget_for_testing(kRamHeadroomBytes + kPage);
  CHECK_EQ(map_pages(0, range, 2 * kPage).status, Status::ram_full);
  CHECK_EQ(map_pages(0, range, kPage).status, Status::ok);
  set_ram_budget_for_testing(std::nullopt);
  Fault rule;
  rule.kind = FaultKind::oom;
  rule.at = 1;
  inject_fault(rule);
  CHECK_EQ(map_pages(0, range + kPage, kPage).status, Status::injected);
  CHECK_EQ(map_pages(0, range + kPage, kPage).status, Status::ok);
  unmap_pages(0, range, 2 * kPage);
  release_range(0, range, kCapacity);
}

TEST(what_is_against_the_rules_changes_nothing) {
  SmallDevices devices;
  const Address range = reserve_range(0, 8 * kPage).address;
  const SegmentResult segment = acquire_segment(0, kPage);
  CHECK_EQ(map_pages(0, range + 2 * kPage, 2 * kPage).status, Status::ok);
  CHECK_THROWS(reserve_range(0, 0), InvalidArgument);
  CHECK_THROWS(reserve_range(2, kPage), InvalidArgument);
  CHECK_THROWS(map_pages(0, range, 0), InvalidArgument);
  CHECK_THROWS(map_pages(0, range, 3 * kPage), InvalidArgument);              // overlaps
  CHECK_THROWS(map_pages(0, range + 7 * kPage, 2 * kPage), InvalidArgument);  // beyond the end
  CHECK_THROWS(map_pages(0, segment.address, kPage), InvalidArgument);        // not in a range
  CHECK_THROWS(map_pages(0, range, 100), InvalidArgument);
  CHECK_THROWS(map_pages(1, range, kPage), InvalidArgument);
  unmap_pages(0, range + 3 * kPage, 2 * kPage);  // reported and ignored, as the next three
  unmap_pages(0, segment.address, kPage);
  release_range(0, range, 8 * kPage);
  release_range(0, range + kPage, kPage);
  CHECK_EQ(memory_info(0).free_bytes, kCapacity - 3 * kPage);
  unmap_pages(0, range + 2 * kPage, 2 * kPage);
  release_range(0, range, 8 * kPage);
  release_segment(0, segment.address, kPage);
}

// The oracle: one flag and one byte per page.
TEST(contents_and_charges_agree_with_a_bitmap) {  // (rule M8)
  SmallDevices devices;
  constexpr std::size_t kPages = 40;
  const Address range = reserve_range(0, kPages * kPage).address;
  std::vector<int> content(kPages, -1);  // -1: not mapped
  std::mt19937 random(1);
  std::size_t mapped = 0;
  for (int step = 0; step < 2000; ++step) {
    const std::size_t first = random() % kPages;
    const bool is_mapped = content[first] >= 0;
    std::size_t count = 0;
    while (first + count < kPages && count < 5 && (content[first + count] >= 0) == is_mapped) {
      ++count;
    }
    const Address address = range + first * kPage;
    if (is_mapped) {
      for (std::size_t i = 0; i < count; ++i) {
        CHECK_EQ(bytes_of(address + i * kPage)[kPage / 2], content[first + i]);
        content[first + i] = -1;
      }
      unmap_pages(0, address, count * kPage);
      mapped -= count;
    } else {
      const Status status = map_pages(0, address, count * kPage).status;
      CHECK_EQ(status == Status::ok, mapped + count <= kCapacity / kPage);
      for (std::size_t i = 0; i < count && status == Status::ok; ++i) {
        CHECK_EQ(bytes_of(address + i * kPage)[kPage / 2], 0);
        content[first + i] = static_cast<int>(random() % 128);
        bytes_of(address + i * kPage)[kPage / 2] = static_cast<char>(content[first + i]);
      }
      if (status == Status::ok) mapped += count;
    }
    CHECK_EQ(memory_info(0).free_bytes, kCapacity - mapped * kPage);
  }
  for (std::size_t page = 0; page < kPages; ++page) {
    if (content[page] >= 0) unmap_pages(0, range + page * kPage, kPage);
  }
  release_range(0, range, kPages * kPage);
}
