// SPDX-License-Identifier: BSD-3-Clause
// The corners that may meet, the walls that may be, and the placement read from them.
#include "lab/engine/wall_search.h"

#include <algorithm>
#include <map>
#include <utility>

namespace npusim::lab {
namespace {

constexpr std::uint64_t kMostWalls = 4'000'000;   // 200 MiB
constexpr std::uint64_t kMostLooks = 40'000'000;  // at rows, stacks and pairs of them
constexpr std::uint64_t kLooksPerStep = 4;

}  // namespace

WallSearch::WallSearch(std::span<const Buffer> buffers, std::size_t most, unsigned rounds_of_pairs)
    : given_(buffers.size()),
      compositions_(buffers, 2 * buffers.size()),
      buffers_(buffers.begin(), buffers.end()),
      most_(most) {
  cost_.assign(given_, 1);
  for (unsigned round = 0;
       compositions_.look(round < rounds_of_pairs) || round < rounds_of_pairs;) {
    ++round;
  }
  for (const Composition& composition : compositions_.found()) {
    buffers_.push_back(composition.whole);
    cost_.push_back(composition.members.size() == 2 ? 2 : 1);  // of pairs there are many
  }
  std::int64_t moments = 0;
  for (const Buffer& buffer : buffers_) moments = std::max(moments, buffer.upper);
  moments_ = static_cast<Index>(moments);
  begins_.resize(moments_ + 1);
  ends_.resize(moments_ + 1);
  for (Index i = 0; i < buffers_.size(); ++i) {
    begins_[static_cast<Index>(buffers_[i].lower)].push_back(i);
    ends_[static_cast<Index>(buffers_[i].upper)].push_back(i);
  }
  meetings_.resize(kCorners * buffers_.size());
  add_meetings();
  may_meet_.assign(corners_.size(), true);
  add_rows();
  sieve();
  add_stacks();
  sieve();
  if (!is_too_large_) add_clauses();
}

void WallSearch::add_meeting(Index one, Index other) {
  const auto number = static_cast<Index>(corners_.size());
  meetings_[one].push_back({other, number});
  meetings_[other].push_back({one, number});
  corners_.emplace_back(one, other);
}

// Adds a meeting to the wall that is made; false where it cannot be.
bool WallSearch::meet(Index one, Index other) {
  const auto& all = meetings_[one];
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Meeting& m) { return m.other == other; });
  meets_.push_back(found->number);
  return may_meet_[found->number];
}

// Whether it is on the first or last moment, where no wall is needed.
bool WallSearch::is_border(Index meeting) const {
  const auto [one, other] = corners_[meeting];
  const Buffer &a = buffers_[one / kCorners], &b = buffers_[other / kCorners];
  if (a.upper == b.lower) return false;
  return one % kCorners == high_first ? a.lower == 0 : a.upper == moments_;
}

void WallSearch::add_meetings() {
  for (Index at = 0; at <= moments_; ++at) {
    for (const Index a : begins_[at]) {
      for (const Index b : begins_[at]) {
        if (a != b) add_meeting(corner(a, high_first), corner(b, low_first));
      }
    }
    for (const Index a : ends_[at]) {
      for (const Index b : ends_[at]) {
        if (a != b) add_meeting(corner(a, high_last), corner(b, low_last));
      }
      for (const Index b : begins_[at]) {
        add_meeting(corner(a, high_last), corner(b, high_first));
        add_meeting(corner(a, low_last), corner(b, low_first));
      }
    }
  }
}

void WallSearch::add_one_of(const Literals& literals) {
  solver_.add_clause(literals);
  for (std::size_t i = 0; i < literals.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      add({ClauseSolver::negated(literals[i]), ClauseSolver::negated(literals[j])});
    }
  }
}

// A buffer is there as itself, or as part of a composition that is there or part of another.
void WallSearch::add_choices() {
  std::vector<Literals> one_of(buffers_.size());
  for (Index i = 0; i < buffers_.size(); ++i) {
    is_there_.push_back(solver_.add_variable());
    one_of[i].push_back(is_there_[i]);
  }
  const auto& found = compositions_.found();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Literal is_used = solver_.add_variable();
    one_of[given_ + i].push_back(ClauseSolver::negated(is_used));
    for (const Index member : found[i].members) one_of[member].push_back(is_used);
  }
  for (const Literals& literals : one_of) add_one_of(literals);
}

