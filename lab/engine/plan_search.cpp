// SPDX-License-Identifier: BSD-3-Clause
// The parts of a problem, the capacities tried, and how the effort is shared out.
#include "lab/engine/plan_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "lab/engine/plan_reduction.h"
#include "lab/engine/valley_search.h"

namespace npusim::lab {
namespace {

using Outcome = ValleySearch::Outcome;

constexpr std::size_t kMostBuffers = 20000;  // of a search: beyond, a first descent takes seconds
constexpr std::uint64_t kMostMoments = 1 << 24;  // summed over the lives of all: 64 MiB
constexpr std::uint64_t kFirstLimit = 1 << 20;   // steps, at least
constexpr std::uint64_t kDescent = 16;  // so many, per buffer and moment, does a first descent take
constexpr double kNoise = 0.02;         // per round
constexpr unsigned kRounds = 6;
constexpr std::array<std::uint64_t, 4> kHeights{0, 2, 16, 52};  // of the room, in 64ths

class Part {
 public:
  Part(std::vector<std::size_t> members, std::uint64_t base, std::span<const Buffer> buffers,
       std::uint64_t bound)
      : members_(std::move(members)), base_(base) {
    std::vector<Buffer> own;
    own.reserve(members_.size());
    for (const std::size_t i : members_) own.push_back(buffers[i]);
    compact_ = compact_lives(own);
    plan_ = heuristic_plan(compact_, bound > base ? bound - base : 0);
  }

  std::uint64_t height() const noexcept { return saturated(base_, plan_.height); }

  void write(std::vector<std::uint64_t>& offsets) const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      offsets[members_[i]] = base_ + plan_.offsets[i];
    }
  }

  // A search of the same level goes on with the next mode.
  Outcome search(std::uint64_t capacity, std::size_t level, SearchBudget& budget) {
    if (height() <= capacity) return Outcome::found;
    if (capacity < base_) return Outcome::impossible;
    if (!is_prepared_) prepare();
    bool try_glued = glued_search_ != nullptr;
    for (unsigned& turn = turns_[level]; try_glued || plain_search_; ++turn) {
      const unsigned mode = turn % ValleySearch::kModes, round = turn / ValleySearch::kModes;
      const std::uint64_t limit = first_limit_ << std::min(round / 2, 20U);
      for (auto* search : {glued_search_.get(), plain_search_.get()}) {
        const bool is_plain = search == plain_search_.get();
        if (!search || (!is_plain && !try_glued)) continue;
        if (budget.is_spent()) return Outcome::unknown;
        const Outcome outcome = search->run(capacity - base_, mode, limit, kNoise * round, budget);
        if (outcome == Outcome::found) take(search->offsets(), is_plain);
        if (outcome == Outcome::impossible && !is_plain) try_glued = false;
        if (outcome == Outcome::found || (outcome == Outcome::impossible && is_plain)) {
          return outcome;
        }
      }
    }
    return Outcome::unknown;
  }

 private:
  static std::unique_ptr<ValleySearch> searchable(std::span<const Buffer> buffers) {
    std::uint64_t moments = 0;
    for (const Buffer& buffer : buffers) {
      moments += static_cast<std::uint64_t>(buffer.upper - buffer.lower);
    }
    if (buffers.size() > kMostBuffers || moments > kMostMoments) return nullptr;
    return std::make_unique<ValleySearch>(buffers);
  }

  void prepare() {
    is_prepared_ = true;
    glued_ = std::make_unique<GluedBuffers>(compact_);
    if (glued_->whole().size() < compact_.size()) {
      glued_search_ = searchable(glued_->whole());
    }
    plain_search_ = searchable(compact_);
    std::int64_t moments = 0;
    for (const Buffer& buffer : compact_) moments = std::max(moments, buffer.upper);
    first_limit_ =
        std::max(kFirstLimit, kDescent * compact_.size() * static_cast<std::uint64_t>(moments));
  }

  void take(const std::vector<std::uint64_t>& offsets, bool is_plain) {
    Plan found{.offsets = offsets};
    plan_ = is_plain ? std::move(found) : glued_->apart(found);
    plan_.height = 0;
    for (std::size_t i = 0; i < compact_.size(); ++i) {
      plan_.height = std::max(plan_.height, plan_.offsets[i] + compact_[i].bytes);
    }
  }

  std::vector<std::size_t> members_;
  std::uint64_t base_;
  std::vector<Buffer> compact_;
  Plan plan_;
  bool is_prepared_ = false;
  std::array<unsigned, kHeights.size()> turns_{};
  std::uint64_t first_limit_ = kFirstLimit;
  std::unique_ptr<GluedBuffers> glued_;
  std::unique_ptr<ValleySearch> glued_search_, plain_search_;
};

