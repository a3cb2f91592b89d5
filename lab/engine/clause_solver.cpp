// SPDX-License-Identifier: BSD-3-Clause
// Propagation, what is learned, and the order of decisions.
#include "lab/engine/clause_solver.h"

#include <algorithm>

namespace npusim::lab {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::uint64_t kConflicts = 100;  // of the shortest attempt
constexpr std::uint32_t kFewLevels = 2;    // clauses over so few stay
constexpr double kDecay = 1 / 0.95;        // of what older conflicts are worth
constexpr double kTooLarge = 1e100;
constexpr std::uint64_t kLooksPerStep = 4;

}  // namespace

ClauseSolver::Literal ClauseSolver::add_variable() {
  const auto variable = static_cast<Index>(level_.size());
  watches_.resize(watches_.size() + 2);
  values_.resize(values_.size() + 2);
  kept_.push_back(-1);
  level_.push_back(0);
  reason_.push_back(kNone);
  worth_.push_back(0);
  is_seen_.push_back(false);
  seen_at_.push_back(0);
  place_.push_back(static_cast<Index>(heap_.size()));
  heap_.push_back(variable);
  return 2 * variable;
}

// Given clauses come before the first run, when all that is set holds for ever.
void ClauseSolver::add_clause(std::span<const Literal> given) {
  learned_.clear();
  for (const Literal literal : given) {
    if (is_true(literal)) return;
    if (!is_false(literal)) learned_.push_back(literal);
  }
  if (learned_.empty()) is_impossible_ = true;
  if (learned_.size() == 1) set(learned_[0], kNone);
  if (learned_.size() > 1) add(learned_, 0);
}

ClauseSolver::Index ClauseSolver::add(std::span<const Literal> literals, Index levels) {
  const auto clause = static_cast<Index>(clauses_.size());
  clauses_.push_back({literals_.size(), static_cast<Index>(literals.size()), levels});
  literals_.insert(literals_.end(), literals.begin(), literals.end());
  watches_[literals[0]].push_back({clause, literals[1]});
  watches_[literals[1]].push_back({clause, literals[0]});
  if (levels > 0) ++learned_count_;
  return clause;
}

void ClauseSolver::set(Literal literal, Index reason) {
  values_[literal] = 1;
  values_[negated(literal)] = -1;
  level_[literal / 2] = static_cast<Index>(marks_.size());
  reason_[literal / 2] = reason;
  trail_.push_back(literal);
}

ClauseSolver::Index ClauseSolver::propagate() {
  while (next_ < trail_.size()) {
    const Literal gone = negated(trail_[next_++]);
    auto& watches = watches_[gone];
    looked_at_ += watches.size();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < watches.size(); ++i) {
      const Watch watch = watches[i];
      if (is_true(watch.other)) {
        watches[kept++] = watch;
        continue;
      }
      const auto all = literals(watch.clause);
      if (all[0] == gone) std::swap(all[0], all[1]);
      const Literal first = all[0];
      if (first != watch.other && is_true(first)) {
        watches[kept++] = {watch.clause, first};
        continue;
      }
      std::size_t other = 2;
      while (other < all.size() && is_false(all[other])) ++other;
      looked_at_ += other;
      if (other < all.size()) {
        std::swap(all[1], all[other]);
        watches_[all[1]].push_back({watch.clause, first});
        continue;
      }
      watches[kept++] = {watch.clause, first};
      if (is_false(first)) {
        for (++i; i < watches.size(); ++i) watches[kept++] = watches[i];
        watches.resize(kept);
        return watch.clause;
      }
      set(first, watch.clause);
    }
    watches.resize(kept);
  }
  return kNone;
}

ClauseSolver::Outcome ClauseSolver::run(std::uint64_t steps, SearchBudget& budget) {
  const std::uint64_t end = budget.spent() + steps;
  std::uint64_t left = kConflicts * share_of(attempt_++);
  while (!is_impossible_) {
    const Index conflict = propagate();
    budget.spend(looked_at_ / kLooksPerStep);
    looked_at_ %= kLooksPerStep;
    if (conflict != kNone) {
      if (marks_.empty()) break;
      resolve(conflict);
      ++conflicts_;
      if (left > 0) --left;
      continue;
    }
    if (budget.is_spent() || budget.spent() >= end) {
      undo(0);
      return Outcome::unknown;
    }
    if (left == 0) {
      undo(0);
      left = kConflicts * share_of(attempt_++);
      if (learned_count_ > most_learned_) forget();
    }
    if (!decide()) return Outcome::found;
  }
  is_impossible_ = true;
  return Outcome::impossible;
}

bool ClauseSolver::decide() {
  while (!heap_.empty()) {
    const Index variable = heap_[0];
    const Index last = heap_.back();
    heap_.pop_back();
    place_[variable] = kNone;
    if (!heap_.empty()) {
      heap_[0] = last;
      place_[last] = 0;
      move_down(0);
    }
    if (values_[std::size_t{2} * variable] != 0) continue;
    marks_.push_back(trail_.size());
    set(2 * variable + (kept_[variable] > 0 ? 0 : 1), kNone);
    return true;
  }
  return false;
}