// Each corner meets one other, or is one of the whole; what lies lowest goes on beside it.
void WallSearch::add_sides() {
  const auto no = [](Literal literal) { return ClauseSolver::negated(literal); };
  for (Index i = 0; i < buffers_.size(); ++i) {
    lowest_.push_back(solver_.add_variable());
    highest_.push_back(solver_.add_variable());
    add({no(lowest_[i]), is_there_[i]});
    add({no(highest_[i]), is_there_[i]});
  }
  std::array<Literals, kCorners> outer;
  for (Index i = 0; i < buffers_.size(); ++i) {
    for (const Corner which : {low_first, low_last, high_first, high_last}) {
      const bool is_low = which == low_first || which == low_last;
      const bool is_first = which == low_first || which == high_first;
      const Literal side = is_low ? lowest_[i] : highest_[i];
      Literals one_of{no(is_there_[i])};
      for (const auto& [other, number] : meetings_[corner(i, which)]) {
        const Literal literal = literals_[number];
        one_of.push_back(literal);
        const Index b = other / kCorners;
        const bool is_beside =
            buffers_[i].upper == buffers_[b].lower || buffers_[b].upper == buffers_[i].lower;
        if (!is_beside) {
          add({no(literal), no(side)});
          continue;
        }
        const Literal beside = is_low ? lowest_[b] : highest_[b];
        add({no(literal), no(side), beside});
      }
      if (is_first ? buffers_[i].lower == 0 : buffers_[i].upper == moments_) {
        one_of.push_back(side);
        outer[which].push_back(side);
      }
      add_one_of(one_of);
    }
  }
  for (const Literals& all : outer) add_one_of(all);
}

void WallSearch::add_wall(Walls& walls, const Indices& before, const Indices& after) {
  const bool is_row = &walls == &rows_;
  const Corner before_begin = is_row ? high_first : low_last, before_end = high_last;
  const Corner after_begin = low_first, after_end = is_row ? low_last : high_first;
  meets_.clear();
  touched_.clear();
  const auto is_possible_along = [&](const Indices& side, Corner begin, Corner end) {
    const bool is_before = &side == &before;
    for (std::size_t i = 0; i < side.size(); ++i) {
      touched_.push_back(2 * side[i] + (is_before ? 1 : 0));
      if (i > 0 && !meet(corner(side[i - 1], end), corner(side[i], begin))) return false;
    }
    return true;
  };
  const bool is_possible =
      meet(corner(before.front(), before_begin), corner(after.front(), after_begin)) &&
      meet(corner(before.back(), before_end), corner(after.back(), after_end)) &&
      is_possible_along(before, before_begin, before_end) &&
      is_possible_along(after, after_begin, after_end);
  if (!is_possible) return;
  if (walls.begins.size() > kMostWalls) is_too_large_ = true;
  walls.meetings.insert(walls.meetings.end(), meets_.begin(), meets_.end());
  walls.sides.insert(walls.sides.end(), touched_.begin(), touched_.end());
  walls.begins.push_back(walls.meetings.size());
}

// Leaves out walls with meetings that no wall of the other direction has, again and again.
void WallSearch::sieve() {
  const bool has_stacks = stacks_.begins.size() > 1;
  std::size_t before = 0;
  while (before != rows_.begins.size() + stacks_.begins.size()) {
    before = rows_.begins.size() + stacks_.begins.size();
    for (Walls* walls : {&rows_, &stacks_}) {
      if (walls == &stacks_ && !has_stacks) continue;
      std::vector<bool> is_in(corners_.size());
      for (const Index number : walls->meetings) is_in[number] = true;
      for (Index number = 0; number < corners_.size(); ++number) {
        const auto [one, other] = corners_[number];
        const bool is_beside = buffers_[one / kCorners].upper == buffers_[other / kCorners].lower;
        if (!is_in[number] && (walls == &rows_ ? !is_beside : !is_border(number))) {
          may_meet_[number] = false;
        }
      }
    }
    for (Walls* walls : {&rows_, &stacks_}) {
      Walls left;
      for (std::size_t i = 0; i + 1 < walls->begins.size(); ++i) {
        const auto from = static_cast<std::ptrdiff_t>(walls->begins[i]);
        const auto to = static_cast<std::ptrdiff_t>(walls->begins[i + 1]);
        const auto& all = walls->meetings;
        if (!std::all_of(all.begin() + from, all.begin() + to,
                         [&](Index number) { return may_meet_[number]; })) {
          continue;
        }
        left.meetings.insert(left.meetings.end(), all.begin() + from, all.begin() + to);
        left.sides.insert(left.sides.end(), walls->sides.begin() + from, walls->sides.begin() + to);
        left.begins.push_back(left.meetings.size());
      }
      *walls = std::move(left);
    }
  }
}

