// SPDX-License-Identifier: BSD-3-Clause
// Blocks by their rounded size, under one lock.
#include "csrc/runtime/host_blocks.h"

#include <c10/core/impl/alloc_cpu.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <bit>

namespace torch_npusim {

void* HostBlocks::take(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes) / 8;
  const std::size_t size = (bytes + step - 1) / step * step;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<void*>& spare = spare_[size];
  void* block = nullptr;
  if (spare.empty()) {
    block = c10::alloc_cpu(size);
  } else {
    block = spare.back();
    spare.pop_back();
    spare_bytes_ -= size;
  }
  taken_.emplace(block, size);
  taken_bytes_ += size;
  most_taken_ = std::max(most_taken_, taken_bytes_.load());
  return block;
}

// Memory of all of torch is asked for: mostly none is taken.
bool HostBlocks::give(void* block) {
  if (C10_LIKELY(taken_bytes_.load(std::memory_order_relaxed) == 0)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto taken = taken_.find(block);
  if (taken == taken_.end()) return false;
  const std::size_t size = taken->second;
  taken_.erase(taken);
  taken_bytes_ -= size;
  if (spare_bytes_ + size > most_taken_) free_spare();
  spare_[size].push_back(block);
  spare_bytes_ += size;
  return true;
}

void HostBlocks::release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_spare();
  most_taken_ = taken_bytes_;
}

void HostBlocks::free_spare() {
  for (const auto& [size, blocks] : spare_) {
    for (void* block : blocks) c10::free_cpu(block);
  }
  spare_.clear();
  spare_bytes_ = 0;
}

HostBlocks& host_blocks() {
  static auto* blocks = new HostBlocks;  // what lies there may outlive main()
  return *blocks;
}

}  // namespace torch_npusim
