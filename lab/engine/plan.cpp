// SPDX-License-Identifier: BSD-3-Clause
// Greedy placement in a given order, the bound, and the judge of plans. The skyline and the search
// are in files of their own.
#include "lab/engine/plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "allocator/error.h"
#include "lab/engine/names.h"
#include "lab/engine/plan_reduction.h"
#include "lab/engine/plan_search.h"
#include "lab/engine/skyline.h"

namespace npusim::lab {
namespace {

constexpr std::size_t kMostGreedy = 20000;     // buffers: beyond, each greedy pass takes seconds
constexpr std::size_t kMostSkylines = 200000;  // beyond, each skyline takes seconds, too
constexpr int kMostRounds = 20;
constexpr std::uint64_t kMostAlignment = std::uint64_t{1} << 31;
constexpr std::uint64_t kTooHigh = std::uint64_t{1} << 63;

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
    if (method == PlanMethod::birth) return -static_cast<double>(buffer.lower);
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
    if (method == PlanMethod::birth) return a < b;
    return buffers[a].bytes != buffers[b].bytes ? buffers[a].bytes > buffers[b].bytes : a < b;
  });
  return order;
}

std::uint64_t aligned(std::uint64_t offset, std::uint64_t alignment) {
  return saturated(offset, alignment - 1) / alignment * alignment;
}

// Whether two buffers whose lives overlap have their bytes at one moment, gaps left out.
bool meet(const Buffer& a, const Buffer& b) {
  if (a.gaps.empty() && b.gaps.empty()) return true;
  bool found = false;
  for_each_life(a, [&](std::int64_t lower, std::int64_t upper) {
    for_each_life(b, [&](std::int64_t begin, std::int64_t end) {
      found = found || (lower < end && begin < upper);
    });
  });
  return found;
}

Plan greedy(std::span<const Buffer> buffers, const std::vector<std::size_t>& order) {
  const Overlaps overlaps(buffers);
  Plan out{.offsets = std::vector<std::uint64_t>(buffers.size()), .height = 0};
  std::vector<bool> is_placed(buffers.size());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // offset, end
  for (const std::size_t i : order) {
    taken.clear();
    overlaps.visit(buffers[i], [&](std::size_t other) {
      if (!is_placed[other] || !meet(buffers[i], buffers[other])) return;
      taken.emplace_back(out.offsets[other], saturated(out.offsets[other], buffers[other].bytes));
    });
    std::sort(taken.begin(), taken.end());
    std::uint64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= saturated(offset, buffers[i].bytes)) break;
      offset = std::max(offset, aligned(end, buffers[i].alignment));
    }
    out.offsets[i] = offset;
    is_placed[i] = true;
    out.height = std::max(out.height, saturated(offset, buffers[i].bytes));
  }
  return out;
}

// Visits buffers as they are born and die, deaths first where both fall on one moment; a gap begins
// with a death and ends with a birth.
template <class Born, class Dead>
void sweep(std::span<const Buffer> buffers, const Born& born, const Dead& dead) {
  using Edge = std::pair<std::int64_t, std::size_t>;
  std::vector<Edge> births, deaths;
  births.reserve(buffers.size());
  deaths.reserve(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    for_each_life(buffers[i], [&](std::int64_t lower, std::int64_t upper) {
      births.emplace_back(lower, i);
      deaths.emplace_back(upper, i);
    });
  }
  std::sort(births.begin(), births.end());
  std::sort(deaths.begin(), deaths.end());
  auto next_death = deaths.begin();
  for (const auto& [time, i] : births) {
    for (; next_death->first <= time; ++next_death) dead(next_death->second);
    born(i);
  }
}

