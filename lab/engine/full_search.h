// SPDX-License-Identifier: BSD-3-Clause
// A search for a placement that leaves no byte free at any moment.
//
//   offset |####    ####     Where nothing may stay free, a row of waiting buffers covers a
//   valley's
//          |####____####     floor from wall to wall. A state in which some valley has no such row
//          is
//          |############     given up, and what is in no such row does not stand there.
//          +------------> t
//
// The search keeps a beam: of all states with equally many buffers placed, it keeps those with
// the fewest steps in their outline. A state goes on in the valley with fewest choices. Where
// nothing is free, the buffers that are placed determine the outline, so equal sets are one state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <unordered_set>
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

  // run() looks for a placement until the budget is spent; later attempts keep more states, and
  // rank them in another way. It is impossible where no state was left out and none goes on.
  // offsets() is the placement found.
  Outcome run(unsigned attempt, SearchBudget& budget);
  const std::vector<std::uint64_t>& offsets() const noexcept { return offset_; }

 private:
  using Index = std::uint32_t;
  struct Floor {  // moments filled to one height, between others
    Index begin, end;
    std::uint64_t height;
    std::uint32_t choices = 0;  // of a valley: what may stand at an edge; 0 of others
  };
  struct State {
    std::vector<Floor> floors;
    std::vector<std::uint64_t> placed;  // a bit per buffer
    std::uint64_t key = 0;              // of the set of placed buffers
    double rank = 0;
    std::size_t valley = 0;  // of floors: where it goes on
    Index step = 0;          // of steps_: how it came about

    bool has(Index buffer) const { return (placed[buffer / 64] >> (buffer % 64) & 1) != 0; }
  };
  struct Step {
    Index before, buffer;
  };

  bool place(State& state, Index buffer);  // false where a valley cannot be filled any more
  bool look_at(State& state, std::size_t first, std::size_t last);  // these floors, after a change
  void choose(State& state);                                        // its valley and rank
  const std::vector<Index>& candidates(const State& state, const Floor& valley);
  void keep_best(std::vector<State>& states, std::size_t width) const;
  void write(const State& state);

  std::vector<Buffer> buffers_;
  Index moments_ = 0;
  std::uint64_t least_ = 0, most_ = 0;  // bytes alive at a moment
  bool is_plain_ = true;
  std::vector<std::vector<Index>> begins_, ends_;  // by moment
  std::vector<std::uint64_t> keys_;                // by buffer, at random
  std::mt19937_64 random_;
  bool counts_choices_ = false;  // of all valleys, in the rank
  std::uint64_t looked_at_ = 0;

  std::vector<Step> steps_;
  std::vector<std::uint64_t> offset_;
  std::vector<std::uint8_t> from_left_, from_right_;  // of candidates(): is there a row up to here?
  std::vector<Index> left_, right_;                   // of candidates(): at either edge
};

}  // namespace npusim::lab
