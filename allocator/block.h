// SPDX-License-Identifier: BSD-3-Clause
// Block: a run of addresses inside one segment; Segment: what the provider gave in one piece.
//
//   segment  |--- block ---|- block -|------------- block -------------|
//             prev <- ... -> next     blocks tile the segment, no two neighbours are both free
//
// An expandable segment is a range of addresses whose pages come and go; blocks without memory
// behind them are `unmapped`, and no two neighbours are both that either.
//
// Blocks live in a slab of their allocator and are recycled, so a stale Block* can be read, never
// trusted. From malloc() to free() address, bytes, requested_bytes, owner and stream are constant
// and readable without a lock; everything else belongs to the allocator and its lock.
#pragma once

#include "allocator/provider.h"

namespace npusim::alloc {

class LiveAllocator;
struct Block;
struct BlockPool;

enum class BlockState : std::uint8_t {
  unused,     // a slot in the slab
  free,       // in a free index
  allocated,  // handed out
  pending,    // freed by the user, waiting for other streams (record_stream)
  unmapped,   // addresses without memory (expandable segments)
};

struct Segment {
  Address address = 0;
  std::size_t bytes = 0;          // expandable: of the whole range, mapped or not
  std::int64_t registration = 0;  // 0, 1, 2 ... in the order of acquisition, per allocator
  StreamId stream = 0;
  bool is_small = false;
  bool is_expandable = false;
  BlockPool* block_pool = nullptr;  // its free blocks: of this stream, pool and size class
  Block* first = nullptr;           // the block at `address`
  ContextId context = 0;
};

// The first cache line is what looking at a neighbour needs, the second what the free index needs.
struct alignas(64) Block {
  Address address = 0;
  std::size_t bytes = 0;            // a multiple of the quantum
  std::size_t requested_bytes = 0;  // what the caller asked for; 0 while free
  LiveAllocator* owner = nullptr;

  Segment* segment = nullptr;
  Block* prev = nullptr;  // address neighbours within the segment
  Block* next = nullptr;
  BlockState state = BlockState::unused;
  bool has_stream_uses = false;  // the streams are in the allocator's side table
  std::uint32_t pending_marks = 0;

  // Links of the free index: a pairing heap per block size, ordered by (order, address).
  std::int64_t order = 0;
  Block* heap_child = nullptr;
  Block* heap_sibling = nullptr;
  Block* heap_prev = nullptr;  // previous sibling, or parent of the first child; null for the root

  StreamId stream = 0;           // a block never changes stream
  ContextId context = 0;         // of the allocation
  std::uint64_t idle_since = 0;  // searches of the pool when the block became free (collection age)

  bool is_split() const noexcept { return prev != nullptr || next != nullptr; }
};

}  // namespace npusim::alloc
