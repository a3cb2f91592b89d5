// SPDX-License-Identifier: BSD-3-Clause
// FreeIndex: the free blocks of one stream and pool, in exact best-fit order (bytes, order,
// address). One pairing heap per distinct size holds the ties; its links are in the blocks, so
// nothing is allocated per block, and one that is no root leaves without looking at its bin.
//
//   size -> heap:  ExactBins for the sizes of the small pool, SortedBins for all others
//
// CachingAllocator calls it, under its lock.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/block.h"
#include "allocator/exact_bins.h"
#include "allocator/sorted_bins.h"

namespace npusim::alloc {

// precedes() is the tie-break among blocks of one size.
inline bool precedes(const Block* a, const Block* b) noexcept {
  return a->order != b->order ? a->order < b->order : a->address < b->address;
}

class FreeIndex {
 public:
  // exact_bytes is the size up to which most blocks will come, where it is known (small pool).
  FreeIndex(std::size_t quantum_bytes, std::size_t exact_bytes)
      : exact_end_(exact_bytes / quantum_bytes < ExactBins::kSlotLimit ? exact_bytes + 1 : 0),
        exact_(quantum_bytes, exact_end_ == 0 ? 0 : exact_bytes) {}

  void insert(Block* block);
  void erase(Block* block) noexcept;

  // best() is the smallest block of at least `bytes`, the first in tie-break order among equals;
  // first() the first in tie-break order of all that are large enough. null: none.
  Block* best(std::size_t bytes) noexcept;
  Block* first(std::size_t bytes) noexcept;

  // after() is the block that follows in best-fit order, or null.
  Block* after(Block* block);

  // in_order() lists every block in best-fit order. For cold paths: it sorts.
  std::vector<Block*> in_order();

 private:
  template <class Visit>
  void for_each_root(std::size_t bytes, Visit visit);

  bool is_exact(std::size_t bytes) const noexcept { return bytes < exact_end_; }

  std::size_t exact_end_;
  ExactBins exact_;
  SortedBins sorted_;
};

}  // namespace npusim::alloc
