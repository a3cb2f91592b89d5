// SPDX-License-Identifier: BSD-3-Clause
// Pages in a file that others map, and who has a block. One process plays both sides: it opens the
// file a second time, as another one would.
#include <malloc.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/sharing.h"
#include "tests/native/backend_child.h"
#include "tests/native/backend_small_devices.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

std::int64_t bytes_in(int file) {
  struct stat found{};
  CHECK_EQ(fstat(file, &found), 0);
  return found.st_blocks * 512;
}

int g_freed = 0;
void count_free(void*) noexcept { ++g_freed; }

}  // namespace

TEST(a_limit_on_files_is_an_error) {  // and first, before there is a file
  SmallDevices devices;
  const Address segment = acquire_segment(1, kMiB).address;
  rlimit before{};
  CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{kMiB, before.rlim_max};
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  CHECK_THROWS(share_pages(1, segment, 1), OutOfMemory);
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  const SharedBlock message = send_block(1, segment, 4096);
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  CHECK_THROWS(receive_block(message), OutOfMemory);
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  CHECK_EQ(receive_block(message)->bytes(), 4096);
  release_sent(segment, &count_free, nullptr);
  release_segment(1, segment, kMiB);
}

TEST(shared_pages_keep_address_and_contents) {  // (rule M9)
  SmallDevices devices;
  const Address segment = acquire_segment(0, 8 * kMiB).address;
  for (std::size_t i = 0; i < 8; ++i) std::memset(bytes_of(segment + i * kMiB), int(i + 1), 100);
  const SharedPages pages = share_pages(0, segment + 3 * kMiB, 10);
  for (std::size_t i = 0; i < 8; ++i) CHECK_EQ(bytes_of(segment + i * kMiB)[99], int(i + 1));
  CHECK_EQ(bytes_in(pages.file), 2 * 4096);  // a stretch of 2 MiB, of which two pages are used
  const SharedPages more = share_pages(0, segment + kMiB, 6 * kMiB);
  CHECK_EQ(more.file, pages.file);
  CHECK_EQ(more.offset + 2 * kMiB, pages.offset);
  CHECK_EQ(bytes_in(pages.file), 8 * 4096);
  for (std::size_t i = 0; i < 8; ++i) CHECK_EQ(bytes_of(segment + i * kMiB)[99], int(i + 1));
  release_segment(0, segment, 8 * kMiB);
  CHECK_EQ(bytes_in(pages.file), 0);
  const Address again = acquire_segment(0, 8 * kMiB).address;
  CHECK_EQ(again, segment);
  CHECK_EQ(bytes_of(again)[0], 0);
  bytes_of(again)[0] = 1;
  CHECK_EQ(bytes_in(pages.file), 0);  // memory that nobody shares is in no file
  release_segment(0, again, 8 * kMiB);
}

TEST(pages_of_a_range_are_shared_too) {  // (rules M8, M9)
  SmallDevices devices;
  constexpr std::size_t kPage = 2 * kMiB;
  const Address range = reserve_range(1, 8 * kPage).address;
  CHECK_EQ(map_pages(1, range + kPage, 4 * kPage).status, SegmentResult::Status::ok);
  std::memset(bytes_of(range + kPage), 7, 4 * kPage);
  const SharedPages pages = share_pages(1, range + 2 * kPage + 100, kPage);
  const std::int64_t all = bytes_in(pages.file);  // with what other tests left in the tail
  CHECK(all >= std::int64_t(2 * kPage));
  unmap_pages(1, range + 2 * kPage, kPage);
  CHECK_EQ(bytes_in(pages.file), all - kPage);
  CHECK_EQ(bytes_of(range + 3 * kPage)[5], 7);
  unmap_pages(1, range + kPage, kPage);
  unmap_pages(1, range + 3 * kPage, 2 * kPage);
  CHECK_EQ(bytes_in(pages.file), all - 2 * kPage);
  release_range(1, range, 8 * kPage);
}

TEST(only_given_memory_is_shared) {
  SmallDevices devices;
  const Address segment = acquire_segment(0, kMiB).address;
  CHECK_THROWS(share_pages(0, segment + kMiB, 1), InvalidArgument);
  CHECK_THROWS(share_pages(0, segment, kMiB + 1), InvalidArgument);
  CHECK_THROWS(share_pages(1, segment, 1), InvalidArgument);
  release_segment(0, segment, kMiB);
}

TEST(a_block_is_received_once_and_freed_when_it_is_let_go) {  // (rules M9, M10, M12)
  SmallDevices devices;
  g_freed = 0;
  const Address segment = acquire_segment(0, kMiB).address;
  std::memset(bytes_of(segment), 3, kMiB);
  const SharedBlock message = send_block(0, segment + 5056, 5000);
  CHECK_EQ(held_by_others(), 1);
  release_sent(segment + 5056, &count_free, nullptr);
  CHECK_EQ(collect_sent(), 0);
  {
    const auto received = receive_block(message);
    CHECK(received->address() != segment + 5056);
    CHECK_EQ(received->address() % 4096, (segment + 5056) % 4096);
    CHECK_EQ(bytes_of(received->address())[4999], 3);
    bytes_of(received->address())[0] = 9;
    CHECK_EQ(bytes_of(segment + 5056)[0], 9);
    CHECK_EQ(memory_info(0).free_bytes, kCapacity - kMiB);
    CHECK_THROWS(receive_block(message), InvalidArgument);
    CHECK_THROWS(acknowledge_block(message), InvalidArgument);
    const SharedBlock another = send_block(0, segment + 5056, 5000);
    CHECK_EQ(receive_block(another).get(), received.get());
    CHECK_EQ(collect_sent(), 0);
  }
  CHECK_EQ(g_freed, 0);
  CHECK_EQ(collect_sent(), 1);
  CHECK_EQ(g_freed, 1);
  CHECK_THROWS(receive_block(message), InvalidArgument);
  CHECK_EQ(held_by_others(), 0);
  release_segment(0, segment, kMiB);
}

