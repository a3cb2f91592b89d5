// SPDX-License-Identifier: BSD-3-Clause
// Copies of every kind, contiguous and strided, against loops over single elements.
#include <cstring>
#include <numeric>
#include <random>
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
  CHECK_EQ(copy_kind(machine.memory[0], host), CommandKind::copy_h2d);
  CHECK_EQ(copy_kind(host, machine.memory[0]), CommandKind::copy_d2h);
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
  CHECK_EQ(cost(machine.memory[0], machine.host.data()), 5000 + 4000);         // 25 GB/s
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
  fill_bytes(nullptr, 1, 0, default_stream(0));
  const std::int64_t sizes[] = {3, 0};
  const std::int64_t strides[] = {1, 1};
  copy_strided({nullptr, nullptr, sizes, strides, strides, 4}, default_stream(0), true);
  CHECK_EQ(host_now_ns(), before);
}

TEST(a_copy_beyond_a_device_is_refused) {
  Machine machine;
  char* const end = reinterpret_cast<char*>(g_address_map.end.load());
  CHECK_THROWS(copy(end - 1, machine.host.data(), 2, default_stream(0), false), InvalidArgument);
  CHECK_THROWS(fill_bytes(machine.host.data(), 0, 1, default_stream(0)), InvalidArgument);
}

TEST(fill_sets_every_byte) {
  Machine machine;
  fill_bytes(machine.memory[1] + 10, kPoisonFresh, 500, default_stream(1));
  std::vector<unsigned char> back(502);
  copy(back.data(), machine.memory[1] + 9, 502, default_stream(1), true);
  CHECK_EQ(back[0], 0);
  CHECK_EQ(back[501], 0);
  for (int i = 1; i <= 500; ++i) CHECK_EQ(back[static_cast<std::size_t>(i)], kPoisonFresh);
}

// Random shapes, permuted and sliced on both sides, element by element.
TEST(strided_copies_agree_with_a_loop) {
  Machine machine;
  Stream& stream = default_stream(0);
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const std::size_t dims = random() % 5;
    const std::size_t element = std::size_t{1} << (random() % 6);  // 1 .. 32 bytes
    std::vector<std::int64_t> sizes(dims), to(dims), from(dims);
    const auto layout = [&](std::vector<std::int64_t>& strides, std::int64_t gap) {
      std::vector<std::size_t> order(dims);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      std::int64_t stride = static_cast<std::int64_t>(element) * gap;
      for (const std::size_t dim : order) {
        strides[dim] = stride;
        stride *= sizes[dim];
      }
    };
    for (auto& size : sizes) size = 1 + static_cast<std::int64_t>(random() % 6);
    layout(to, 1 + random() % 2);
    layout(from, 1 + random() % 3);
    if (dims > 0 && random() % 4 == 0) from[0] = 0;  // an expanded source
    fill_bytes(machine.memory[0], 0xEE, kBytes / 16, stream);
    copy_strided({machine.memory[0], machine.host.data(), sizes, to, from, element}, stream, false);
    std::vector<char> expected(kBytes / 16, static_cast<char>(0xEE));
    std::vector<std::int64_t> index(dims);
    for (bool more = true; more;) {
      const auto at = [&](const std::vector<std::int64_t>& strides) {
        return std::inner_product(index.begin(), index.end(), strides.begin(), std::int64_t{0});
      };
      std::memcpy(expected.data() + at(to), machine.host.data() + at(from), element);
      more = false;
      for (std::size_t dim = 0; dim < dims && !more; ++dim) {
        more = ++index[dim] < sizes[dim];
        if (!more) index[dim] = 0;
      }
    }
    std::vector<char> back(kBytes / 16);
    copy(back.data(), machine.memory[0], kBytes / 16, stream, true);
    CHECK(back == expected);
  }
}

TEST(negative_strides_reverse) {
  Machine machine;
  Stream& stream = default_stream(0);
  const std::int64_t sizes[] = {5};
  const std::int64_t forward[] = {4};
  const std::int64_t backward[] = {-4};
  const int numbers[] = {1, 2, 3, 4, 5};
  copy_strided({machine.memory[0], numbers + 4, sizes, forward, backward, 4}, stream, false);
  int back[5];
  copy(back, machine.memory[0], sizeof back, stream, true);
  for (int i = 0; i < 5; ++i) CHECK_EQ(back[i], 5 - i);
}

TEST(a_malformed_layout_is_refused) {
  Machine machine;
  const std::int64_t two[] = {2, 2};
  const std::int64_t minus[] = {-1, 2};
  const std::span<const std::int64_t> one(two, 1);
  char* const memory = machine.memory[0];
  const char* const host = machine.host.data();
  CHECK_THROWS(copy_strided({memory, host, two, one, two, 4}, default_stream(0), false),
               InvalidArgument);
  CHECK_THROWS(copy_strided({memory, host, two, two, two, 0}, default_stream(0), false),
               InvalidArgument);
  CHECK_THROWS(copy_strided({memory, host, minus, two, two, 4}, default_stream(0), false),
               InvalidArgument);
}
