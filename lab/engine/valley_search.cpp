// SPDX-License-Identifier: BSD-3-Clause
// The frames of the search, what a branch changes, and how it is undone.
#include "lab/engine/valley_search.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace npusim::lab {
namespace {

constexpr std::uint64_t kUnbounded = std::numeric_limits<std::uint64_t>::max();

bool is_same_life(const Buffer& a, const Buffer& b) {
  return a.lower == b.lower && a.upper == b.upper && a.alignment == b.alignment && a.gaps.empty() &&
         b.gaps.empty();
}

}  // namespace

SearchBudget::SearchBudget(const PlanEffort& effort) : limit_(effort.steps) {
  if (effort.seconds <= 0) return;
  limit_ = kUnbounded;
  end_ = std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(effort.seconds));
}

bool SearchBudget::is_spent() const noexcept {
  return spent_ >= limit_ || (end_ && std::chrono::steady_clock::now() >= *end_);
}

double SearchBudget::seconds_left() const noexcept {
  if (!end_) return 0;
  const std::chrono::duration<double> left = *end_ - std::chrono::steady_clock::now();
  return std::max(left.count(), 1e-9);
}

// NOLINTNEXTLINE(bugprone-random-generator-seed): the same effort gives the same plan
ValleySearch::ValleySearch(std::span<const Buffer> buffers)
    : buffers_(buffers.begin(), buffers.end()) {
  std::int64_t moments = 0;
  for (const Buffer& buffer : buffers_) {
    moments = std::max(moments, buffer.upper);
  }
  const auto count = static_cast<std::size_t>(moments);
  covering_.resize(count);
  begins_.resize(count + 1);
  ends_.resize(count + 1);
  load_.resize(count);
  failures_.assign(kModes, std::vector<double>(count));
  is_touched_.resize(count);
  first_run_.push_back(0);
  for (Index i = 0; i < buffers_.size(); ++i) {
    const Buffer& buffer = buffers_[i];
    if (buffer.alignment != 1) is_exact_ = false;
    if (!buffer.gaps.empty()) has_gaps_ = true;
    for_each_life(buffer, [&](std::int64_t lower, std::int64_t upper) {
      const Run run{static_cast<Index>(lower), static_cast<Index>(upper)};
      runs_.push_back(run);
      begins_[run.begin].push_back(i);
      ends_[run.end].push_back(i);
      for (Index moment = run.begin; moment < run.end; ++moment) {
        covering_[moment].push_back(i);
        load_[moment] += buffer.bytes;
      }
    });
    first_run_.push_back(runs_.size());
  }
}

void ValleySearch::reset() {
  height_.assign(load_.size(), 0);
  waiting_ = load_;
  top_.assign(load_.size(), kNone);
  floor_.assign(buffers_.size(), 0);
  offset_.assign(buffers_.size(), 0);
  is_placed_.assign(buffers_.size(), false);
  left_ = buffers_.size();
  changes_.clear();
  frames_.clear();
  candidates_.clear();
  steps_ = 0;
}

ValleySearch::Outcome ValleySearch::run(std::uint64_t capacity, unsigned mode, std::uint64_t limit,
                                        double noise, SearchBudget& budget) {
  reset();
  capacity_ = capacity;
  mode_ = mode;
  noise_ = noise;
  if (std::any_of(load_.begin(), load_.end(), [&](std::uint64_t l) { return l > capacity; })) {
    return Outcome::impossible;
  }
  if (left_ == 0) return Outcome::found;
  std::uint64_t counted = 0;
  open();
  while (!frames_.empty()) {
    budget.spend(steps_ - counted);
    counted = steps_;
    if (steps_ > limit || budget.is_spent()) return Outcome::unknown;
    Frame& frame = frames_.back();
    undo(frame.mark);
    if (!advance(frame)) {
      candidates_.resize(frame.first);
      frames_.pop_back();
      continue;
    }
    if (left_ == 0) return Outcome::found;
    open();
  }
  return is_exact_ ? Outcome::impossible : Outcome::unknown;
}

void ValleySearch::open() {
  const Valley valley = choose();
  const std::size_t first = candidates_.size();
  add_candidates(valley);
  frames_.push_back({valley, first, first, candidates_.size(), changes_.size(), false});
}

