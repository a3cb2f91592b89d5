// SPDX-License-Identifier: BSD-3-Clause
// A solver of satisfiability that learns clauses from conflicts.
//
// Literals are 2 * variable, and one more where it is false. Two literals of a clause are watched.
// A conflict is resolved to the first unique implication point, and variables of recent conflicts
// are decided first. Attempts grow as Luby, Sinclair and Zuckerman (1993) have it, values are kept
// (Een and Soerensson 2003), and clauses over few levels stay (Audemard and Simon 2009).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lab/engine/valley_search.h"

namespace npusim::lab {

class ClauseSolver {
 public:
  using Literal = std::uint32_t;
  using Outcome = ValleySearch::Outcome;

  // add_variable() returns the literal that says true.
  Literal add_variable();
  static Literal negated(Literal literal) noexcept { return literal ^ 1; }
  void add_clause(std::span<const Literal> literals);

  // run() goes on until the budget is spent, or so many steps; impossible is a proof.
  Outcome run(std::uint64_t steps, SearchBudget& budget);
  bool is_true(Literal literal) const noexcept { return values_[literal] > 0; }  // once found

 private:
  using Index = std::uint32_t;
  struct Watch {
    Index clause;
    Literal other;  // of the clause: nothing to do where it is true
  };
  struct Clause {
    std::size_t begin = 0;  // of literals_
    Index count = 0;
    Index levels = 0;  // of a learned clause, where it was learned; 0: given
  };

  std::span<Literal> literals(Index clause) {
    return {literals_.data() + clauses_[clause].begin, clauses_[clause].count};
  }
  bool is_false(Literal literal) const noexcept { return values_[literal] < 0; }
  Index add(std::span<const Literal> literals, Index levels);
  void set(Literal literal, Index reason);
  Index propagate();  // the clause that is false, or none
  void resolve(Index conflict);
  void undo(std::size_t level);
  bool decide();
  void forget();
  void bump(Index variable);
  void move_up(std::size_t at);
  void move_down(std::size_t at);
  bool is_before(Index a, Index b) const noexcept { return worth_[a] > worth_[b]; }

  std::vector<Literal> literals_;
  std::vector<Clause> clauses_;
  std::vector<std::vector<Watch>> watches_;  // by literal
  std::vector<std::int8_t> values_;          // by literal: 1 true, -1 false, 0 neither
  std::vector<std::int8_t> kept_;            // by variable: the value before
  std::vector<Index> level_, reason_;        // by variable
  std::vector<double> worth_;
  std::vector<Literal> trail_;
  std::vector<std::size_t> marks_;   // of trail_, by level
  std::size_t next_ = 0;             // of trail_, to propagate
  std::vector<Index> heap_, place_;  // variables by worth, and where each is
  double step_ = 1;
  bool is_impossible_ = false;
  std::uint64_t looked_at_ = 0, conflicts_ = 0, attempt_ = 0;
  std::size_t learned_count_ = 0, most_learned_ = 20000;
  std::vector<Literal> learned_;
  std::vector<bool> is_seen_;
  std::vector<Index> seen_at_;  // by level: of the last conflict
};

}  // namespace npusim::lab
