// SPDX-License-Identifier: BSD-3-Clause
// The rows that may fill a floor, the search through them, and what it learns from failures.
#include "lab/engine/full_search.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace npusim::lab {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::uint32_t kLong = 60;        // moments: rows on longer floors are not looked for
constexpr std::uint64_t kFailures = 1000;  // of the first attempt
constexpr std::size_t kMostLearned = 40;   // placements in a conflict
constexpr std::size_t kMostPlacements = std::size_t{1} << 21;  // in all of them: 32 MiB
constexpr std::uint64_t kLooksPerStep = 4;  // at a buffer or floor: they cost less than a step
constexpr std::uint64_t kLooksPerConflict = 8;
constexpr double kFirstNoise = 0.1, kNoise = 1.5;  // of a rank: whether a wall is met counts 3

}  // namespace

// NOLINTNEXTLINE(bugprone-random-generator-seed): the same effort gives the same plan
FullSearch::FullSearch(std::span<const Buffer> buffers)
    : buffers_(buffers.begin(), buffers.end()), watches_(buffers.size()) {
  std::int64_t moments = 0;
  for (const Buffer& buffer : buffers_) {
    moments = std::max(moments, buffer.upper);
    is_plain_ = is_plain_ && buffer.gaps.empty() && buffer.alignment == 1;
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
  conflict_.resize((buffers_.size() + 63) / 64);
}

bool FullSearch::is_full(std::uint64_t capacity) const noexcept {
  return is_plain_ && moments_ > 0 && least_ == capacity && most_ == capacity;
}

void FullSearch::reset(unsigned attempt) {
  height_.assign(moments_, 0);
  top_.assign(moments_, kNone);
  choices_.assign(moments_, 0);
  offset_.assign(buffers_.size(), 0);
  level_.assign(buffers_.size(), 0);
  is_placed_.assign(buffers_.size(), false);
  changes_.clear();
  depth_ = 0;
  failures_ = 0;
  random_.seed(attempt);
  noise_ = attempt == 0 ? kFirstNoise : kNoise;
  if (placements_.size() < kMostPlacements) return;
  placements_.clear();
  conflicts_.clear();
  for (auto& watches : watches_) watches.clear();
}

FullSearch::Outcome FullSearch::run(unsigned attempt, SearchBudget& budget) {
  reset(attempt);
  const std::uint64_t limit = kFailures * share_of(attempt);
  find_candidates({0, moments_});
  if (found_.empty()) return Outcome::impossible;
  choices_[0] = static_cast<Index>(found_.size());
  open();
  while (true) {
    budget.spend(std::exchange(looked_at_, 0) / kLooksPerStep);
    if (failures_ > limit || budget.is_spent()) return Outcome::unknown;
    Frame& frame = frames_[depth_ - 1];
    undo(frame.mark);
    if (frame.next == frame.candidates.size()) {
      if (go_back() == Outcome::impossible) return Outcome::impossible;
    } else if (!place(frame.candidates[frame.next++])) {
      ++failures_;
      for (std::size_t i = 0; i < conflict_.size(); ++i) frame.conflict[i] |= conflict_[i];
    } else if (depth_ == buffers_.size()) {
      return Outcome::found;
    } else {
      open();
    }
  }
}

// A valley with one choice comes first, then the nearest to the beginning: what is placed stays
// together, so that a failure is near its cause.
void FullSearch::open() {
  Index begin = kNone;
  std::uint64_t nearest = ~std::uint64_t{0};
  looked_at_ += moments_ / 4;
  for (Index at = 0; at < moments_; ++at) {
    if (choices_[at] == 0) continue;
    const std::uint64_t distance = choices_[at] == 1 ? 0 : at + height_[at] + 1;
    if (begin != kNone && distance >= nearest) continue;
    begin = at;
    nearest = distance;
  }
  const Valley valley = floor_at(begin);
  find_candidates(valley);
  if (depth_ == frames_.size()) frames_.emplace_back();
  Frame& frame = frames_[depth_++];
  frame.next = 0;
  frame.mark = changes_.size();
  frame.conflict.assign(conflict_.size(), 0);
  explain(valley, frame.conflict);
  const std::uint64_t floor = height_[begin];
  ranked_.clear();
  for (const Index i : found_) {
    const Buffer& buffer = buffers_[i];
    const bool is_left = buffer.lower == valley.begin, is_right = buffer.upper == valley.end;
    double rank = (is_left ? -1 : 0) + (is_right ? -1 : 0);
    const std::uint64_t end = floor + buffer.bytes;
    if (is_left && valley.begin > 0 && end == height_[valley.begin - 1]) rank -= 3;
    if (is_right && valley.end < moments_ && end == height_[valley.end]) rank -= 3;
    rank += noise_ * static_cast<double>(random_() >> 11) * 0x1p-53;
    ranked_.emplace_back(rank, i);
  }
  std::sort(ranked_.begin(), ranked_.end());
  frame.candidates.clear();
  for (const auto& [rank, i] : ranked_) frame.candidates.push_back(i);
}

FullSearch::Outcome FullSearch::go_back() {
  const std::size_t level = depth_ - 1;
  Frame& from = frames_[level];
  Levels& why = from.conflict;
  why[level / 64] &= ~(std::uint64_t{1} << (level % 64));
  std::size_t word = why.size();
  while (word > 0 && why[word - 1] == 0) --word;
  if (word == 0) return Outcome::impossible;
  const auto last = word * 64 - 1 - static_cast<std::size_t>(std::countl_zero(why[word - 1]));
  if (from.candidates.size() > 1) learn(why);
  depth_ = last + 1;
  Frame& to = frames_[last];
  for (std::size_t i = 0; i < why.size(); ++i) to.conflict[i] |= why[i];
  return Outcome::unknown;
}

void FullSearch::learn(const Levels& conflict) {
  const std::size_t begin = placements_.size();
  for (std::size_t word = 0; word < conflict.size(); ++word) {
    for (std::uint64_t bits = conflict[word]; bits != 0; bits &= bits - 1) {
      const Frame& frame = frames_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
      const Index buffer = frame.candidates[frame.next - 1];
      placements_.push_back({buffer, offset_[buffer]});
    }
  }
  const std::size_t count = placements_.size() - begin;
  if (count > kMostLearned || placements_.size() > kMostPlacements) {
    placements_.resize(begin);
    return;
  }
  const auto [buffer, offset] = placements_.back();
  watches_[buffer].push_back({static_cast<Index>(conflicts_.size()), offset});
  conflicts_.push_back({begin, count});
}

bool FullSearch::place(Index buffer) {
  const auto lower = static_cast<Index>(buffers_[buffer].lower);
  const auto upper = static_cast<Index>(buffers_[buffer].upper);
  set_choices(floor_at(lower).begin, 0);
  offset_[buffer] = height_[lower];
  level_[buffer] = static_cast<Index>(depth_ - 1);
  is_placed_[buffer] = true;
  for (Index at = lower; at < upper; ++at) {
    changes_.push_back({Was::top, at, top_[at]});
    top_[at] = buffer;
    height_[at] += buffers_[buffer].bytes;
  }
  changes_.push_back({Was::placed, buffer, 0});
  looked_at_ += upper - lower;
  if (is_learned(buffer)) return false;
  // What else is in the floors beside the new one stays: a buffer may stand in one valley only.
  const Valley changed = floor_at(lower);
  for (Index at = changed.begin + 1; at < changed.end; ++at) set_choices(at, 0);
  for (const Index at : {changed.begin - 1, changed.begin, changed.end}) {
    if (at >= moments_) continue;  // before the first is beyond the last
    const Valley floor = floor_at(at);
    if (!is_valley(floor)) {
      set_choices(floor.begin, 0);
      continue;
    }
    find_candidates(floor);
    if (found_.empty()) {
      std::fill(conflict_.begin(), conflict_.end(), 0);
      explain(floor, conflict_);
      return false;
    }
    set_choices(floor.begin, found_.size());
  }
  return true;
}

// A conflict is watched at a placement that is not there: when it comes, at another such one.
bool FullSearch::is_learned(Index buffer) {
  auto& watches = watches_[buffer];
  looked_at_ += watches.size();
  for (std::size_t i = 0; i < watches.size();) {
    if (watches[i].offset != offset_[buffer]) {
      ++i;
      continue;
    }
    const auto [begin, count] = conflicts_[watches[i].conflict];
    const std::span<const Placement> all{placements_.data() + begin, count};
    looked_at_ += kLooksPerConflict;
    const auto missing = std::find_if(all.begin(), all.end(), [&](const Placement& placement) {
      return !is_placed_[placement.buffer] || offset_[placement.buffer] != placement.offset;
    });
    if (missing == all.end()) {
      std::fill(conflict_.begin(), conflict_.end(), 0);
      for (const Placement& placement : all) add_level(placement.buffer, conflict_);
      return true;
    }
    watches_[missing->buffer].push_back({watches[i].conflict, missing->offset});
    watches[i] = watches.back();
    watches.pop_back();
  }
  return false;
}

void FullSearch::undo(std::size_t mark) {
  while (changes_.size() > mark) {
    const auto [what, index, value] = changes_.back();
    changes_.pop_back();
    if (what == Was::choices) choices_[index] = value;
    if (what == Was::top) {
      height_[index] -= buffers_[top_[index]].bytes;
      top_[index] = value;
    }
    if (what == Was::placed) is_placed_[index] = false;
  }
}

void FullSearch::set_choices(Index begin, std::size_t choices) {
  const auto value = static_cast<Index>(choices);
  if (choices_[begin] == value) return;
  changes_.push_back({Was::choices, begin, choices_[begin]});
  choices_[begin] = value;
}

FullSearch::Valley FullSearch::floor_at(Index moment) const {
  Index begin = moment, end = moment + 1;
  while (begin > 0 && height_[begin - 1] == height_[moment]) --begin;
  while (end < moments_ && height_[end] == height_[moment]) ++end;
  return {begin, end};
}

bool FullSearch::is_valley(const Valley& floor) const {
  const std::uint64_t height = height_[floor.begin];
  return height != most_ && (floor.begin == 0 || height_[floor.begin - 1] > height) &&
         (floor.end == moments_ || height_[floor.end] > height);
}

// What stands in rows that cover a valley's floor, at the edge where that is less; none without a
// row. On a long floor all that may stand at its left edge. Of twins the first.
void FullSearch::find_candidates(const Valley& valley) {
  const auto [begin, end] = valley;
  const std::uint64_t room = most_ - height_[begin];
  found_.clear();
  other_.clear();
  const auto may_stand = [&](Index i) {
    return !is_placed_[i] && fits(i, valley) && buffers_[i].bytes <= room;
  };
  const auto add = [&](std::vector<Index>& edge, Index i) {
    const bool is_twin = std::any_of(edge.begin(), edge.end(), [&](Index other) {
      const Buffer &a = buffers_[i], &b = buffers_[other];
      return a.lower == b.lower && a.upper == b.upper && a.bytes == b.bytes;
    });
    if (!is_twin) edge.push_back(i);
  };
  const bool is_long = end - begin > kLong;
  if (!is_long) {
    std::fill(from_left_.begin() + begin, from_left_.begin() + end + 1, std::uint8_t{0});
    std::fill(from_right_.begin() + begin, from_right_.begin() + end + 1, std::uint8_t{0});
    from_left_[begin] = from_right_[end] = 1;
    for (Index at = begin; at < end; ++at) {
      if (from_left_[at] == 0) continue;
      looked_at_ += begins_[at].size();
      for (const Index i : begins_[at]) {
        if (may_stand(i)) from_left_[static_cast<Index>(buffers_[i].upper)] = 1;
      }
    }
    if (from_left_[end] == 0) return;
    for (Index at = end; at > begin; --at) {
      if (from_right_[at] == 0) continue;
      looked_at_ += ends_[at].size();
      for (const Index i : ends_[at]) {
        if (may_stand(i)) from_right_[static_cast<Index>(buffers_[i].lower)] = 1;
      }
    }
  }
  for (const Index i : begins_[begin]) {
    if (!may_stand(i)) continue;
    if (is_long || from_right_[static_cast<Index>(buffers_[i].upper)] != 0) add(found_, i);
  }
  if (is_long) return;
  for (const Index i : ends_[end]) {
    if (may_stand(i) && from_left_[static_cast<Index>(buffers_[i].lower)] != 0) add(other_, i);
  }
  if (other_.size() < found_.size()) std::swap(found_, other_);
}

// The walls where they meet the floor, what the floor is made of, and what would fit but is placed
// elsewhere. Of a long floor only what its left edge needs.
void FullSearch::explain(const Valley& valley, Levels& to) const {
  const auto [begin, end] = valley;
  const std::uint64_t floor = height_[begin];
  const auto add_wall = [&](const std::vector<Index>& beside) {
    for (const Index i : beside) {
      const bool is_wall =
          is_placed_[i] && offset_[i] <= floor && floor < offset_[i] + buffers_[i].bytes;
      if (is_wall) add_level(i, to);
    }
  };
  if (begin > 0) add_wall(ends_[begin]);
  if (end < moments_) add_wall(begins_[end]);
  for (Index at = begin; at < (end - begin > kLong ? begin + 1 : end); ++at) {
    if (top_[at] != kNone) add_level(top_[at], to);
    for (const Index i : begins_[at]) {
      if (is_placed_[i] && fits(i, valley)) add_level(i, to);
    }
  }
}

}  // namespace npusim::lab
