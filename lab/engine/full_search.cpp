// SPDX-License-Identifier: BSD-3-Clause
// States of the beam, the rows that may fill a floor, and which states are kept.
#include "lab/engine/full_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace npusim::lab {
namespace {

constexpr std::size_t kFirstWidth = 128, kMostWidth = 16384;  // states kept
constexpr std::size_t kMostCells = std::size_t{1} << 24;      // moments of all states kept
constexpr std::uint64_t kLooksPerStep = 4;  // at a buffer or floor: they cost less than a step
constexpr double kNoise = 0.5;              // of a rank, whose unit is a step of the outline
constexpr std::uint64_t kUnbounded = std::numeric_limits<std::uint64_t>::max();

}  // namespace

// NOLINTNEXTLINE(bugprone-random-generator-seed): the same effort gives the same plan
FullSearch::FullSearch(std::span<const Buffer> buffers) : buffers_(buffers.begin(), buffers.end()) {
  std::int64_t moments = 0;
  for (const Buffer& buffer : buffers_) {
    moments = std::max(moments, buffer.upper);
    is_plain_ = is_plain_ && buffer.gaps.empty() && buffer.alignment == 1;
    keys_.push_back(random_());
  }
  moments_ = static_cast<Index>(moments);
  begins_.resize(moments_ + 1);
  ends_.resize(moments_ + 1);
  std::vector<std::uint64_t> load(moments_);
  for (Index i = 0; i < buffers_.size(); ++i) {
    begins_[static_cast<Index>(buffers_[i].lower)].push_back(i);
    ends_[static_cast<Index>(buffers_[i].upper)].push_back(i);
    for (auto at = buffers_[i].lower; at < buffers_[i].upper; ++at) {
      load[static_cast<Index>(at)] += buffers_[i].bytes;
    }
  }
  if (load.empty()) return;
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  least_ = *least;
  most_ = *most;
  from_left_.resize(moments_ + 1);
  from_right_.resize(moments_ + 1);
}

bool FullSearch::is_full(std::uint64_t capacity) const noexcept {
  return is_plain_ && moments_ > 0 && least_ == capacity && most_ == capacity;
}

FullSearch::Outcome FullSearch::run(unsigned attempt, SearchBudget& budget) {
  const std::size_t fits = std::max<std::size_t>(kMostCells / moments_, 1);
  const std::size_t width = std::min({kFirstWidth << std::min(attempt / 2, 10U), kMostWidth, fits});
  counts_choices_ = attempt % 2 == 1;
  random_.seed(attempt);
  steps_.assign(1, {});
  std::vector<State> states(1), next;
  states[0].floors.push_back({0, moments_, 0});
  states[0].placed.resize((buffers_.size() + 63) / 64);
  if (!look_at(states[0], 0, 1)) return Outcome::impossible;
  bool is_whole = true;  // no state was left out
  std::unordered_set<std::uint64_t> known;
  for (std::size_t placed = 1; !states.empty(); ++placed) {
    next.clear();
    known.clear();
    for (const State& state : states) {
      budget.spend(std::exchange(looked_at_, 0) / kLooksPerStep);
      if (budget.is_spent()) return Outcome::unknown;
      const std::vector<Index> all = candidates(state, state.floors[state.valley]);
      for (const Index buffer : all) {
        if (!known.insert(state.key ^ keys_[buffer]).second) continue;
        State after = state;
        if (!place(after, buffer)) continue;
        steps_.push_back({state.step, buffer});
        after.step = static_cast<Index>(steps_.size() - 1);
        if (placed == buffers_.size()) {
          write(after);
          return Outcome::found;
        }
        next.push_back(std::move(after));
      }
      if (next.size() < 2 * width) continue;
      keep_best(next, width);
      is_whole = false;
    }
    if (next.size() > width) {
      keep_best(next, width);
      is_whole = false;
    }
    std::swap(states, next);
  }
  return is_whole ? Outcome::impossible : Outcome::unknown;
}

bool FullSearch::place(State& state, Index buffer) {
  const Buffer& placed = buffers_[buffer];
  const auto lower = static_cast<Index>(placed.lower), upper = static_cast<Index>(placed.upper);
  state.placed[buffer / 64] |= std::uint64_t{1} << (buffer % 64);
  state.key ^= keys_[buffer];
  auto& floors = state.floors;
  std::size_t at = state.valley;
  const Floor valley = floors[at];
  floors[at] = {lower, upper, valley.height + placed.bytes};
  const auto position = [&](std::size_t i) {
    return floors.begin() + static_cast<std::ptrdiff_t>(i);
  };
  if (upper < valley.end) floors.insert(position(at + 1), {upper, valley.end, valley.height});
  if (lower > valley.begin) {
    floors.insert(position(at), {valley.begin, lower, valley.height});
    ++at;
  }
  if (at + 1 < floors.size() && floors[at + 1].height == floors[at].height) {
    floors[at].end = floors[at + 1].end;
    floors.erase(position(at + 1));
  }
  if (at > 0 && floors[at - 1].height == floors[at].height) {
    floors[at].begin = floors[at - 1].begin;
    floors.erase(position(at - 1));
    --at;
  }
  // What else is in the floors beside the new one stays: a buffer may stand in one valley only.
  return look_at(state, at > 0 ? at - 1 : 0, std::min(at + 2, floors.size()));
}

