// SPDX-License-Identifier: BSD-3-Clause
// A search for a placement that leaves no byte free and whose walls have few buffers.
//
//   offset | a | c     A corner of a buffer meets another's, and a wall goes by: b stands on a
//          |===+===    beside one (|), or both end at one (=). All that lies at a wall begins and
//          | b | d     ends where the wall does: rows of buffers above and below it last equally
//          +------>t   long, stacks before and after it have as many bytes.
//
// Each pair of corners that may meet is a variable, and each wall of at most so many buffers that
// the lives and sizes allow. Each corner meets one other, each side lies at one wall, and what
// meets there is at a wall of both directions: clauses (clause_solver.h). Few rows of other buffers
// last as long as a given one does, so most of this is decided without a guess. The lowest and the
// highest side of the whole may have any number of buffers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lab/engine/clause_solver.h"
#include "lab/engine/compositions.h"
#include "lab/engine/plan.h"
#include "lab/engine/valley_search.h"

namespace npusim::lab {

class WallSearch {
 public:
  using Outcome = ValleySearch::Outcome;

  // The buffers' lives are those of compact_lives(), and fill the height at every moment. A wall
  // has at most so many. Pairs that may stand together (compositions.h) are looked for in so many
  // rounds; such a pair counts twice.
  WallSearch(std::span<const Buffer> buffers, std::size_t most, unsigned rounds_of_pairs);

  // run() finds a placement, or does not know. Its "impossible" says that no placement has such
  // walls only; there may be others. offsets() is the placement found.
  Outcome run(std::uint64_t steps, SearchBudget& budget);
  const std::vector<std::uint64_t>& offsets() const noexcept { return offset_; }

 private:
  using Index = std::uint32_t;
  using Indices = std::vector<Index>;
  using Literal = ClauseSolver::Literal;
  using Literals = std::vector<Literal>;
  enum Corner : std::uint8_t { low_first, low_last, high_first, high_last };
  static constexpr Index kCorners = 4;
  struct Meeting {
    Index other, number;  // corner, meeting
  };
  struct Line {  // a row or a stack
    Indices buffers;
    std::size_t cost = 0;
    std::size_t number = 0;
  };
  static void sort(std::vector<Line>& lines);  // the cheapest first
  struct Walls {                               // rows above and below, or stacks before and after
    std::vector<std::size_t> begins{0};        // of what follows
    Indices meetings, sides;                   // 2 * buffer, and one more for its high or last side
  };

  static Index corner(Index buffer, Corner which) { return kCorners * buffer + which; }
  void add_meeting(Index corner, Index other);
  bool meet(Index corner, Index other);
  bool is_border(Index meeting) const;
  void add_meetings();
  void add_choices();
  void add_sides();
  void add_rows();
  void add_stacks();
  // Of rows, `before` is the one below.
  void add_wall(Walls& walls, const Indices& before, const Indices& after);
  void sieve();
  void add_clauses();
  void add_one_of(const Literals& literals);
  void add(std::initializer_list<Literal> literals) {
    solver_.add_clause({literals.begin(), literals.size()});
  }
  bool write();

  std::size_t given_;
  Compositions compositions_;
  std::vector<Buffer> buffers_;    // and what is composed of them
  std::vector<std::size_t> cost_;  // by buffer: 1, of a pair 2
  std::size_t most_;
  Index moments_ = 0;
  std::vector<Indices> begins_, ends_;            // by moment
  std::vector<std::vector<Meeting>> meetings_;    // by corner
  std::vector<std::pair<Index, Index>> corners_;  // by meeting
  Literals literals_;                             // by meeting
  Literals is_there_;                             // by buffer: not part of another
  Literals lowest_, highest_;                     // by buffer: it has nothing below, above
  Walls rows_, stacks_;
  std::vector<bool> may_meet_;  // by meeting
  Indices meets_, touched_;     // of the wall that is added
  std::uint64_t looked_at_ = 0;
  bool is_too_large_ = false;
  ClauseSolver solver_;
  std::vector<std::uint64_t> offset_;
};

}  // namespace npusim::lab