TEST(what_was_received_and_let_go_leaves_nothing) {
  SmallDevices devices;
  constexpr std::size_t kBlocks = 2048;
  const Address segment = acquire_segment(0, kBlocks * 1024).address;
  std::array<std::size_t, 2> in_use{};  // of the host, after each half
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const Address at = segment + block * 1024;
    CHECK_EQ(receive_block(send_block(0, at, 512))->bytes(), 512);
    release_sent(at, &count_free, nullptr);
    in_use[block / (kBlocks / 2)] = mallinfo2().uordblks;
  }
  release_segment(0, segment, kBlocks * 1024);
  CHECK(in_use[1] < in_use[0] + kBlocks / 2 * 16);
}

TEST(a_mapping_that_is_made_while_the_last_one_ends_keeps_its_lock) {  // (rule M10)
  SmallDevices devices;
  const Address segment = acquire_segment(0, kMiB).address;
  std::shared_ptr<ReceivedBlock> received;
  std::barrier both(2);
  std::atomic<bool> over{false};
  std::thread ends([&] {
    for (;;) {
      both.arrive_and_wait();
      if (over) return;
      received.reset();
      both.arrive_and_wait();
    }
  });
  std::size_t held = 0;
  constexpr std::size_t kRounds = 500;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const SharedBlock first = send_block(0, segment, 4096);
    const SharedBlock second = send_block(0, segment, 4096);
    received = receive_block(first);
    both.arrive_and_wait();
    const auto again = receive_block(second);
    both.arrive_and_wait();
    held += held_by_others();
  }
  over = true;
  both.arrive_and_wait();
  ends.join();
  CHECK_EQ(held, kRounds);
  CHECK_EQ(held_by_others(), 0);
  release_sent(segment, &count_free, nullptr);
  release_segment(0, segment, kMiB);
}

TEST(nothing_is_lost_while_pages_move) {  // (rule M9)
  SmallDevices devices;
  constexpr std::size_t kBlocks = 16;
  const Address segment = acquire_segment(0, 2 * kMiB * kBlocks).address;
  std::atomic<bool> stop{false};
  std::array<std::atomic<std::uint64_t>, 2> counted{};
  std::vector<std::thread> writers;
  for (std::size_t i = 0; i < 2; ++i) {
    writers.emplace_back([&, i] {  // each counts in every stretch of pages, at a place of its own
      Stream& stream = next_stream(0, 0);
      while (!stop) {
        submit(stream, {"count", CommandKind::kernel}, [&] {
          for (std::size_t block = 0; block < kBlocks; ++block) {
            std::uint64_t value = 0;
            char* const place = bytes_of(segment + block * 2 * kMiB + 64 * i);
            std::memcpy(&value, place, sizeof value);
            ++value;
            std::memcpy(place, &value, sizeof value);
          }
        });
        ++counted[i];
      }
    });
  }
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const std::uint64_t first = counted[0], second = counted[1];
    while (counted[0] == first || counted[1] == second) std::this_thread::yield();
    share_pages(0, segment + block * 2 * kMiB, 4096);
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  for (std::size_t block = 0; block < kBlocks; ++block) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes_of(segment + block * 2 * kMiB + 64 * i), sizeof value);
      CHECK_EQ(value, counted[i].load());
    }
  }
  release_segment(0, segment, 2 * kMiB * kBlocks);
}

TEST(work_without_a_turn_is_waited_for) {
  SmallDevices devices;
  std::atomic<bool> started{false}, over{false};
  std::thread python([&] {
    CommandInfo info{"python", CommandKind::kernel};
    info.keeps_turn = false;
    submit(default_stream(0), info, [&] {
      started = true;
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      over = true;
    });
  });
  while (!started) std::this_thread::yield();
  {
    const AllTurns turns;
    CHECK(over);
  }
  python.join();
  submit(default_stream(0), {"body", CommandKind::kernel},
         [] { CHECK_THROWS(AllTurns(), InvalidArgument); });
}

TEST(a_forked_child_leaves_what_was_sent_alone) {  // (rules P2, M10)
  SmallDevices devices;
  g_freed = 0;
  const Address segment = acquire_segment(0, kMiB).address;
  const SharedBlock message = send_block(0, segment, 100);
  const int status = child::run([&] {
    release_sent(segment, &count_free, nullptr);
    CHECK_EQ(collect_sent(), 0);
    CHECK_EQ(g_freed, 0);
    CHECK_THROWS(receive_block(message), InvalidArgument);
  });
  CHECK(child::exited(status));
  CHECK_EQ(held_by_others(), 1);
  acknowledge_block(message);
  CHECK_EQ(held_by_others(), 0);
  release_sent(segment, &count_free, nullptr);
  CHECK_EQ(g_freed, 1);
  release_segment(0, segment, kMiB);
}
