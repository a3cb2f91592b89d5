// SPDX-License-Identifier: BSD-3-Clause
// SortedBins: from block size to the heap of free blocks of exactly that size, for a pool whose
// blocks may have any size: distinct sizes in ascending order, in chunks so that an insertion moves
// little. FreeIndex owns the heaps; this only holds their roots.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "allocator/block.h"

namespace npusim::alloc {

class SortedBins {
 public:
  // A position: chunk and entry. Valid until the next insert() or erase().
  struct Cursor {
    std::size_t chunk = 0;
    std::size_t entry = 0;
  };

  // seek() is the first position whose size is >= bytes; at_end() where there is none.
  Cursor seek(std::size_t bytes) noexcept;
  bool at_end(Cursor at) const noexcept { return at.chunk >= chunks_.size(); }
  std::size_t bytes_at(Cursor at) const noexcept { return chunks_[at.chunk]->bytes[at.entry]; }
  Block*& root_at(Cursor at) noexcept { return chunks_[at.chunk]->roots[at.entry]; }

  // insert() adds a size that is not there yet, before the position that seek() gave for it, and
  // returns the place of its root. erase() removes a size whose heap is empty.
  Block*& insert(Cursor at, std::size_t bytes);
  void erase(Cursor at) noexcept;

 private:
  static constexpr std::size_t kChunk = 64;
  struct Chunk {
    std::size_t count = 0;
    std::array<std::size_t, kChunk> bytes;  // entries from count on are kUnlimited
    std::array<Block*, kChunk> roots;
  };
  std::unique_ptr<Chunk> new_chunk();

  Cursor found_;                   // of the last seek()
  std::vector<std::size_t> last_;  // largest size of each chunk, for the first step of a search
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::unique_ptr<Chunk> spare_;  // emptied last
};

}  // namespace npusim::alloc