// The valley with the best score; the lowest moments are always one. A valley that nothing fits
// into comes first, since it only rises. With
// gaps it is the lowest, as a buffer could otherwise bury what is lower on its other side of a gap.
ValleySearch::Valley ValleySearch::choose() const {
  const auto count = static_cast<Index>(height_.size());
  const bool is_lowest_first = has_gaps_ || !is_exact_;
  double best = std::numeric_limits<double>::infinity();
  std::uint64_t lowest = kUnbounded;
  Valley found{};
  for (Index at = 0; at < count;) {
    if (waiting_[at] == 0) {
      ++at;
      continue;
    }
    const Index begin = at;
    const std::uint64_t floor = height_[at];
    while (at < count && waiting_[at] > 0 && height_[at] == floor) ++at;
    if (wall(begin - 1) < floor || wall(at) < floor) continue;
    if (is_lowest_first) {
      if (floor >= lowest) continue;
      lowest = floor;
    }
    const auto count_of = [&](const std::vector<Index>& buffers) {
      return static_cast<std::size_t>(std::count_if(
          buffers.begin(), buffers.end(), [&](Index buffer) { return fits(buffer, floor); }));
    };
    const std::size_t left = count_of(begins_[begin]), right = count_of(ends_[at]);
    const Valley valley{begin, at, left <= right};
    const double value = is_lowest_first ? 0 : score(valley, std::min(left, right));
    if (is_lowest_first || value < best) {
      best = value;
      found = valley;
    }
  }
  return found;
}

double ValleySearch::score(const Valley& valley, std::size_t options) const {
  if (options == 0) return -1;
  const auto count = static_cast<double>(options);
  if (mode_ % 3 == 0) return static_cast<double>(height_[valley.begin]) * 1e3 + count;
  if (mode_ % 3 == 1) {
    const auto& failures = failures_[mode_];
    const double failed =
        std::accumulate(failures.begin() + valley.begin, failures.begin() + valley.end, 0.0);
    return count / (failed + 1) * 1e6 +
           static_cast<double>(height_[valley.begin]) / static_cast<double>(capacity_);
  }
  std::uint64_t slack = kUnbounded;
  for (Index at = valley.begin; at < valley.end; ++at) {
    slack = std::min(slack, capacity_ - height_[at] - waiting_[at]);
  }
  return static_cast<double>(slack) * 1e3 + count;
}

// What may stand on the floor at the edge, the most promising first: what ends at the other edge or
// at the height of a wall, then the long-lived, the large, or both.
void ValleySearch::add_candidates(const Valley& valley) {
  const std::uint64_t floor = height_[valley.begin];
  const std::uint64_t left = wall(valley.begin - 1), right = wall(valley.end);
  const auto length = static_cast<double>(height_.size());
  ranked_.clear();
  for (const Index i : valley.is_from_left ? begins_[valley.begin] : ends_[valley.end]) {
    if (!fits(i, floor)) continue;
    const Buffer& buffer = buffers_[i];
    const std::uint64_t below = top_[static_cast<Index>(buffer.lower)];
    // Of two that live alike, one on the other, the first stands below.
    if (below != kNone && below > i && is_same_life(buffers_[below], buffer) &&
        offset_[below] + buffers_[below].bytes == floor) {
      continue;
    }
    const std::uint64_t end = floor + buffer.bytes;
    double snug = 0;
    if (buffer.lower == valley.begin) snug += end == left ? 3 : 1;
    if (buffer.upper == valley.end) snug += end == right ? 3 : 1;
    const double life = static_cast<double>(buffer.upper - buffer.lower) / length;
    const double size = static_cast<double>(buffer.bytes) / static_cast<double>(capacity_);
    const unsigned by = mode_ / 3 % 3;
    double rank = by == 0 ? life : by == 1 ? size : life * size;
    if (mode_ / 9 == 1) rank += snug;
    if (noise_ > 0) rank += noise_ * static_cast<double>(random_() >> 11) * 0x1p-53;
    const bool is_twin = std::any_of(ranked_.begin(), ranked_.end(), [&](const auto& other) {
      const Buffer& before = buffers_[other.second];
      return before.bytes == buffer.bytes && is_same_life(before, buffer);
    });
    if (!is_twin) ranked_.emplace_back(-rank, i);
  }
  std::sort(ranked_.begin(), ranked_.end());
  for (const auto& [rank, i] : ranked_) candidates_.push_back(i);
  steps_ += height_.size() + ranked_.size() * ranked_.size();
}

bool ValleySearch::advance(Frame& frame) {
  const std::uint64_t floor = height_[frame.valley.begin];
  while (frame.next < frame.last) {
    if (place(candidates_[frame.next++], floor)) return true;
    undo(frame.mark);
  }
  if (frame.is_raised) return false;
  frame.is_raised = true;
  return raise(frame.valley);
}

bool ValleySearch::place(Index buffer, std::uint64_t height) {
  const std::uint64_t offset = aligned(buffer, height);
  const std::uint64_t bytes = buffers_[buffer].bytes;
  is_placed_[buffer] = true;
  offset_[buffer] = offset;
  --left_;
  changes_.push_back({Was::placed, buffer, 0});
  for (const Run& run : runs(buffer)) {
    for (Index at = run.begin; at < run.end; ++at) {
      waiting_[at] -= bytes;
      set(Was::height, height_, at, offset + bytes);
      set(Was::top, top_, at, buffer);
    }
  }
  for (const Run& run : runs(buffer)) {
    if (!holds(run.begin, run.end)) return false;
  }
  return true;
}