// As an allocator with one arena places them, which does not know how long they live: into the
// smallest free range that is large enough, the lowest of these. (First fit is greedy by birth.)
Plan online_best_fit(std::span<const Buffer> buffers) {
  Plan out{.offsets = std::vector<std::uint64_t>(buffers.size())};
  std::map<std::uint64_t, std::uint64_t> free;               // begin -> end
  std::set<std::pair<std::uint64_t, std::uint64_t>> bysize;  // bytes, begin
  std::uint64_t end = 0;                                     // all above is free
  const auto take = [&](std::map<std::uint64_t, std::uint64_t>::iterator range) {
    bysize.erase({range->second - range->first, range->first});
    return free.erase(range);
  };
  const auto give = [&](std::uint64_t begin, std::uint64_t upto) {
    auto next = free.lower_bound(begin);
    if (next != free.end() && next->first == upto) {
      upto = next->second;
      next = take(next);
    }
    if (next != free.begin() && std::prev(next)->second == begin) {
      begin = std::prev(next)->first;
      take(std::prev(next));
    }
    if (upto == end) {
      end = begin;
      return;
    }
    free.emplace(begin, upto);
    bysize.emplace(upto - begin, begin);
  };
  sweep(
      buffers,
      [&](std::size_t i) {
        const auto found = bysize.lower_bound({buffers[i].bytes, 0});
        if (found == bysize.end()) {
          out.offsets[i] = end;
          end = saturated(end, buffers[i].bytes);
          out.height = std::max(out.height, end);
          return;
        }
        const auto [bytes, begin] = *found;
        out.offsets[i] = begin;
        take(free.find(begin));
        if (bytes == buffers[i].bytes) return;
        free.emplace(begin + buffers[i].bytes, begin + bytes);
        bysize.emplace(bytes - buffers[i].bytes, begin + buffers[i].bytes);
      },
      [&](std::size_t i) { give(out.offsets[i], saturated(out.offsets[i], buffers[i].bytes)); });
  return out;
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

// Whether the skyline may place them: it knows neither gaps nor padding.
bool is_plain(std::span<const Buffer> buffers) {
  return std::all_of(buffers.begin(), buffers.end(), [](const Buffer& buffer) {
    return buffer.gaps.empty() && buffer.alignment == 1;
  });
}

Plan best_of_all(std::span<const Buffer> buffers, std::uint64_t bound) {
  Plan found{.height = ~std::uint64_t{0}};
  const auto consider = [&](Plan&& candidate) {
    const bool is_better = found.offsets.empty() || candidate.height < found.height;
    if (is_better) found = std::move(candidate);
    return is_better;
  };
  if (is_plain(buffers)) {
    consider(skyline_plan(buffers, SkylineChoice::lifetime));
    if (found.height > bound) consider(skyline_plan(buffers, SkylineChoice::snug));
    if (buffers.size() > kMostSkylines) return found;
    for (const auto choice : {SkylineChoice::area, SkylineChoice::bytes}) {
      if (found.height > bound) consider(skyline_plan(buffers, choice));
    }
    if (buffers.size() > kMostGreedy) return found;
  }
  for (const PlanMethod method :
       {PlanMethod::size, PlanMethod::lifetime, PlanMethod::area, PlanMethod::birth}) {
    if (found.height > bound) consider(greedy(buffers, order_by(buffers, method)));
    if (buffers.size() > kMostGreedy) return found;
  }
  for (int round = 0; round < kMostRounds && found.height > bound; ++round) {
    if (!consider(settled(buffers, settled(buffers, found)))) break;
  }
  return found;
}

// The lower of best fit and first fit, as an allocator does them: no plan is higher.
Plan online_plan(std::span<const Buffer> buffers) {
  Plan found{.height = ~std::uint64_t{0}};
  if (is_plain(buffers)) found = online_best_fit(buffers);
  if (found.offsets.empty() || buffers.size() <= kMostGreedy) {
    Plan first = greedy(buffers, order_by(buffers, PlanMethod::birth));
    if (found.offsets.empty() || first.height < found.height) found = std::move(first);
  }
  return found;
}

// Sizes rounded up to the alignment that was asked for; alignments only where they matter.
std::vector<Buffer> checked(std::span<const Buffer> buffers, std::uint64_t alignment) {
  if (alignment == 0) throw InvalidArgument("plan: alignment is 0; expected 1 or more");
  std::vector<Buffer> out(buffers.begin(), buffers.end());
  std::uint64_t unit = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    Buffer& buffer = out[i];
    const std::string name = "plan: buffer " + std::to_string(i);
    if (buffer.bytes == 0 || buffer.upper <= buffer.lower) {
      throw InvalidArgument(name +
                            " has no bytes or no lifetime; expected upper > lower and bytes > 0");
    }
    if (buffer.alignment == 0) {
      throw InvalidArgument(name + " has an alignment of 0; expected 1 or more");
    }
    std::int64_t last = buffer.lower;
    bool is_alive = false;
    for (const Life& gap : buffer.gaps) {
      if (gap.lower < last || gap.upper <= gap.lower || gap.upper > buffer.upper) {
        throw InvalidArgument(name + " has gaps that are not in order within its life");
      }
      is_alive = is_alive || gap.lower > last;
      last = gap.upper;
    }
    if (!is_alive && last == buffer.upper) {
      throw InvalidArgument(name + " has gaps all its life; expected some of it left");
    }
    if (std::max(alignment, buffer.alignment) > kMostAlignment) {
      throw InvalidArgument(name + " has an alignment above 2^31");
    }
    const std::uint64_t common = std::lcm(alignment, buffer.alignment);
    const std::uint64_t bytes = saturated(buffer.bytes, alignment - 1) / alignment * alignment;
    if (bytes >= kTooHigh) throw InvalidArgument(name + " has 2^63 bytes or more");
    buffer.alignment = common;
    buffer.bytes = bytes;
    unit = std::gcd(unit, bytes);
  }
  // Offsets that are sums of sizes are aligned to what divides all sizes.
  for (Buffer& buffer : out) {
    if (unit % buffer.alignment == 0) buffer.alignment = 1;
  }
  return out;
}

}  // namespace

