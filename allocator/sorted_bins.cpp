// SPDX-License-Identifier: BSD-3-Clause
// Searching, splitting and shrinking the chunks.
#include "allocator/sorted_bins.h"

#include <algorithm>

#include "allocator/config.h"

namespace npusim::alloc {
namespace {

// lower_bound() is std::lower_bound without a branch to mispredict.
std::size_t lower_bound(const std::size_t* sorted, std::size_t count, std::size_t bytes) noexcept {
  const std::size_t* at = sorted;
  for (; count > 1; count -= count / 2) {
    at += (count / 2) & -static_cast<std::size_t>(at[count / 2 - 1] < bytes);
  }
  return static_cast<std::size_t>(at - sorted) + (count == 1 && *at < bytes);
}

// count_below() is lower_bound() of a whole chunk: every eighth entry, then those of one eight. No
// comparison waits for another.
std::size_t count_below(const std::size_t* sorted, std::size_t bytes) noexcept {
  std::size_t eights = 0;  // whose entries are all below
  for (std::size_t i = 0; i < 7; ++i) eights += sorted[8 * i + 7] < bytes;
  std::size_t ones = 0;
  for (std::size_t i = 0; i < 8; ++i) ones += sorted[8 * eights + i] < bytes;
  return 8 * eights + ones;
}

}  // namespace

SortedBins::Cursor SortedBins::seek(std::size_t bytes) noexcept {
  // A search is often followed by the removal of what it found.
  if (!at_end(found_) && found_.entry < chunks_[found_.chunk]->count && bytes_at(found_) == bytes) {
    return found_;
  }
  found_ = {lower_bound(last_.data(), last_.size(), bytes), 0};
  if (!at_end(found_)) {
    const Chunk& chunk = *chunks_[found_.chunk];
    found_.entry = count_below(chunk.bytes.data(), bytes);
  }
  return found_;
}

// A pool that fills and empties takes its chunk up again.
std::unique_ptr<SortedBins::Chunk> SortedBins::new_chunk() {
  auto chunk = spare_ ? std::move(spare_) : std::make_unique_for_overwrite<Chunk>();
  chunk->bytes.fill(kUnlimited);
  return chunk;
}

Block*& SortedBins::insert(Cursor at, std::size_t bytes) {
  if (at_end(at)) {  // beyond every size: goes to the end of the last chunk
    if (chunks_.empty()) {
      chunks_.push_back(new_chunk());
      last_.push_back(bytes);
    }
    at = {chunks_.size() - 1, chunks_.back()->count};
  }
  if (chunks_[at.chunk]->count == kChunk) {  // full: the upper half moves to a chunk of its own
    auto upper = new_chunk();
    Chunk& lower = *chunks_[at.chunk];
    constexpr std::size_t half = kChunk / 2;
    std::copy(lower.bytes.begin() + half, lower.bytes.end(), upper->bytes.begin());
    std::copy(lower.roots.begin() + half, lower.roots.end(), upper->roots.begin());
    std::fill(lower.bytes.begin() + half, lower.bytes.end(), kUnlimited);
    upper->count = lower.count = half;
    const auto after = static_cast<std::ptrdiff_t>(at.chunk) + 1;
    last_.insert(last_.begin() + after, last_[at.chunk]);
    last_[at.chunk] = lower.bytes[half - 1];
    chunks_.insert(chunks_.begin() + after, std::move(upper));
    if (at.entry > half) at = {at.chunk + 1, at.entry - half};
  }
  Chunk& chunk = *chunks_[at.chunk];
  const auto begin = static_cast<std::ptrdiff_t>(at.entry);
  const auto end = static_cast<std::ptrdiff_t>(chunk.count);
  std::copy_backward(chunk.bytes.begin() + begin, chunk.bytes.begin() + end,
                     chunk.bytes.begin() + end + 1);
  std::copy_backward(chunk.roots.begin() + begin, chunk.roots.begin() + end,
                     chunk.roots.begin() + end + 1);
  ++chunk.count;
  chunk.bytes[at.entry] = bytes;
  chunk.roots[at.entry] = nullptr;
  last_[at.chunk] = chunk.bytes[chunk.count - 1];
  return chunk.roots[at.entry];
}

void SortedBins::erase(Cursor at) noexcept {
  Chunk& chunk = *chunks_[at.chunk];
  const auto begin = static_cast<std::ptrdiff_t>(at.entry);
  const auto end = static_cast<std::ptrdiff_t>(chunk.count);
  std::copy(chunk.bytes.begin() + begin + 1, chunk.bytes.begin() + end,
            chunk.bytes.begin() + begin);
  std::copy(chunk.roots.begin() + begin + 1, chunk.roots.begin() + end,
            chunk.roots.begin() + begin);
  chunk.bytes[chunk.count - 1] = kUnlimited;
  if (--chunk.count > 0) {
    last_[at.chunk] = chunk.bytes[chunk.count - 1];
  } else {
    spare_ = std::move(chunks_[at.chunk]);
    last_.erase(last_.begin() + static_cast<std::ptrdiff_t>(at.chunk));
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk));
  }
}

}  // namespace npusim::alloc
