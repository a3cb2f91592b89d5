// SPDX-License-Identifier: BSD-3-Clause
// ExactBins: from block size to the heap of free blocks of exactly that size, for a pool whose
// blocks are small multiples of the quantum. A bit of three levels is set where a heap is not
// empty, so the next larger size is found with three words. FreeIndex owns the heaps; this only
// holds their roots.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "allocator/block.h"

namespace npusim::alloc {

// ExactBins: slot i holds the heap of blocks of exactly i quanta, i < 2^18.
class ExactBins {
 public:
  static constexpr std::size_t kSlotLimit = std::size_t{1} << 18;

  // For sizes up to `max_bytes`, below kSlotLimit quanta; the quantum is a power of two. Throws
  // std::bad_alloc.
  ExactBins(std::size_t quantum_bytes, std::size_t max_bytes)
      : shift_(std::countr_zero(quantum_bytes)),
        roots_(static_cast<Block**>(std::calloc((max_bytes >> shift_) + 1, sizeof(Block*)))),
        words_((max_bytes >> shift_) / 64 + 1) {
    if (!roots_) throw std::bad_alloc();  // calloc: slots that are never used cost no memory
  }

  std::size_t quantum_bytes() const noexcept { return std::size_t{1} << shift_; }
  // A root means something where its bit is set. The bits lie close together, the roots do not.
  bool is_used(std::size_t bytes) const noexcept {
    const std::size_t slot = bytes >> shift_;
    return (words_[slot / 64] & bit(slot)) != 0;
  }
  // root() is the heap of this size. The caller marks it used when it puts the first block there,
  // and empty when it takes the last.
  Block*& root(std::size_t bytes) noexcept { return roots_[bytes >> shift_]; }

  void mark_used(std::size_t bytes) noexcept {
    const std::size_t slot = bytes >> shift_;
    words_[slot / 64] |= bit(slot);
    groups_[slot / 4096] |= bit(slot / 64);
    top_ |= bit(slot / 4096);
  }

  // Without a branch: whether a word becomes 0 is anybody's guess.
  void mark_empty(std::size_t bytes) noexcept {
    const std::size_t slot = bytes >> shift_;
    std::uint64_t& word = words_[slot / 64];
    std::uint64_t& group = groups_[slot / 4096];
    word &= ~bit(slot);
    group &= ~(std::uint64_t{word == 0} << (slot / 64 % 64));
    top_ &= ~(std::uint64_t{group == 0} << (slot / 4096 % 64));
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

}  // namespace npusim::alloc
