// SPDX-License-Identifier: BSD-3-Clause
// FreeIndex: the free blocks of one stream and pool, in exact best-fit order (bytes, order,
// address). One pairing heap per distinct size holds the ties; its links are in the blocks, so
// nothing is allocated per block, and one that is no root leaves without looking at its bin.
//
//   size -> heap:  ExactBins for the sizes of the small pool, SortedBins for all others
//
// For first fit they lie in OrderedBlocks instead, and the other questions take a walk.
//
// CachingAllocator calls it, under its lock.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "allocator/block.h"
#include "allocator/config.h"
#include "allocator/exact_bins.h"
#include "allocator/ordered_blocks.h"
#include "allocator/sorted_bins.h"

namespace npusim::alloc {

// precedes() is the tie-break among blocks of one size.
inline bool precedes(const Block* a, const Block* b) noexcept {
  return a->order != b->order ? a->order < b->order : a->address < b->address;
}

// precedes_in_size() is best-fit order.
inline bool precedes_in_size(const Block* a, const Block* b) noexcept {
  return a->bytes != b->bytes ? a->bytes < b->bytes : precedes(a, b);
}

class FreeIndex {
 public:
  // exact_bytes is the size up to which most blocks will come, where it is known (small pool).
  FreeIndex(Fit fit, std::size_t quantum_bytes, std::size_t exact_bytes)
      : ordered_(fit == Fit::first ? std::make_unique<OrderedBlocks>() : nullptr),
        exact_end_(
            !ordered_ && exact_bytes / quantum_bytes < ExactBins::kSlotLimit ? exact_bytes + 1 : 0),
        exact_(quantum_bytes, exact_end_ == 0 ? 0 : exact_bytes) {}

  void insert(Block* block);
  void erase(Block* block) noexcept;

  // find() is the block that the fit asks for. Of those that are large enough: for Fit::best the
  // smallest, and among equals the first in tie-break order; for Fit::first the first in tie-break
  // order. null: none.
  Block* find(std::size_t bytes) noexcept {
    return ordered_ ? ordered_->first(bytes) : best_in_bins(bytes);
  }

  // best() is what Fit::best finds, and after() what follows a block in best-fit order, or null.
  Block* best(std::size_t bytes) noexcept;
  Block* after(Block* block);

  // in_order() lists every block in best-fit order. For cold paths: it sorts.
  std::vector<Block*> in_order();

 private:
  template <class Accept>
  Block* least_ordered(Accept accept) const noexcept;

  Block* best_in_bins(std::size_t bytes) noexcept;
  Block* next_root(std::size_t bytes) noexcept;

  bool is_exact(std::size_t bytes) const noexcept { return bytes < exact_end_; }

  std::unique_ptr<OrderedBlocks> ordered_;  // null: the blocks are in the bins
  std::size_t exact_end_;
  ExactBins exact_;
  SortedBins sorted_;
};

}  // namespace npusim::alloc
