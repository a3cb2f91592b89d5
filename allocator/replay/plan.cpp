// SPDX-License-Identifier: BSD-3-Clause
// Greedy placement in a given order, the bound, and the judge of plans. The skyline is in a file of
// its own.
#include "allocator/replay/plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>

#include "allocator/error.h"
#include "allocator/replay/plan_reduction.h"
#include "allocator/replay/skyline.h"

namespace npusim::alloc {
namespace {

constexpr std::size_t kMostGreedy = 20000;     // buffers: beyond, each greedy pass takes seconds
constexpr std::size_t kMostSkylines = 200000;  // beyond, each skyline takes seconds, too
constexpr int kMostRounds = 20;

// Finds the buffers whose lives overlap a given one: those that begin during it, and those older
// ones, found in a tree of maxima, that end after its begin.
class Overlaps {
 public:
  explicit Overlaps(std::span<const Buffer> buffers)
      : buffers_(buffers), order_(buffers.size()), begins_(buffers.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](std::size_t a, std::size_t b) { return buffers[a].lower < buffers[b].lower; });
    for (std::size_t i = 0; i < order_.size(); ++i) begins_[i] = buffers[order_[i]].lower;
    while (leaves_ < order_.size()) leaves_ *= 2;
    ends_.assign(2 * leaves_, std::numeric_limits<std::int64_t>::min());
    for (std::size_t i = 0; i < order_.size(); ++i) ends_[leaves_ + i] = buffers[order_[i]].upper;
    for (std::size_t i = leaves_ - 1; i > 0; --i)
      ends_[i] = std::max(ends_[2 * i], ends_[2 * i + 1]);
  }

  template <class Visit>
  void visit(const Buffer& buffer, const Visit& visit) const {
    const auto first = rank(buffer.lower);
    const auto last = rank(buffer.upper);
    for (std::size_t i = first; i < last; ++i) visit(order_[i]);
    visit_older(1, 0, leaves_, first, buffer.lower, visit);
  }

 private:
  std::size_t rank(std::int64_t time) const {
    return static_cast<std::size_t>(std::lower_bound(begins_.begin(), begins_.end(), time) -
                                    begins_.begin());
  }

  template <class Visit>
  void visit_older(std::size_t node, std::size_t begin, std::size_t end, std::size_t before,
                   std::int64_t time, const Visit& visit) const {
    if (begin >= before || ends_[node] <= time) return;
    if (end - begin == 1) {
      visit(order_[begin]);
      return;
    }
    const std::size_t middle = begin + (end - begin) / 2;
    visit_older(2 * node, begin, middle, before, time, visit);
    visit_older(2 * node + 1, middle, end, before, time, visit);
  }

  std::span<const Buffer> buffers_;
  std::vector<std::size_t> order_;  // by begin
  std::vector<std::int64_t> begins_;
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> ends_;  // tree: the latest end below each node
};

std::vector<std::size_t> order_by(std::span<const Buffer> buffers, PlanMethod method) {
  const auto weight = [method](const Buffer& buffer) {
    const auto life = static_cast<double>(buffer.upper) - static_cast<double>(buffer.lower);
    const auto bytes = static_cast<double>(buffer.bytes);
    return method == PlanMethod::size       ? bytes
           : method == PlanMethod::lifetime ? life
                                            : bytes * life;
  };
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const double x = weight(buffers[a]), y = weight(buffers[b]);
    if (x != y) return x > y;
    return buffers[a].bytes != buffers[b].bytes ? buffers[a].bytes > buffers[b].bytes : a < b;
  });
  return order;
}

Plan greedy(std::span<const Buffer> buffers, const std::vector<std::size_t>& order) {
  const Overlaps overlaps(buffers);
  Plan out{.offsets = std::vector<std::uint64_t>(buffers.size()), .height = 0};
  std::vector<bool> is_placed(buffers.size());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // offset, end
  for (const std::size_t i : order) {
    taken.clear();
    overlaps.visit(buffers[i], [&](std::size_t other) {
      if (!is_placed[other]) return;
      taken.emplace_back(out.offsets[other], out.offsets[other] + buffers[other].bytes);
    });
    std::sort(taken.begin(), taken.end());
    std::uint64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= offset + buffers[i].bytes) break;
      offset = std::max(offset, end);
    }
    out.offsets[i] = offset;
    is_placed[i] = true;
    out.height = std::max(out.height, offset + buffers[i].bytes);
  }
  return out;
}

// Visits buffers as they are born and die, deaths first where both fall on one moment.
template <class Born, class Dead>
void sweep(std::span<const Buffer> buffers, const Born& born, const Dead& dead) {
  std::vector<std::size_t> births(buffers.size()), deaths(buffers.size());
  std::iota(births.begin(), births.end(), std::size_t{0});
  deaths = births;
  std::sort(births.begin(), births.end(),
            [&](std::size_t a, std::size_t b) { return buffers[a].lower < buffers[b].lower; });
  std::sort(deaths.begin(), deaths.end(),
            [&](std::size_t a, std::size_t b) { return buffers[a].upper < buffers[b].upper; });
  auto next_death = deaths.begin();
  for (const std::size_t i : births) {
    for (; buffers[*next_death].upper <= buffers[i].lower; ++next_death) dead(*next_death);
    born(i);
  }
}

