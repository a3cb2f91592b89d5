// SPDX-License-Identifier: BSD-3-Clause
// The pairing heaps. A heap here is usually one to three blocks; the
// shape never shows, because (order, address) is a total order.
#include "allocator/free_index.h"

#include <algorithm>
#include <utility>

namespace npusim::alloc {
namespace {

// meld() joins two non-empty heaps; neither root has siblings.
Block* meld(Block* a, Block* b) noexcept {
  if (precedes(b, a)) std::swap(a, b);
  b->heap_prev = a;
  b->heap_sibling = a->heap_child;
  if (a->heap_child) a->heap_child->heap_prev = b;
  a->heap_child = b;
  return a;
}

// meld_children() makes one heap of a list of siblings: pairs from the left, then all from the
// right.
Block* meld_children(Block* child) noexcept {
  Block* pairs = nullptr;  // linked through heap_prev, last pair first
  while (child) {
    Block* a = child;
    Block* b = a->heap_sibling;
    child = b ? b->heap_sibling : nullptr;
    a->heap_sibling = nullptr;
    if (b) {
      b->heap_sibling = nullptr;
      a = meld(a, b);
    }
    a->heap_prev = pairs;
    pairs = a;
  }
  Block* root = nullptr;
  while (pairs) {
    Block* rest = pairs->heap_prev;
    pairs->heap_prev = nullptr;
    root = root ? meld(root, pairs) : pairs;
    pairs = rest;
  }
  return root;
}

void collect(Block* root, std::vector<Block*>& out) {
  std::vector<Block*> todo{root};
  while (!todo.empty()) {
    Block* block = todo.back();
    todo.pop_back();
    out.push_back(block);
    for (Block* child = block->heap_child; child; child = child->heap_sibling) {
      todo.push_back(child);
    }
  }
}

}  // namespace

void FreeIndex::insert(Block* block) {
  if (ordered_) [[unlikely]] {
    ordered_->insert(block);
    return;
  }
  block->heap_child = block->heap_sibling = block->heap_prev = nullptr;
  if (is_exact(block->bytes)) {
    Block*& root = exact_.root(block->bytes);
    Block* ties = exact_.is_used(block->bytes) ? root : nullptr;
    exact_.mark_used(block->bytes);
    root = ties ? meld(ties, block) : block;
    return;
  }
  const SortedBins::Cursor at = sorted_.seek(block->bytes);
  const bool known = !sorted_.at_end(at) && sorted_.bytes_at(at) == block->bytes;
  Block*& root = known ? sorted_.root_at(at) : sorted_.insert(at, block->bytes);
  root = root ? meld(root, block) : block;
}

void FreeIndex::erase(Block* block) noexcept {
  if (ordered_) [[unlikely]] {
    ordered_->erase(block);
    return;
  }
  Block* orphans = meld_children(block->heap_child);
  const bool was_root = block->heap_prev == nullptr;
  if (!was_root) {
    Block* before = block->heap_prev;
    (before->heap_child == block ? before->heap_child : before->heap_sibling) = block->heap_sibling;
    if (block->heap_sibling) block->heap_sibling->heap_prev = before;
    if (!orphans) return;
  }
  if (is_exact(block->bytes)) {
    if (!orphans) {  // it was the root, and alone
      exact_.mark_empty(block->bytes);
      return;
    }
    Block*& root = exact_.root(block->bytes);
    root = was_root ? orphans : meld(root, orphans);
    return;
  }
  const SortedBins::Cursor at = sorted_.seek(block->bytes);
  Block*& root = sorted_.root_at(at);
  root = was_root ? orphans : meld(root, orphans);
  if (!root) sorted_.erase(at);
}

// least_ordered() is the first in best-fit order of the accepted blocks.
template <class Accept>
Block* FreeIndex::least_ordered(Accept accept) const noexcept {
  Block* found = nullptr;
  ordered_->for_each([&](Block* block) {
    if (accept(block) && (!found || precedes_in_size(block, found))) found = block;
  });
  return found;
}

Block* FreeIndex::best(std::size_t bytes) noexcept {
  if (!ordered_) return best_in_bins(bytes);
  return least_ordered([&](const Block* block) { return block->bytes >= bytes; });
}

Block* FreeIndex::best_in_bins(std::size_t bytes) noexcept {
  if (is_exact(bytes)) {
    if (Block* root = exact_.at_least(bytes)) return root;
  }
  const SortedBins::Cursor at = sorted_.seek(bytes);
  return sorted_.at_end(at) ? nullptr : sorted_.root_at(at);
}

Block* FreeIndex::next_root(std::size_t bytes) noexcept {
  return best_in_bins(bytes + (is_exact(bytes) ? exact_.quantum_bytes() : 1));
}

// A root's successor is the first of its children; any other block's takes a sort of its heap.
Block* FreeIndex::after(Block* block) {
  if (ordered_) {
    return least_ordered([&](const Block* other) { return precedes_in_size(block, other); });
  }
  Block* found = nullptr;
  if (block->heap_prev == nullptr) {
    for (Block* child = block->heap_child; child; child = child->heap_sibling) {
      if (!found || precedes(child, found)) found = child;
    }
  } else {
    std::vector<Block*> ties;
    collect(best_in_bins(block->bytes), ties);
    for (Block* tie : ties) {
      if (precedes(block, tie) && (!found || precedes(tie, found))) found = tie;
    }
  }
  if (found) return found;
  return next_root(block->bytes);
}

std::vector<Block*> FreeIndex::in_order() {
  std::vector<Block*> blocks;
  if (ordered_) {
    ordered_->for_each([&](Block* block) { blocks.push_back(block); });
    std::sort(blocks.begin(), blocks.end(), precedes_in_size);
    return blocks;
  }
  for (Block* root = best_in_bins(0); root; root = next_root(root->bytes)) {
    const auto begin = static_cast<std::ptrdiff_t>(blocks.size());
    collect(root, blocks);
    std::sort(blocks.begin() + begin, blocks.end(), precedes);
  }
  return blocks;
}

}  // namespace npusim::alloc
