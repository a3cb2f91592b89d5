// SPDX-License-Identifier: BSD-3-Clause
// Copies of every kind: bytes, costs, who waits.
#include <cstring>
#include <numeric>
#include <vector>

#include "backend/backend.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

constexpr std::size_t kBytes = std::size_t{2} << 20;

// A segment on each of two devices and bytes 0, 1, 2, ... on the host.
struct Machine {
  Machine() : host(kBytes) {
    initialize();
    for (const int device : {0, 1}) {
      synchronize_device(device);
      memory[device] = reinterpret_cast<char*>(acquire_segment(device, kBytes).address);
    }
    std::iota(host.begin(), host.end(), static_cast<char>(0));
  }
  ~Machine() {
    for (const int device : {0, 1}) {
      synchronize_device(device);
      release_segment(device, reinterpret_cast<Address>(memory[device]), kBytes);
    }
  }
  std::vector<char> host;
  char* memory[2];
};

}  // namespace

TEST(bytes_travel_from_host_through_both_devices_and_back) {  // (rule S6)
  Machine machine;
  Stream& stream = default_stream(0);
  char* const here = machine.memory[0];
  char* const there = machine.memory[1];
  copy(here, machine.host.data(), 1000, stream, false);
  copy(here + 5000, here, 1000, stream, false);
  copy(there + 77, here + 5000, 1000, stream, false);
  std::vector<char> back(1000);
  copy(back.data(), there + 77, 1000, default_stream(1), true);
  CHECK(std::memcmp(back.data(), machine.host.data(), 1000) == 0);
}

TEST(the_kind_follows_from_the_addresses) {  // (rule S6)
  Machine machine;
  char* const host = machine.host.data();
  CHECK_EQ(copy_kind(machine.memory[0], host), CommandKind::copy_h2d_pageable);
  CHECK_EQ(copy_kind(host, machine.memory[0]), CommandKind::copy_d2h_pageable);
  CHECK_EQ(copy_kind(machine.memory[0], machine.memory[0]), CommandKind::copy_d2d);
  CHECK_EQ(copy_kind(machine.memory[0], machine.memory[1]), CommandKind::copy_peer);
  CHECK_THROWS(copy_kind(host, host), InvalidArgument);
  CHECK_THROWS(copy(host, host + 1, 1, default_stream(0), false), InvalidArgument);
}

TEST(each_kind_has_its_bandwidth) {  // (rule C1)
  Machine machine;
  Stream& stream = default_stream(0);
  const auto cost = [&](void* dst, const void* src) {
    const std::int64_t before = std::max(stream.done_at_ns(), host_now_ns() + 4000);
    copy(dst, src, 100'000, stream, false);
    return stream.done_at_ns() - before;
  };
  CHECK_EQ(cost(machine.memory[0], machine.host.data()), 5000 + 12'500);       // pageable, 8 GB/s
  CHECK_EQ(cost(machine.memory[1], machine.memory[0]), 5000 + 1000);           // 100 GB/s
  CHECK_EQ(cost(machine.memory[0] + 200'000, machine.memory[0]), 2000 + 200);  // read and write
}

TEST(blocking_waits_and_so_does_pageable_memory) {  // (rule S6)
  Machine machine;
  Stream& stream = default_stream(0);
  char* const pinned = static_cast<char*>(pinned_allocate(kBytes));
  copy(machine.memory[0], machine.host.data(), kBytes, stream, false);
  CHECK(host_now_ns() < stream.done_at_ns());
  copy(machine.memory[0], machine.host.data(), kBytes, stream, true);
  CHECK_EQ(host_now_ns(), stream.done_at_ns());
  copy(pinned, machine.memory[0], kBytes, stream, false);
  CHECK(host_now_ns() < stream.done_at_ns());
  copy(machine.host.data(), machine.memory[0], kBytes, stream, false);
  CHECK_EQ(host_now_ns(), stream.done_at_ns());
  pinned_free(pinned);
}

TEST(a_copy_inside_a_command_does_not_wait) {  // (rule S4)
  Machine machine;
  Stream& stream = default_stream(0);
  const std::int64_t start = host_now_ns();
  run_now(stream, {"outer"},
          [&] { copy(machine.host.data(), machine.memory[0], 100, stream, true); });
  CHECK_EQ(machine.host[99], 0);  // the bytes have moved
  CHECK_EQ(host_now_ns(), start + 4000);
}

TEST(ranges_within_a_device_may_overlap) {  // (rule S6)
  Machine machine;
  Stream& stream = default_stream(0);
  copy(machine.memory[0], machine.host.data(), 200, stream, false);
  copy(machine.memory[0] + 1, machine.memory[0], 199, stream, false);
  std::vector<char> back(200);
  copy(back.data(), machine.memory[0], 200, stream, true);
  CHECK(std::memcmp(back.data() + 1, machine.host.data(), 199) == 0);
}

TEST(zero_bytes_are_no_command) {
  Machine machine;
  const std::int64_t before = host_now_ns();
  copy(nullptr, nullptr, 0, default_stream(0), true);
  CHECK_EQ(host_now_ns(), before);
}

TEST(a_copy_beyond_a_device_is_refused) {
  Machine machine;
  char* const end = reinterpret_cast<char*>(g_address_map.end.load());
  CHECK_THROWS(copy(end - 1, machine.host.data(), 2, default_stream(0), false), InvalidArgument);
}
