// SPDX-License-Identifier: BSD-3-Clause
// FreeIndex: the free blocks of one stream and pool, in exact best-fit order (bytes, order,
// address). One pairing heap per distinct size holds the ties; its links are in the blocks, so
// nothing is allocated per block and a block that is no heap root leaves without looking at its
// bin.
//
//   size -> bin:  small pool   one slot per multiple of the quantum + a bitmap of three levels
//                 large pool   sorted chunks of up to 64 distinct sizes
//
// CachingAllocator calls it, under its lock.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "allocator/block.h"

namespace npusim::alloc {

// precedes() is the tie-break among blocks of one size.
inline bool precedes(const Block* a, const Block* b) noexcept {
  return a->order != b->order ? a->order < b->order : a->address < b->address;
}

// ExactBins: slot i holds the heap of blocks of exactly i quanta, i < 2^18.
class ExactBins {
 public:
  static constexpr std::size_t kSlotLimit = std::size_t{1} << 18;

  ExactBins(std::size_t quantum_bytes, std::size_t max_bytes)
      : shift_(std::countr_zero(quantum_bytes)),
        roots_(static_cast<Block**>(std::calloc((max_bytes >> shift_) + 1, sizeof(Block*)))),
        words_((max_bytes >> shift_) / 64 + 1) {
    if (!roots_) throw std::bad_alloc();  // calloc: slots that are never used cost no memory
  }

  std::size_t quantum_bytes() const noexcept { return std::size_t{1} << shift_; }
  Block*& root(std::size_t bytes) noexcept { return roots_[bytes >> shift_]; }

  void mark_used(std::size_t bytes) noexcept {
    const std::size_t slot = bytes >> shift_;
    words_[slot / 64] |= bit(slot);
    groups_[slot / 4096] |= bit(slot / 64);
    top_ |= bit(slot / 4096);
  }

  void mark_empty(std::size_t bytes) noexcept {
    const std::size_t slot = bytes >> shift_;
    if ((words_[slot / 64] &= ~bit(slot)) != 0) return;
    if ((groups_[slot / 4096] &= ~bit(slot / 64)) != 0) return;
    top_ &= ~bit(slot / 4096);
  }

  // at_least() is the first root of a size >= bytes, or null.
  Block* at_least(std::size_t bytes) const noexcept {
    std::size_t slot = bytes >> shift_;
    std::size_t word = slot / 64;
    if (word >= words_.size()) return nullptr;
    if (const std::uint64_t here = words_[word] >> (slot % 64)) {
      return roots_[slot + static_cast<std::size_t>(std::countr_zero(here))];
    }
    std::size_t group = word / 64;
    std::uint64_t words = above(groups_[group], word);
    if (words == 0) {
      const std::uint64_t groups = above(top_, group);
      if (groups == 0) return nullptr;
      group = first(groups);
      words = groups_[group];
    }
    word = group * 64 + first(words);
    return roots_[word * 64 + first(words_[word])];
  }

 private:
  static std::uint64_t bit(std::size_t i) noexcept { return std::uint64_t{1} << (i % 64); }
  static std::size_t first(std::uint64_t bits) noexcept {
    return static_cast<std::size_t>(std::countr_zero(bits));
  }
  // above() keeps the bits strictly above position i % 64.
  static std::uint64_t above(std::uint64_t bits, std::size_t i) noexcept {
    return bits & ~(bit(i) | (bit(i) - 1));
  }

  struct Free {
    void operator()(Block** slots) const noexcept { std::free(slots); }
  };
  int shift_;
  std::unique_ptr<Block*[], Free> roots_;
  std::vector<std::uint64_t> words_;        // bit: the slot has a root
  std::array<std::uint64_t, 64> groups_{};  // bit: the word is not 0
  std::uint64_t top_ = 0;                   // bit: the group is not 0
};

// SortedBins: distinct sizes in ascending order, in chunks so that an insertion moves little.
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
  Cursor next(Cursor at) const noexcept;

  // insert() adds a size that is not there yet, before the position that seek() gave for it.
  Block*& insert(Cursor at, std::size_t bytes);
  void erase(Cursor at) noexcept;

 private:
  static constexpr std::size_t kChunk = 64;
  struct Chunk {
    std::size_t count = 0;
    std::array<std::size_t, kChunk> bytes{};
    std::array<Block*, kChunk> roots{};
  };
  Cursor found_;                   // of the last seek()
  std::vector<std::size_t> last_;  // largest size of each chunk, for the first step of a search
  std::vector<std::unique_ptr<Chunk>> chunks_;
};

class FreeIndex {
 public:
  // max_bytes bounds the blocks that will ever come, where it is known (small pool).
  FreeIndex(std::size_t quantum_bytes, std::size_t max_bytes) {
    if (max_bytes / quantum_bytes < ExactBins::kSlotLimit) exact_.emplace(quantum_bytes, max_bytes);
  }

  void insert(Block* block);
  void erase(Block* block) noexcept;

  // best() is the smallest block of at least `bytes`, the first in tie-break order among equals;
  // first() the first in tie-break order of all that are large enough. null: none.
  Block* best(std::size_t bytes) noexcept;
  Block* first(std::size_t bytes) noexcept;

  // in_order() lists every block in best-fit order. For cold paths: it sorts.
  std::vector<Block*> in_order();

 private:
  template <class Visit>
  void for_each_root(std::size_t bytes, Visit visit);

  std::optional<ExactBins> exact_;
  SortedBins sorted_;
};

}  // namespace npusim::alloc