Plan heuristic_plan(std::span<const Buffer> buffers, std::uint64_t bound) {
  const GluedBuffers glued(buffers);
  Plan found = glued.apart(best_of_all(glued.whole(), bound));
  const bool is_same = glued.whole().size() == buffers.size();
  if (found.height <= bound || is_same || buffers.size() > kMostSkylines) return found;
  Plan other = best_of_all(buffers, bound);
  return other.height < found.height ? other : found;
}

Plan plan(std::span<const Buffer> buffers, const PlanRequest& request) {
  const std::vector<Buffer> given = checked(buffers, request.alignment);
  Plan out;
  if (given.empty()) return out;
  const std::uint64_t bound = max_live_bytes(given);
  switch (request.method) {
    case PlanMethod::skyline:
      if (!is_plain(given)) {
        throw InvalidArgument(
            "plan: the skyline places neither buffers with gaps nor alignments that do not divide "
            "all sizes; expected another method");
      }
      out = skyline_plan(given, SkylineChoice::lifetime);
      break;
    case PlanMethod::best:
      out = online_plan(given);
      out.at_least = bound;
      search_lower(given, request.capacity, request.effort, out);
      break;
    default:
      out = greedy(given, order_by(given, request.method));
  }
  if (out.height >= kTooHigh) throw InvalidArgument("plan: found no placement below 2^63 bytes");
  out.at_least = std::max(out.at_least, bound);
  return out;
}

std::uint64_t max_live_bytes(std::span<const Buffer> buffers) {
  std::uint64_t live = 0, most = 0;
  sweep(
      buffers,
      [&](std::size_t i) {
        live = saturated(live, buffers[i].bytes);
        if (live >= kTooHigh) {
          throw InvalidArgument("plan: buffers live at one time have 2^63 bytes or more together");
        }
        most = std::max(most, live);
      },
      [&](std::size_t i) { live -= buffers[i].bytes; });
  return most;
}

}  // namespace npusim::lab