// The clause that follows from those of the last level, of which one literal remains.
void ClauseSolver::resolve(Index conflict) {
  learned_.assign(1, 0);
  const auto level = static_cast<Index>(marks_.size());
  std::size_t open = 0, at = trail_.size();
  Literal literal = kNone;
  Index reason = conflict;
  while (true) {
    for (const Literal other : literals(reason)) {
      const Index variable = other / 2;
      if (other == literal || is_seen_[variable] || level_[variable] == 0) continue;
      is_seen_[variable] = true;
      bump(variable);
      if (level_[variable] == level) {
        ++open;
      } else {
        learned_.push_back(other);
      }
    }
    looked_at_ += clauses_[reason].count;
    do literal = trail_[--at];
    while (!is_seen_[literal / 2]);
    is_seen_[literal / 2] = false;
    if (--open == 0) break;
    reason = reason_[literal / 2];
  }
  learned_[0] = negated(literal);
  // What follows from others of the clause is left out.
  const std::vector<Literal> seen(learned_.begin() + 1, learned_.end());
  std::erase_if(learned_, [&](Literal other) {
    const Index why = reason_[other / 2];
    if (other == learned_[0] || why == kNone) return false;
    const auto all = literals(why);
    return std::all_of(all.begin(), all.end(), [&](Literal by) {
      return by == negated(other) || level_[by / 2] == 0 || is_seen_[by / 2];
    });
  });
  for (const Literal other : seen) is_seen_[other / 2] = false;
  step_ *= kDecay;
  std::size_t back = 0;
  Index levels = 1;
  const auto stamp = static_cast<Index>(conflicts_ + 1);
  for (std::size_t i = 1; i < learned_.size(); ++i) {
    const Index of = level_[learned_[i] / 2];
    if (seen_at_[of] != stamp) ++levels;
    seen_at_[of] = stamp;
    if (of <= back) continue;
    back = of;
    std::swap(learned_[1], learned_[i]);
  }
  undo(back);
  set(learned_[0], learned_.size() > 1 ? add(learned_, levels) : kNone);
}

void ClauseSolver::undo(std::size_t level) {
  if (marks_.size() <= level) return;
  while (trail_.size() > marks_[level]) {
    const Literal literal = trail_.back();
    trail_.pop_back();
    values_[literal] = values_[negated(literal)] = 0;
    const Index variable = literal / 2;
    kept_[variable] = (literal & 1) == 0 ? 1 : -1;
    if (place_[variable] != kNone) continue;
    place_[variable] = static_cast<Index>(heap_.size());
    heap_.push_back(variable);
    move_up(heap_.size() - 1);
  }
  marks_.resize(level);
  next_ = trail_.size();
}

// Half of the learned clauses, those over most levels, the oldest first. Nothing is decided now,
// and what is set needs no reason.
void ClauseSolver::forget() {
  std::vector<Index> many;
  for (Index i = 0; i < clauses_.size(); ++i) {
    if (clauses_[i].levels > kFewLevels) many.push_back(i);
  }
  std::sort(many.begin(), many.end(), [&](Index a, Index b) {
    return clauses_[a].levels != clauses_[b].levels ? clauses_[a].levels > clauses_[b].levels
                                                    : a < b;
  });
  many.resize(many.size() / 2);
  for (const Index i : many) clauses_[i].count = 0;
  std::vector<Clause> clauses;
  std::vector<Literal> all;
  clauses.swap(clauses_);
  all.swap(literals_);
  for (auto& watches : watches_) watches.clear();
  learned_count_ = 0;
  for (const auto& [begin, count, levels] : clauses) {
    if (count > 0) add({all.data() + begin, count}, levels);
  }
  for (const Literal literal : trail_) reason_[literal / 2] = kNone;
  next_ = 0;
  most_learned_ += most_learned_ / 10;
}

void ClauseSolver::bump(Index variable) {
  worth_[variable] += step_;
  if (worth_[variable] > kTooLarge) {
    for (double& worth : worth_) worth /= kTooLarge;
    step_ /= kTooLarge;
  }
  if (place_[variable] != kNone) move_up(place_[variable]);
}

void ClauseSolver::move_up(std::size_t at) {
  const Index variable = heap_[at];
  for (; at > 0 && is_before(variable, heap_[(at - 1) / 2]); at = (at - 1) / 2) {
    heap_[at] = heap_[(at - 1) / 2];
    place_[heap_[at]] = static_cast<Index>(at);
  }
  heap_[at] = variable;
  place_[variable] = static_cast<Index>(at);
}

void ClauseSolver::move_down(std::size_t at) {
  const Index variable = heap_[at];
  while (2 * at + 1 < heap_.size()) {
    std::size_t child = 2 * at + 1;
    if (child + 1 < heap_.size() && is_before(heap_[child + 1], heap_[child])) ++child;
    if (!is_before(heap_[child], variable)) break;
    heap_[at] = heap_[child];
    place_[heap_[at]] = static_cast<Index>(at);
    at = child;
  }
  heap_[at] = variable;
  place_[variable] = static_cast<Index>(at);
}

}  // namespace npusim::lab
