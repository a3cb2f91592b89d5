// SPDX-License-Identifier: BSD-3-Clause
// The free index against the obvious structure: an ordered set. Same answers after every step, for
// the bitmap of the small pool and the chunks of the large pool.
#include <random>
#include <set>

#include "allocator/free_index.h"
#include "tests/native/check.h"

using namespace npusim::alloc;

namespace {

struct Before {
  bool operator()(const Block* a, const Block* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : precedes(a, b);
  }
};
using Oracle = std::set<Block*, Before>;

Block* first_fit(const Oracle& oracle, std::size_t bytes) {
  Block* found = nullptr;
  for (Block* block : oracle) {
    if (block->bytes >= bytes && (!found || precedes(block, found))) found = block;
  }
  return found;
}

// compare() runs random insertions and removals; sizes are multiples of 32 up to max_bytes, drawn
// so that there are `distinct` of them.
void compare(std::size_t max_bytes, std::size_t distinct, std::size_t bound, unsigned seed) {
  std::mt19937_64 random(seed);
  FreeIndex index(32, bound);
  Oracle oracle;
  std::vector<Block> blocks(3000);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].address = (i + 1) << 32;
    blocks[i].order = static_cast<std::int64_t>(random() % 50);
    blocks[i].bytes = (random() % distinct + 1) * (max_bytes / 32 / distinct) * 32;
  }
  for (int step = 0; step < 30000; ++step) {
    Block* block = &blocks[random() % blocks.size()];
    if (oracle.erase(block)) {
      index.erase(block);
    } else {
      oracle.insert(block);
      index.insert(block);
    }
    const std::size_t bytes = (random() % (max_bytes / 32) + 1) * 32;
    Block key;
    key.bytes = bytes;
    key.order = -1;
    const auto found = oracle.lower_bound(&key);
    CHECK_EQ(index.best(bytes), found == oracle.end() ? nullptr : *found);
    if (step % 500 != 0) continue;
    CHECK_EQ(index.first(bytes), first_fit(oracle, bytes));
    CHECK(index.in_order() == std::vector<Block*>(oracle.begin(), oracle.end()));
  }
  while (Block* block = index.best(32)) {
    CHECK_EQ(block, *oracle.begin());
    oracle.erase(oracle.begin());
    index.erase(block);
  }
  CHECK(oracle.empty());
}

constexpr std::size_t kSmall = std::size_t{2} << 20;
constexpr std::size_t kHuge = std::size_t{1} << 50;

}  // namespace

TEST(bitmap_agrees_on_few_sizes) { compare(kSmall, 7, kSmall, 1); }
TEST(bitmap_agrees_on_every_size) { compare(kSmall, kSmall / 32, kSmall, 2); }
TEST(bitmap_agrees_at_its_largest) {
  const std::size_t bound = 32 * (ExactBins::kSlotLimit - 1);
  compare(bound, bound / 32, bound, 3);
}
TEST(chunks_agree_on_one_size) { compare(kHuge, 1, ~std::size_t{0}, 4); }
TEST(chunks_agree_on_few_sizes) { compare(kHuge, 100, ~std::size_t{0}, 5); }
TEST(chunks_agree_on_many_sizes) { compare(kHuge, std::size_t{1} << 40, ~std::size_t{0}, 6); }
