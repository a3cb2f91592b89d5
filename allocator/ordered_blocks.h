// SPDX-License-Identifier: BSD-3-Clause
// OrderedBlocks: free blocks of all sizes by (order, address), for first fit. They lie in chunks,
// and a search passes over a chunk by looking at one number, its largest size. A block that leaves
// makes an empty entry, which the next one to come there takes: what a split or a merge puts back
// moves nothing. FreeIndex calls it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "allocator/block.h"

namespace npusim::alloc {

class OrderedBlocks {
 public:
  OrderedBlocks();

  // insert() takes a block that is not there; erase() one that is, with the order and address that
  // it was inserted with.
  void insert(Block* block);
  void erase(Block* block) noexcept;

  // first() is the first block of at least `bytes`, or null.
  Block* first(std::size_t bytes) noexcept;

  // for_each() visits every block, in order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const std::unique_ptr<Chunk>& chunk : chunks_) {
      for (std::size_t i = 0; i < chunk->count; ++i) {
        if (Block* block = chunk->blocks[i]) visit(block);
      }
    }
  }

 private:
  using Place = unsigned __int128;  // order, then address: compared without a branch to mispredict
  static Place place_of(const Block* block) noexcept {
    return static_cast<Place>(block->order) << 64 | block->address;
  }

  static constexpr std::size_t kChunk = 64;
  struct Chunk {
    void shift_up(std::size_t entry) noexcept;
    void drop_empty() noexcept;

    std::size_t count = 0;                    // of entries
    std::size_t blocks_held = 0;              // of entries that are not empty
    std::array<std::size_t, kChunk> bytes{};  // 0: an empty entry
    std::array<Place, kChunk> places{};       // ascending, those of empty entries included
    std::array<Block*, kChunk> blocks{};
  };
  struct Cursor {
    std::size_t chunk = 0;
    std::size_t entry = 0;
  };

  // A cursor is valid until the next insert() or erase().
  Cursor seek(Place place) const noexcept;  // the first entry behind this place
  bool is_at(Cursor at, const Block* block) const noexcept;
  bool is_gap_for(Cursor at, Place place) const noexcept;
  Cursor make_entry(Place place);
  void make_room(std::size_t chunk);

  Cursor last_;  // what first() found or erase() emptied: the next call is often about it
  std::vector<Place> begin_;          // of each chunk but the first: nothing in it is before
  std::vector<std::size_t> at_most_;  // of each chunk: no block in it is larger
  std::vector<std::unique_ptr<Chunk>> chunks_;  // at least one; no other one is without blocks
};

}  // namespace npusim::alloc