class PartedProblem {
 public:
  PartedProblem(std::span<const Buffer> buffers, std::uint64_t bound, SearchBudget& budget)
      : buffers_(buffers), bound_(bound), budget_(budget), offsets_(buffers.size()) {
    for (const Buffer& buffer : buffers) {
      unit_ = std::gcd(unit_, buffer.bytes);
      if (buffer.alignment != 1) needs_padding_ = true;
    }
    std::vector<std::size_t> all(buffers.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::sort(all.begin(), all.end(), [&](std::size_t a, std::size_t b) {
      return buffers[a].lower != buffers[b].lower ? buffers[a].lower < buffers[b].lower : a < b;
    });
    waiting_.emplace_back(std::move(all), 0);
    while (!waiting_.empty()) {
      auto [members, base] = std::move(waiting_.back());
      waiting_.pop_back();
      divide(std::move(members), base);
    }
  }

  // Offsets are sums of sizes, so what is impossible within a height is up to one unit more, too.
  std::uint64_t unit() const noexcept { return needs_padding_ || unit_ == 0 ? 1 : unit_; }

  std::uint64_t height() const {
    std::uint64_t height = lowest_;
    for (const Part& part : parts_) height = std::max(height, part.height());
    return height;
  }

  Outcome search(std::uint64_t capacity, std::size_t level, const PlanEffort& effort) {
    SearchBudget budget(effort);
    if (lowest_ > capacity) return Outcome::impossible;
    Outcome all = Outcome::found;
    for (Part& part : parts_) {
      const Outcome outcome = part.search(capacity, level, budget);
      if (outcome == Outcome::impossible) all = outcome;
      if (outcome == Outcome::impossible) break;
      if (outcome == Outcome::unknown) all = outcome;
    }
    budget_.spend(budget.spent());
    return all;
  }

  std::vector<std::uint64_t> offsets() const {
    std::vector<std::uint64_t> offsets = offsets_;
    for (const Part& part : parts_) part.write(offsets);
    return offsets;
  }

 private:
  // The members are in order of birth.
  void divide(std::vector<std::size_t> members, std::uint64_t base) {
    budget_.spend(members.size());
    const std::size_t whole = members.size();
    if (!needs_padding_) base = stand_below(members, base);
    std::vector<std::vector<std::size_t>> groups;
    std::int64_t end = std::numeric_limits<std::int64_t>::min();
    for (const std::size_t i : members) {
      if (groups.empty() || buffers_[i].lower >= end) groups.emplace_back();
      groups.back().push_back(i);
      end = std::max(end, buffers_[i].upper);
    }
    const bool is_divided = members.size() < whole || groups.size() > 1;
    for (auto& group : groups) {
      if (is_divided && !budget_.is_spent()) {
        waiting_.emplace_back(std::move(group), base);
      } else {
        parts_.emplace_back(std::move(group), base, buffers_, bound_);
      }
    }
  }

  // Members that live as long as all of them get the lowest offsets; returns where others begin.
  std::uint64_t stand_below(std::vector<std::size_t>& members, std::uint64_t base) {
    std::int64_t upper = std::numeric_limits<std::int64_t>::min();
    for (const std::size_t i : members) upper = std::max(upper, buffers_[i].upper);
    const std::int64_t lower = buffers_[members.front()].lower;
    std::erase_if(members, [&](std::size_t i) {
      const Buffer& buffer = buffers_[i];
      if (buffer.lower != lower || buffer.upper != upper || !buffer.gaps.empty()) return false;
      offsets_[i] = base;
      base += buffer.bytes;
      return true;
    });
    lowest_ = std::max(lowest_, base);
    return base;
  }

  std::span<const Buffer> buffers_;
  std::uint64_t bound_;
  SearchBudget& budget_;
  std::uint64_t unit_ = 0;
  bool needs_padding_ = false;
  std::uint64_t lowest_ = 0;  // the end of what stands below parts
  std::vector<std::uint64_t> offsets_;
  std::vector<std::pair<std::vector<std::size_t>, std::uint64_t>> waiting_;  // to divide, and base
  std::vector<Part> parts_;
};

}  // namespace

void search_lower(std::span<const Buffer> buffers, std::optional<std::uint64_t> capacity,
                  const PlanEffort& effort, Plan& plan) {
  SearchBudget budget(effort);
  PartedProblem problem(buffers, plan.at_least, budget);
  const auto take = [&] {
    if (problem.height() >= plan.height) return;
    plan.height = problem.height();
    plan.offsets = problem.offsets();
  };
  take();
  const std::uint64_t unit = problem.unit();
  const auto is_answered = [&](std::uint64_t height, Outcome outcome) {
    take();
    if (outcome == Outcome::impossible) {
      plan.at_least = std::max(plan.at_least, (height / unit + 1) * unit);
    }
    return outcome != Outcome::unknown;
  };
  // The heights tried are the same for every capacity, which only ends the search: what fits into
  // less fits into more. The lowest come first: a tight height is often the easier one, because
  // more is given up early. Each round has twice the effort of the one before.
  const auto is_done = [&] {
    return plan.height <= plan.at_least || budget.is_spent() ||
           (capacity && (plan.height <= *capacity || plan.at_least > *capacity));
  };
  for (unsigned halvings = kRounds; !is_done(); halvings = std::max(halvings - 1, 1U)) {
    const std::uint64_t spent = budget.spent(), height = plan.height, at_least = plan.at_least;
    const std::uint64_t of = kHeights.size() << halvings;
    for (std::size_t level = 0; level < kHeights.size() && !is_done(); ++level) {
      const std::uint64_t part = kHeights[level];
      const std::uint64_t room = plan.height - plan.at_least;
      const std::uint64_t next = plan.at_least + room / 64 * part + room % 64 * part / 64;
      const std::uint64_t left = effort.steps - std::min(effort.steps, budget.spent());
      const std::uint64_t tried = std::max(next / unit * unit, plan.at_least);
      const PlanEffort share{
          std::min(effort.steps / of, left),
          std::min(effort.seconds / static_cast<double>(of), budget.seconds_left())};
      is_answered(tried, problem.search(tried, level, share));
    }
    const bool is_same = plan.height == height && plan.at_least == at_least;
    if (is_same && budget.spent() == spent) break;  // too large to search
  }
  plan.steps = budget.spent();
}

}  // namespace npusim::lab