// Nothing stands on the floor at the edge. What covers it next stands on a wall, or on something
// beside the edge that is yet to be placed.
bool ValleySearch::raise(const Valley& valley) {
  const std::uint64_t floor = height_[valley.begin];
  const Index edge = valley.is_from_left ? valley.begin : valley.end - 1;
  std::uint64_t next = std::min(wall(valley.begin - 1), wall(valley.end));
  const auto consider = [&](Index i) {
    if (is_placed_[i] || covers(i, edge)) return;
    next = std::min(next, aligned(i, floor_[i]) + buffers_[i].bytes);
  };
  if (has_gaps_ || !is_exact_) {
    next = kUnbounded;
    for (const Index i : covering_[edge]) {
      if (is_placed_[i]) continue;
      if (floor_[i] > floor) next = std::min(next, floor_[i]);
    }
    for (Index i = 0; i < buffers_.size(); ++i) consider(i);
    steps_ += buffers_.size();
  } else {
    for (Index at = valley.begin; at < valley.end; ++at) {
      for (const Index i : begins_[at]) {
        if (floor_[i] == floor) consider(i);
      }
      steps_ += begins_[at].size();
    }
  }
  if (next <= floor || next > capacity_) return false;
  set(Was::height, height_, edge, next);
  set(Was::top, top_, edge, kNone);
  return holds(edge, edge + 1);
}

// The moments [begin, end) are filled higher: what covers them has a higher floor, and each moment
// that is covered by such a buffer is looked at again.
bool ValleySearch::holds(Index begin, Index end) {
  touched_.clear();
  const auto touch = [&](Index moment) {
    if (is_touched_[moment]) return;
    is_touched_[moment] = true;
    touched_.push_back(moment);
  };
  for (Index at = begin; at < end; ++at) {
    touch(at);
    for (const Index i : covering_[at]) {
      if (is_placed_[i] || floor_[i] >= height_[at]) continue;
      set(Was::floor, floor_, i, height_[at]);
      for (const Run& run : runs(i)) {
        for (Index other = run.begin; other < run.end; ++other) touch(other);
      }
    }
    steps_ += covering_[at].size();
  }
  bool all_hold = true;
  for (const Index moment : touched_) {
    is_touched_[moment] = false;
    if (!all_hold || moment_holds(moment)) continue;
    failures_[mode_][moment] += 1;
    all_hold = false;
  }
  steps_ += touched_.size();
  return all_hold;
}

bool ValleySearch::moment_holds(Index moment) {
  if (waiting_[moment] == 0) return height_[moment] <= capacity_;
  if (height_[moment] > capacity_ || waiting_[moment] > capacity_ - height_[moment]) return false;
  stack_.clear();
  std::uint64_t highest = 0;
  for (const Index i : covering_[moment]) {
    if (is_placed_[i]) continue;
    const std::uint64_t lowest = aligned(i, floor_[i]);
    highest = std::max(highest, lowest);
    stack_.emplace_back(lowest, buffers_[i].bytes);
  }
  steps_ += covering_[moment].size();
  if (highest > capacity_) return false;
  if (waiting_[moment] <= capacity_ - highest) return true;
  std::sort(stack_.begin(), stack_.end());
  std::uint64_t end = 0;
  for (const auto& [lowest, bytes] : stack_) {
    end = std::max(end, lowest);
    if (bytes > capacity_ - end) return false;
    end += bytes;
  }
  return true;
}

void ValleySearch::undo(std::size_t mark) {
  while (changes_.size() > mark) {
    const Change change = changes_.back();
    changes_.pop_back();
    if (change.what == Was::height) height_[change.index] = change.value;
    if (change.what == Was::top) top_[change.index] = change.value;
    if (change.what == Was::floor) floor_[change.index] = change.value;
    if (change.what != Was::placed) continue;
    is_placed_[change.index] = false;
    ++left_;
    for (const Run& run : runs(change.index)) {
      for (Index at = run.begin; at < run.end; ++at) {
        waiting_[at] += buffers_[change.index].bytes;
      }
    }
  }
}

// How high a neighbour of a valley is; where nothing waits any more, too high to stand on.
std::uint64_t ValleySearch::wall(Index moment) const {
  return moment >= height_.size() || waiting_[moment] == 0 ? kUnbounded : height_[moment];
}

std::uint64_t ValleySearch::aligned(Index buffer, std::uint64_t offset) const {
  const std::uint64_t alignment = buffers_[buffer].alignment;
  return is_exact_ ? offset : (offset + alignment - 1) / alignment * alignment;
}

bool ValleySearch::covers(Index buffer, Index moment) const {
  const auto all = runs(buffer);
  return std::any_of(all.begin(), all.end(),
                     [moment](const Run& run) { return run.begin <= moment && moment < run.end; });
}

void ValleySearch::set(Was what, std::vector<std::uint64_t>& values, Index index,
                       std::uint64_t value) {
  changes_.push_back({what, index, values[index]});
  values[index] = value;
}

}  // namespace npusim::lab