// What meets is at a wall in both directions, and so is each side.
void WallSearch::add_clauses() {
  for (auto& all : meetings_) {
    std::erase_if(all, [&](const Meeting& m) { return !may_meet_[m.number]; });
  }
  for (Index i = 0; i < corners_.size(); ++i) {
    literals_.push_back(may_meet_[i] ? solver_.add_variable() : 0);
  }
  add_choices();
  add_sides();
  for (Walls* walls : {&rows_, &stacks_}) {
    std::vector<Literals> by_meeting(corners_.size()), by_side(2 * buffers_.size());
    for (std::size_t i = 0; i + 1 < walls->begins.size(); ++i) {
      const Literal wall = solver_.add_variable();
      for (std::size_t j = walls->begins[i]; j < walls->begins[i + 1]; ++j) {
        const Index number = walls->meetings[j];
        add({ClauseSolver::negated(wall), literals_[number]});
        by_meeting[number].push_back(wall);
        by_side[walls->sides[j]].push_back(wall);
      }
    }
    const bool is_row = walls == &rows_;
    for (Index number = 0; number < corners_.size(); ++number) {
      if (!may_meet_[number] || (!is_row && is_border(number))) continue;
      const auto [one, other] = corners_[number];
      const Index a = one / kCorners;
      Literals& clause = by_meeting[number];
      const bool is_beside = buffers_[a].upper == buffers_[other / kCorners].lower;
      if (is_row && is_beside)
        clause.push_back(one % kCorners == low_last ? lowest_[a] : highest_[a]);
      clause.push_back(ClauseSolver::negated(literals_[number]));
      solver_.add_clause(clause);
    }
    for (Index i = 0; i < buffers_.size(); ++i) {
      for (const bool is_second : {false, true}) {
        if (!is_row && (is_second ? buffers_[i].upper == moments_ : buffers_[i].lower == 0))
          continue;
        Literals& clause = by_side[2 * i + (is_second ? 1 : 0)];
        if (is_row) clause.push_back(is_second ? highest_[i] : lowest_[i]);
        clause.push_back(ClauseSolver::negated(is_there_[i]));
        solver_.add_clause(clause);
      }
    }
  }
}

void WallSearch::sort(std::vector<Line>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) lines[i].number = i;
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.number < b.number;
  });
}

// Rows from a moment, by where they end; two that end together, and at no moment before, are a
// wall.
void WallSearch::add_rows() {
  std::map<Index, std::vector<Line>> rows;
  Line row;
  const auto extend = [&](const auto& self, Index at) -> void {
    for (const Index i : begins_[at]) {
      if (row.cost + cost_[i] >= most_) continue;
      const auto end = static_cast<Index>(buffers_[i].upper);
      row.buffers.push_back(i);
      row.cost += cost_[i];
      is_too_large_ = is_too_large_ || ++looked_at_ > kMostLooks;
      if (is_too_large_) return;
      rows[end].push_back(row);
      self(self, end);
      row.cost -= cost_[i];
      row.buffers.pop_back();
    }
  };
  const auto is_apart = [&](const Indices& a, const Indices& b) {
    std::size_t i = 0, j = 0;
    while (i + 1 < a.size() && j + 1 < b.size()) {
      const auto one = buffers_[a[i]].upper, other = buffers_[b[j]].upper;
      if (one == other) return false;
      one < other ? ++i : ++j;
    }
    return a.front() != b.front() && a.back() != b.back();
  };
  for (Index at = 0; at < moments_ && !is_too_large_; ++at) {
    rows.clear();
    extend(extend, at);
    for (auto& [end, all] : rows) {
      sort(all);
      for (std::size_t i = 0; i < all.size() && !is_too_large_; ++i) {
        for (std::size_t j = 0; j < i && all[i].cost + all[j].cost <= most_; ++j) {
          ++looked_at_;
          if (!is_apart(all[i].buffers, all[j].buffers)) continue;
          add_wall(rows_, all[i].buffers, all[j].buffers);
          add_wall(rows_, all[j].buffers, all[i].buffers);
        }
      }
    }
  }
}

