// SPDX-License-Identifier: BSD-3-Clause
// A search for a placement that leaves no byte free at any moment.
//
//   offset |####    ####     Where nothing may stay free, a row of waiting buffers covers a
//   valley's
//          |####____####     floor from wall to wall. A branch in which some valley has no such row
//          |############     is given up, and what is in no such row does not stand there.
//          +------------> t
//
// A branch that fails is explained by the few placements that make it fail: the walls and the floor
// of a valley, and what is placed already of the buffers that would fit into it. The search goes
// back to the last of them. Such a set, resolved with those of the other branches, holds for every
// placement of the whole: it is kept, and what completes it again is given up at once, in later
// attempts too (as clauses are learned in the solving of satisfiability).
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "lab/engine/plan.h"
#include "lab/engine/valley_search.h"

namespace npusim::lab {

class FullSearch {
 public:
  using Outcome = ValleySearch::Outcome;

  // The buffers' lives are those of compact_lives(): few moments, from 0.
  explicit FullSearch(std::span<const Buffer> buffers);

  // Whether the buffers fill this capacity at every moment, without gaps and alignments.
  bool is_full(std::uint64_t capacity) const noexcept;

  // run() begins anew, in another order but with what was learned, until the attempt has failed so
  // often or the budget is spent. It is impossible where all branches failed. offsets() is the
  // placement found.
  Outcome run(unsigned attempt, SearchBudget& budget);
  const std::vector<std::uint64_t>& offsets() const noexcept { return offset_; }

 private:
  using Index = std::uint32_t;
  using Levels = std::vector<std::uint64_t>;  // a bit per level: of a conflict
  struct Valley {                             // or any floor: moments filled to one height
    Index begin, end;
  };
  struct Frame {  // a level of the search: a valley, and what may stand at one of its edges
    std::vector<Index> candidates;
    std::size_t next = 0;
    std::size_t mark = 0;  // of changes_
    Levels conflict;       // why those before failed, and why there are no others
  };
  enum class Was : std::uint8_t { choices, top, placed };
  struct Change {
    Was what;
    Index index, value;
  };
  struct Placement {
    Index buffer;
    std::uint64_t offset;
  };
  struct Conflict {  // of placements_, which are never all in one solution
    std::size_t begin, count;
  };
  struct Watch {
    Index conflict;
    std::uint64_t offset;
  };

  void reset(unsigned attempt);
  void open();                         // a new frame
  Outcome go_back();                   // from a frame without candidates; unknown: go on
  void learn(const Levels& conflict);  // the last level of it is about to be undone
  bool place(Index buffer);            // false: conflict_ says why not
  bool is_learned(Index buffer);       // whether that completes a conflict
  void undo(std::size_t mark);
  void set_choices(Index begin, std::size_t choices);

  Valley floor_at(Index moment) const;
  bool is_valley(const Valley& floor) const;
  void find_candidates(const Valley& valley);            // in found_
  void explain(const Valley& valley, Levels& to) const;  // why there are no other candidates
  bool fits(Index buffer, const Valley& valley) const {
    return buffers_[buffer].lower >= valley.begin && buffers_[buffer].upper <= valley.end;
  }
  void add_level(Index buffer, Levels& to) const {
    to[level_[buffer] / 64] |= std::uint64_t{1} << (level_[buffer] % 64);
  }

  std::vector<Buffer> buffers_;
  Index moments_ = 0;
  std::uint64_t least_ = 0, most_ = 0;  // bytes alive at a moment
  bool is_plain_ = true;
  std::vector<std::vector<Index>> begins_, ends_;  // by moment

  std::vector<std::uint64_t> height_;  // by moment
  std::vector<Index> top_;             // by moment: the buffer placed last
  std::vector<Index> choices_;         // by moment: of the valley that begins there, or 0
  std::vector<std::uint64_t> offset_;  // by buffer
  std::vector<Index> level_;           // by buffer
  std::vector<bool> is_placed_;
  std::vector<Change> changes_;
  std::vector<Frame> frames_;
  std::size_t depth_ = 0;  // of frames_
  std::uint64_t failures_ = 0, looked_at_ = 0;
  double noise_ = 0;
  std::mt19937_64 random_;

  std::vector<Placement> placements_;
  std::vector<Conflict> conflicts_;
  std::vector<std::vector<Watch>> watches_;  // by buffer: one placement of each conflict
  Levels conflict_;                          // of place()

  std::vector<std::uint8_t> from_left_, from_right_;  // is there a row up to here?
  std::vector<Index> found_, other_;
  std::vector<std::pair<double, Index>> ranked_;
};

}  // namespace npusim::lab
