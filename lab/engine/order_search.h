// SPDX-License-Identifier: BSD-3-Clause
// A search for a placement that leaves no byte free, by the orders that remain possible.
//
//   offset | a |  c    At each moment the buffers of some walls end and others begin. The old
//          |   |----   ones at a wall (a, b) lie side by side, with as many bytes as the new ones
//          |---|       (c, d). A PQ-tree holds all orders from bottom to top that the walls so far
//          | b |  d    allow: "side by side" reduces the tree, and the new take the place of the
//          +------>t   old, in any order.
//
// Walls are vertices, and buffers are edges: this is the planarity test of Booth and Lueker (1976).
// Where each moment has one wall, one sweep decides. Several walls at one moment may be told apart
// in several ways; the search keeps the trees with most orders, equal trees once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lab/engine/plan.h"
#include "lab/engine/valley_search.h"

namespace npusim::lab {

class OrderSearch {
 public:
  using Outcome = ValleySearch::Outcome;

  // The buffers' lives are those of compact_lives(), and fill the height at every moment.
  explicit OrderSearch(std::span<const Buffer> buffers);

  // run() finds a placement or does not know. offsets() is the placement found.
  Outcome run(SearchBudget& budget);
  const std::vector<std::uint64_t>& offsets() const noexcept { return offset_; }

 private:
  using Index = std::uint32_t;
  using Indices = std::vector<Index>;
  enum class Kind : std::uint8_t { leaf, any_order, this_order };  // or its reverse
  struct Node {
    Kind kind = Kind::leaf;
    Index buffer = 0;
    Indices children;
    std::size_t full = 0, leaves = 0;  // of those below, how many are looked for
    std::uint64_t key = 0;             // equal for equal trees
    double orders = 0;                 // logarithm
  };
  struct Wall {
    Indices ends, begins;
  };
  struct Step {
    std::shared_ptr<const Step> before;
    std::vector<Wall> walls;
  };
  struct State {
    Indices tree;  // its nodes, each before its children
    double rank = 0;
    std::size_t walls = 0;
    std::shared_ptr<const Step> step;
  };
  struct Expansion;  // a state and the walls of one moment told apart so far

  void expand(Expansion& at, const Indices& tree, const Indices& ends, const Indices& begins);
  void pick(const Indices& from, std::size_t next, std::uint64_t bytes, Indices& picked,
            std::vector<Indices>& found);
  bool replace(const Indices& tree, const Wall& wall, Indices& after);
  bool write(const State& state);

  // Of the tree in nodes_:
  Index add(Kind kind, Index buffer = 0);
  Index join(const Indices& children, Kind kind);
  Index read(const Indices& tree, std::size_t& next);
  void store(Index node, Indices& tree) const;
  void count(Index node);
  void finish(Index node);
  bool is_empty(Index node) const { return nodes_[node].full == 0; }
  bool is_full(Index node) const { return nodes_[node].full == nodes_[node].leaves; }
  bool line_up(Index node, Indices& line);  // what is not looked for, away from what is
  bool reduce(Index& node, std::size_t full, Index place);
  std::pair<Index, Index> sort(Index node, const Indices& position);

  bool is_twin(Index a, Index b) const;

  std::vector<Buffer> buffers_;
  std::vector<Indices> begins_, ends_;  // by moment
  std::vector<std::uint64_t> keys_;     // by buffer: equal for the same end and bytes
  std::vector<bool> is_looked_for_;
  std::vector<Node> nodes_;
  std::size_t used_ = 0;  // of nodes_
  std::uint64_t looked_at_ = 0;
  std::vector<std::uint64_t> offset_;
};

}  // namespace npusim::lab