bool FullSearch::look_at(State& state, std::size_t first, std::size_t last) {
  auto& floors = state.floors;
  const auto wall = [&](std::size_t i) {  // beyond either end is the largest number
    return i >= floors.size() || floors[i].height == most_ ? kUnbounded : floors[i].height;
  };
  for (std::size_t i = first; i < last; ++i) {
    Floor& floor = floors[i];
    floor.choices = 0;
    if (floor.height == most_ || wall(i - 1) < floor.height || wall(i + 1) < floor.height) continue;
    floor.choices = static_cast<std::uint32_t>(candidates(state, floor).size());
    if (floor.choices == 0) return false;
  }
  choose(state);
  return true;
}

void FullSearch::choose(State& state) {
  const auto& floors = state.floors;
  double rank = 0;
  bool is_found = false;
  state.valley = 0;
  looked_at_ += floors.size();
  for (std::size_t i = 0; i < floors.size(); ++i) {
    const Floor &floor = floors[i], &best = floors[state.valley];
    if (i > 0 && floor.height != most_ && floors[i - 1].height != most_) rank += 1;
    if (floor.choices == 0) continue;
    if (counts_choices_) rank += std::log(static_cast<double>(floor.choices));
    const bool is_better = floor.choices < best.choices ||
                           (floor.choices == best.choices && floor.height < best.height);
    if (is_found && !is_better) continue;
    is_found = true;
    state.valley = i;
  }
  state.rank = rank + kNoise * static_cast<double>(random_() >> 11) * 0x1p-53;
}

// What stands in rows that cover a valley's floor, at the edge where that is less; none without a
// row.
const std::vector<FullSearch::Index>& FullSearch::candidates(const State& state,
                                                             const Floor& valley) {
  const Index begin = valley.begin, end = valley.end;
  left_.clear();
  right_.clear();
  std::fill(from_left_.begin() + begin, from_left_.begin() + end + 1, std::uint8_t{0});
  std::fill(from_right_.begin() + begin, from_right_.begin() + end + 1, std::uint8_t{0});
  from_left_[begin] = from_right_[end] = 1;
  const auto upper = [&](Index i) { return static_cast<Index>(buffers_[i].upper); };
  const auto lower = [&](Index i) { return static_cast<Index>(buffers_[i].lower); };
  for (Index at = begin; at < end; ++at) {
    if (from_left_[at] == 0) continue;
    looked_at_ += begins_[at].size();
    for (const Index i : begins_[at]) {
      if (upper(i) <= end && !state.has(i)) from_left_[upper(i)] = 1;
    }
  }
  if (from_left_[end] == 0) return left_;
  for (Index at = end; at > begin; --at) {
    if (from_right_[at] == 0) continue;
    looked_at_ += ends_[at].size();
    for (const Index i : ends_[at]) {
      if (lower(i) >= begin && !state.has(i)) from_right_[lower(i)] = 1;
    }
  }
  const auto add = [&](std::vector<Index>& edge, Index i) {
    const bool is_twin = std::any_of(edge.begin(), edge.end(), [&](Index other) {
      const Buffer &a = buffers_[i], &b = buffers_[other];
      return a.lower == b.lower && a.upper == b.upper && a.bytes == b.bytes;
    });
    if (!is_twin) edge.push_back(i);
  };
  for (const Index i : begins_[begin]) {
    if (upper(i) <= end && !state.has(i) && from_right_[upper(i)] != 0) add(left_, i);
  }
  for (const Index i : ends_[end]) {
    if (lower(i) >= begin && !state.has(i) && from_left_[lower(i)] != 0) add(right_, i);
  }
  return left_.size() <= right_.size() ? left_ : right_;
}

void FullSearch::keep_best(std::vector<State>& states, std::size_t width) const {
  std::nth_element(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(width),
                   states.end(), [](const State& a, const State& b) { return a.rank < b.rank; });
  states.erase(states.begin() + static_cast<std::ptrdiff_t>(width), states.end());
}

void FullSearch::write(const State& state) {
  std::vector<Index> order;
  for (Index step = state.step; step != 0; step = steps_[step].before) {
    order.push_back(steps_[step].buffer);
  }
  std::reverse(order.begin(), order.end());
  offset_.assign(buffers_.size(), 0);
  std::vector<std::uint64_t> height(moments_);
  for (const Index i : order) {
    offset_[i] = height[static_cast<Index>(buffers_[i].lower)];
    for (auto at = buffers_[i].lower; at < buffers_[i].upper; ++at) {
      height[static_cast<Index>(at)] += buffers_[i].bytes;
    }
  }
}

}  // namespace npusim::lab