// The plan upside down, settled: in the order of where they end, from the top, each to the lowest
// place. Twice, and nothing lies higher than before, and some much lower.
Plan settled(std::span<const Buffer> buffers, const Plan& plan) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto end = [&](std::size_t i) { return plan.offsets[i] + buffers[i].bytes; };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return end(a) != end(b) ? end(a) > end(b) : a < b;
  });
  return greedy(buffers, order);
}

Plan best_of_all(std::span<const Buffer> buffers, std::uint64_t bound) {
  Plan found = skyline_plan(buffers, SkylineChoice::lifetime);
  const auto consider = [&](Plan&& candidate) {
    if (candidate.height >= found.height) return false;
    found = std::move(candidate);
    return true;
  };
  if (found.height > bound) consider(skyline_plan(buffers, SkylineChoice::snug));
  if (buffers.size() > kMostSkylines) return found;
  for (const auto choice : {SkylineChoice::area, SkylineChoice::bytes}) {
    if (found.height > bound) consider(skyline_plan(buffers, choice));
  }
  if (buffers.size() > kMostGreedy) return found;
  for (const PlanMethod method : {PlanMethod::size, PlanMethod::lifetime, PlanMethod::area}) {
    if (found.height > bound) consider(greedy(buffers, order_by(buffers, method)));
  }
  for (int round = 0; round < kMostRounds && found.height > bound; ++round) {
    if (!consider(settled(buffers, settled(buffers, found)))) break;
  }
  return found;
}

Plan best_plan(std::span<const Buffer> buffers) {
  const std::uint64_t bound = max_live_bytes(buffers);
  const std::vector<Buffer> compact = compact_lives(buffers);
  const GluedBuffers glued(compact);
  Plan found = glued.apart(best_of_all(glued.whole(), bound));
  const bool is_same = glued.whole().size() == buffers.size();
  if (found.height <= bound || is_same || buffers.size() > kMostSkylines) return found;
  for (Plan other : {best_of_all(compact, bound), skyline_plan(buffers, SkylineChoice::lifetime)}) {
    if (other.height < found.height) found = std::move(other);
  }
  return found;
}

}  // namespace

Plan plan(std::span<const Buffer> buffers, PlanMethod method, std::uint64_t alignment) {
  if (alignment == 0) throw InvalidArgument("plan: alignment is 0; expected 1 or more");
  std::vector<Buffer> aligned(buffers.begin(), buffers.end());
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    if (aligned[i].bytes == 0 || aligned[i].upper <= aligned[i].lower) {
      throw InvalidArgument("plan: buffer " + std::to_string(i) +
                            " has no bytes or no lifetime; expected upper > lower and bytes > 0");
    }
    aligned[i].bytes = (aligned[i].bytes + alignment - 1) / alignment * alignment;
  }
  if (method == PlanMethod::skyline) return skyline_plan(aligned, SkylineChoice::lifetime);
  if (method != PlanMethod::best) return greedy(aligned, order_by(aligned, method));
  return best_plan(aligned);
}

std::uint64_t max_live_bytes(std::span<const Buffer> buffers) {
  std::uint64_t live = 0, most = 0;
  sweep(
      buffers,
      [&](std::size_t i) {
        live += buffers[i].bytes;
        most = std::max(most, live);
      },
      [&](std::size_t i) { live -= buffers[i].bytes; });
  return most;
}

std::string plan_conflict(std::span<const Buffer> buffers, const Plan& plan) {
  if (plan.offsets.size() != buffers.size()) return "a plan for another number of buffers";
  std::map<std::uint64_t, std::size_t> live;  // by offset
  std::string found;
  sweep(
      buffers,
      [&](std::size_t i) {
        const std::uint64_t begin = plan.offsets[i], end = begin + buffers[i].bytes;
        const auto next = live.lower_bound(begin);
        std::size_t other = i;
        if (next != live.end() && next->first < end) other = next->second;
        if (next != live.begin()) {
          const std::size_t before = std::prev(next)->second;
          if (plan.offsets[before] + buffers[before].bytes > begin) other = before;
        }
        if (other != i && found.empty()) {
          found = "buffers " + std::to_string(other) + " and " + std::to_string(i) + " overlap";
        }
        if (end > plan.height) found = "buffer " + std::to_string(i) + " ends above the height";
        live.emplace(begin, i);
      },
      [&](std::size_t i) {
        const auto it = live.find(plan.offsets[i]);
        if (it != live.end() && it->second == i) live.erase(it);
      });
  return found;
}

}  // namespace npusim::alloc