// Stacks of what ends and of what begins at a moment, in every order, by their bytes.
void WallSearch::add_stacks() {
  using Stacks = std::map<std::uint64_t, std::vector<Line>>;
  const auto all_of = [&](const Indices& from, Corner below, Corner above) {
    Stacks stacks;
    Line stack;
    const auto extend = [&](const auto& self, std::uint64_t bytes) -> void {
      for (const Index i : from) {
        auto& own = stack.buffers;
        if (stack.cost + cost_[i] >= most_) continue;
        if (std::find(own.begin(), own.end(), i) != own.end()) continue;
        meets_.clear();
        if (!own.empty() && !meet(corner(own.back(), below), corner(i, above))) continue;
        own.push_back(i);
        stack.cost += cost_[i];
        is_too_large_ = is_too_large_ || ++looked_at_ > kMostLooks;
        if (is_too_large_) return;
        stacks[bytes + buffers_[i].bytes].push_back(stack);
        self(self, bytes + buffers_[i].bytes);
        stack.cost -= cost_[i];
        own.pop_back();
      }
    };
    extend(extend, 0);
    for (auto& [bytes, all] : stacks) sort(all);
    return stacks;
  };
  for (Index at = 1; at < moments_ && !is_too_large_; ++at) {
    const Stacks before = all_of(ends_[at], high_last, low_last);
    const Stacks after = all_of(begins_[at], high_first, low_first);
    for (const auto& [bytes, ends] : before) {
      const auto found = after.find(bytes);
      if (found == after.end()) continue;
      for (const Line& a : ends) {
        for (const Line& b : found->second) {
          if (a.cost + b.cost > most_ || is_too_large_) break;
          ++looked_at_;
          add_wall(stacks_, a.buffers, b.buffers);
        }
        is_too_large_ = is_too_large_ || looked_at_ > kMostLooks;
      }
    }
  }
}

WallSearch::Outcome WallSearch::run(std::uint64_t steps, SearchBudget& budget) {
  budget.spend(std::exchange(looked_at_, 0) / kLooksPerStep);
  if (is_too_large_) return Outcome::unknown;
  const Outcome outcome = solver_.run(steps, budget);
  if (outcome != Outcome::found) return outcome;
  return write() ? Outcome::found : Outcome::unknown;
}

// From one of the lowest to what it meets, and so on.
bool WallSearch::write() {
  constexpr std::uint64_t kUnknown = Compositions::kNowhere;
  offset_.assign(buffers_.size(), kUnknown);
  Indices waiting;
  for (Index i = 0; i < buffers_.size(); ++i) {
    if (!solver_.is_true(lowest_[i])) continue;
    offset_[i] = 0;
    waiting.push_back(i);
  }
  while (!waiting.empty()) {
    const Index a = waiting.back();
    waiting.pop_back();
    for (const Corner which : {low_first, low_last, high_first, high_last}) {
      for (const auto& [other, number] : meetings_[corner(a, which)]) {
        if (!solver_.is_true(literals_[number])) continue;
        const Index b = other / kCorners;
        const auto to = static_cast<Corner>(other % kCorners);
        const bool is_low = which == low_first || which == low_last;
        const bool is_other_low = to == low_first || to == low_last;
        const std::uint64_t height = offset_[a] + (is_low ? 0 : buffers_[a].bytes);
        const std::uint64_t offset = height - (is_other_low ? 0 : buffers_[b].bytes);
        if (offset_[b] == offset) continue;
        if (offset_[b] != kUnknown) return false;
        offset_[b] = offset;
        waiting.push_back(b);
      }
    }
  }
  compositions_.place_members(offset_);
  offset_.resize(given_);
  // Full at each moment: no two meet where each stands on another.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> alive;
  Indices now;
  for (Index at = 0; at < moments_; ++at) {
    std::erase_if(now, [&](Index i) { return static_cast<Index>(buffers_[i].upper) == at; });
    for (const Index i : begins_[at]) {
      if (i < given_) now.push_back(i);
    }
    alive.clear();
    for (const Index i : now) alive.emplace_back(offset_[i], buffers_[i].bytes);
    std::sort(alive.begin(), alive.end());
    std::uint64_t end = 0;
    for (const auto& [offset, bytes] : alive) {
      if (offset != end) return false;
      end += bytes;
    }
  }
  return true;
}

}  // namespace npusim::lab
