// SPDX-License-Identifier: BSD-3-Clause
// An exact search for a placement within a capacity.
//
//   offset |####      ###     A valley is a run of moments filled to one height, between higher
//   ones.
//          |####______###     What covers its edge next either stands on its floor, and then fits
//          |#############     into it, or nothing does, and the edge rises to the next height at
//          +------------> t   which something can stand. So a node has few branches, and no other
//                             solution but those with everything moved down as far as it goes.
//
// A node is given up where, in some moment, what is yet to be placed does not fit above what is:
// each waiting buffer has a lowest offset, and stacking them in that order from there is the least
// height. Which valley and which buffer come first depends on the mode; valleys in which the search
// failed often come first in some (as in "dom/wdeg" of constraint solving), so the search repeated
// with the next mode, a larger limit and a little noise starts where it is hard. No clock and no
// luck: the same problem gives the same answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "lab/engine/plan.h"

namespace npusim::lab {

// How much may still be searched. A step is a moment or buffer looked at.
class SearchBudget {
 public:
  explicit SearchBudget(const PlanEffort& effort);

  void spend(std::uint64_t steps) noexcept { spent_ += steps; }
  std::uint64_t spent() const noexcept { return spent_; }
  bool is_spent() const noexcept;
  double seconds_left() const noexcept;  // at least a nanosecond; 0 where no clock was asked for

 private:
  std::uint64_t limit_;
  std::uint64_t spent_ = 0;
  std::optional<std::chrono::steady_clock::time_point> end_;
};

class ValleySearch {
 public:
  enum class Outcome : std::uint8_t { found, impossible, unknown };
  static constexpr unsigned kModes = 18;

  // The buffers' lives are those of compact_lives(): few moments, from 0.
  explicit ValleySearch(std::span<const Buffer> buffers);

  // run() looks for a placement within the capacity until the limit of steps or the budget is
  // spent. offsets() is the placement found. Where a buffer is aligned, an exhausted search proves
  // nothing, because the padding below it is not filled any more: unknown.
  Outcome run(std::uint64_t capacity, unsigned mode, std::uint64_t limit, double noise,
              SearchBudget& budget);
  const std::vector<std::uint64_t>& offsets() const noexcept { return offset_; }

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};

  enum class Was : std::uint8_t { height, top, floor, placed };
  struct Change {
    Was what;
    Index index;
    std::uint64_t value;
  };
  struct Valley {
    Index begin, end;  // moments
    bool is_from_left;
  };
  struct Frame {
    Valley valley;
    std::size_t first, next, last;  // its candidates
    std::size_t mark;               // of changes_
    bool is_raised;
  };
  struct Run {
    Index begin, end;  // moments
  };

  void reset();
  void open();  // a new frame
  Valley choose() const;
  double score(const Valley& valley, std::size_t options) const;
  void add_candidates(const Valley& valley);
  bool advance(Frame& frame);  // the frame's next branch; false after the last
  bool place(Index buffer, std::uint64_t height);
  bool raise(const Valley& valley);
  bool holds(Index begin, Index end);
  bool moment_holds(Index moment);
  void undo(std::size_t mark);

  std::uint64_t wall(Index moment) const;  // kNone is before the first
  std::uint64_t aligned(Index buffer, std::uint64_t offset) const;
  bool fits(Index buffer, std::uint64_t floor) const {
    return !is_placed_[buffer] && floor_[buffer] == floor;
  }
  std::span<const Run> runs(Index buffer) const {
    return {runs_.data() + first_run_[buffer], runs_.data() + first_run_[buffer + 1]};
  }
  bool covers(Index buffer, Index moment) const;
  void set(Was what, std::vector<std::uint64_t>& values, Index index, std::uint64_t value);

  std::vector<Buffer> buffers_;
  bool has_gaps_ = false;
  bool is_exact_ = true;   // no buffer is aligned
  std::vector<Run> runs_;  // when each buffer is there, its gaps left out
  std::vector<std::size_t> first_run_;
  std::vector<std::vector<Index>> covering_;       // by moment
  std::vector<std::vector<Index>> begins_, ends_;  // by moment, where a run begins or ends
  std::vector<std::uint64_t> load_;                // by moment: bytes of all that cover it

  std::vector<std::uint64_t> height_, waiting_;  // by moment: filled up to, bytes yet to be placed
  std::vector<std::uint64_t> top_;               // by moment: the buffer placed last, or kNone
  std::vector<std::uint64_t> floor_, offset_;    // by buffer: the highest below it, where placed
  std::vector<bool> is_placed_;
  std::size_t left_ = 0;

  std::uint64_t capacity_ = 0;
  unsigned mode_ = 0;
  double noise_ = 0;
  std::mt19937_64 random_;
  std::vector<std::vector<double>> failures_;  // by mode and moment
  std::uint64_t steps_ = 0;

  std::vector<Change> changes_;
  std::vector<Frame> frames_;
  std::vector<Index> candidates_;
  std::vector<std::pair<double, Index>> ranked_;                // of add_candidates()
  std::vector<std::pair<std::uint64_t, std::uint64_t>> stack_;  // of moment_holds()
  std::vector<Index> touched_;                                  // of holds()
  std::vector<bool> is_touched_;
};

}  // namespace npusim::lab
