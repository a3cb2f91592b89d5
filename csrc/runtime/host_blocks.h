// SPDX-License-Identifier: BSD-3-Clause
// HostBlocks: large blocks of the host that kernels took before, kept for the next call: no more
// than were ever taken at once. Blocks of one size are alike, and sizes are rounded up by at most
// an eighth. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace torch_npusim {

class HostBlocks {
 public:
  static constexpr std::size_t kFrom = 1 << 16;  // below, the host's own allocator is as fast

  // take() raises what c10::alloc_cpu() raises.
  void* take(std::size_t bytes);

  // give() takes a block back; false: it is not from here.
  bool give(void* block);

  // release() gives the kept blocks back to the host.
  void release();

 private:
  void free_spare();

  std::mutex mutex_;
  std::atomic<std::size_t> taken_bytes_ = 0;
  std::size_t most_taken_ = 0, spare_bytes_ = 0;
  std::unordered_map<std::size_t, std::vector<void*>> spare_;
  std::unordered_map<void*, std::size_t> taken_;
};

// host_blocks() are those of this process.
HostBlocks& host_blocks();

}  // namespace torch_npusim
