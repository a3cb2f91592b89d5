// SPDX-License-Identifier: BSD-3-Clause
// Buffers that may stand together as one: two stacked, two in a row, or four around a fifth.
//
// The patterns are those of plan_reduction.h, but nothing is decided: all that may be are listed,
// also of those listed before, and overlap. One that has all buffers is a placement of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "lab/engine/plan.h"

namespace npusim::lab {

struct Composition {
  Buffer whole;
  std::vector<std::uint32_t> members = {};  // buffers, and behind them compositions listed before
  std::vector<std::uint64_t> offsets = {};  // of the members, in the whole
};

class Compositions {
 public:
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};  // an offset

  // At most so many, of plain buffers.
  Compositions(std::span<const Buffer> buffers, std::size_t most);
  Compositions(const Compositions&) = delete;
  Compositions& operator=(const Compositions&) = delete;

  // One round: fours around a fifth and, where asked for, pairs, of what was there before. Whether
  // it found any. It stops at one that has all buffers.
  bool look(bool for_pairs);

  const std::vector<Composition>& found() const noexcept { return found_; }
  bool has_all() const noexcept { return has_all_; }  // the last one found
  std::uint64_t looked_at() const noexcept { return looked_at_; }
  // Of buffers and compositions, in this order: members of what is placed are placed.
  void place_members(std::vector<std::uint64_t>& offsets) const;

 private:
  using Index = std::uint32_t;
  using Indices = std::vector<Index>;
  using Table = std::map<std::int64_t, Indices>;  // by moment
  using Members = std::vector<std::uint64_t>;     // a bit per buffer

  void add_pairs_of(Index a);
  void add_fours_around(Index middle);
  void add(Indices members, std::vector<std::uint64_t> offsets, std::int64_t upper,
           std::uint64_t bytes);
  bool is_done() const;
  // What begins at a moment with so many bytes.
  const Indices& find(std::int64_t moment, std::uint64_t bytes);

  std::size_t given_, most_;
  std::vector<Buffer> all_;
  std::set<Members> known_;
  std::vector<const Members*> has_;          // by buffer and composition
  std::size_t in_pairs_ = 0, in_fours_ = 0;  // so many have been looked at
  Table begins_, ends_;
  std::map<std::pair<std::int64_t, std::uint64_t>, Indices> begins_with_;  // moment, bytes
  const Indices none_;
  std::vector<Composition> found_;
  bool has_all_ = false;
  std::uint64_t looked_at_ = 0;
};

}  // namespace npusim::lab
