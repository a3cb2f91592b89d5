// SPDX-License-Identifier: BSD-3-Clause
// The lines of the skyline, and the search for the buffer that a line takes.
#include "lab/engine/skyline.h"

#include <algorithm>
#include <limits>
#include <list>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace npusim::lab {
namespace {

// Buffers by begin, those best to place found in a tree: each node knows the best rank and the
// earliest end below it, so that a search leaves out what is worse or does not fit.
class Waiting {
 public:
  Waiting(std::span<const Buffer> buffers, SkylineChoice choice)
      : buffers_(buffers),
        is_snug_(choice == SkylineChoice::snug),
        by_begin_(buffers.size()),
        by_end_(buffers.size()),
        place_(buffers.size()),
        rank_(buffers.size()) {
    for (auto* order : {&by_begin_, &by_end_}) std::iota(order->begin(), order->end(), 0U);
    std::vector<std::uint32_t> by_rank = by_begin_;
    const auto sort = [](std::vector<std::uint32_t>& order, const auto& key) {
      std::sort(order.begin(), order.end(), [&key](std::uint32_t a, std::uint32_t b) {
        return key(a) != key(b) ? key(a) < key(b) : a < b;
      });
    };
    sort(by_begin_, [&](std::uint32_t i) { return buffers[i].lower; });
    sort(by_end_, [&](std::uint32_t i) { return buffers[i].upper; });
    sort(by_rank, [&](std::uint32_t i) { return weight(buffers[i], choice); });
    for (std::uint32_t at = 0; at < by_begin_.size(); ++at) place_[by_begin_[at]] = at;
    for (std::uint32_t at = 0; at < by_rank.size(); ++at) rank_[by_rank[at]] = at;
    while (leaves_ < by_begin_.size()) leaves_ *= 2;
    tree_.resize(2 * leaves_);
    for (std::size_t at = 0; at < by_begin_.size(); ++at) {
      tree_[leaves_ + at] = {rank_[by_begin_[at]], buffers[by_begin_[at]].upper};
    }
    for (std::size_t node = leaves_ - 1; node > 0; --node) update(node);
  }

  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  // take() removes and returns the best buffer within [lower, upper), whose neighbours are so much
  // higher; kNone where there is none.
  std::uint32_t take(std::int64_t lower, std::int64_t upper, std::uint64_t left,
                     std::uint64_t right) {
    const std::size_t first = begin_at(lower), last = begin_at(upper);
    std::uint32_t found = is_snug_ ? find_snug(lower, upper, left, right, first) : kNone;
    if (found == kNone) {
      std::uint32_t rank = kNone;
      search(1, 0, leaves_, first, last, upper, rank, found);
    }
    if (found != kNone) remove(place_[found]);
    return found;
  }

 private:
  struct Node {
    std::uint32_t rank = kNone;  // the lowest; kNone: nothing waits
    std::int64_t end = std::numeric_limits<std::int64_t>::max();
  };

  // The first is placed first.
  static std::pair<double, double> weight(const Buffer& buffer, SkylineChoice choice) {
    const auto life = static_cast<double>(buffer.upper) - static_cast<double>(buffer.lower);
    const auto bytes = static_cast<double>(buffer.bytes);
    if (choice == SkylineChoice::bytes) return {-bytes, -life};
    if (choice == SkylineChoice::area) return {-bytes * life, 0};
    return {-life, -bytes};
  }

  std::size_t begin_at(std::int64_t time) const {
    const auto it =
        std::lower_bound(by_begin_.begin(), by_begin_.end(), time,
                         [&](std::uint32_t i, std::int64_t at) { return buffers_[i].lower < at; });
    return static_cast<std::size_t>(it - by_begin_.begin());
  }

  // The buffer that touches most of what stands left and right of the line, if any does.
  std::uint32_t find_snug(std::int64_t lower, std::int64_t upper, std::uint64_t left,
                          std::uint64_t right, std::size_t first) const {
    std::uint32_t found = kNone;
    int found_score = 0;
    const auto consider = [&](std::uint32_t i) {
      const Buffer& buffer = buffers_[i];
      if (tree_[leaves_ + place_[i]].rank == kNone) return;
      if (buffer.lower < lower || buffer.upper > upper) return;
      int score = 0;
      if (buffer.lower == lower) score += buffer.bytes == left ? 3 : 1;
      if (buffer.upper == upper) score += buffer.bytes == right ? 3 : 1;
      if (score < found_score || (score == found_score && rank_[i] > rank_[found])) return;
      found = i;
      found_score = score;
    };
    for (std::size_t at = first; at < by_begin_.size() && begin_of(at) == lower; ++at) {
      consider(by_begin_[at]);
    }
    auto it =
        std::lower_bound(by_end_.begin(), by_end_.end(), upper,
                         [&](std::uint32_t i, std::int64_t at) { return buffers_[i].upper < at; });
    for (; it != by_end_.end() && buffers_[*it].upper == upper; ++it) consider(*it);
    return found;
  }
  std::int64_t begin_of(std::size_t at) const { return buffers_[by_begin_[at]].lower; }

  void search(std::size_t node, std::size_t begin, std::size_t end, std::size_t first,
              std::size_t last, std::int64_t upper, std::uint32_t& rank,
              std::uint32_t& found) const {
    if (end <= first || begin >= last || tree_[node].rank >= rank || tree_[node].end > upper) {
      return;
    }
    if (end - begin == 1) {
      rank = tree_[node].rank;
      found = by_begin_[begin];
      return;
    }
    const std::size_t middle = begin + (end - begin) / 2;
    if (tree_[2 * node].rank < tree_[2 * node + 1].rank) {  // the better half first
      search(2 * node, begin, middle, first, last, upper, rank, found);
      search(2 * node + 1, middle, end, first, last, upper, rank, found);
    } else {
      search(2 * node + 1, middle, end, first, last, upper, rank, found);
      search(2 * node, begin, middle, first, last, upper, rank, found);
    }
  }

  void remove(std::size_t at) {
    tree_[leaves_ + at] = {};
    for (std::size_t node = (leaves_ + at) / 2; node > 0; node /= 2) update(node);
  }
  void update(std::size_t node) {
    const Node &a = tree_[2 * node], &b = tree_[2 * node + 1];
    tree_[node] = {std::min(a.rank, b.rank), std::min(a.end, b.end)};
  }

  std::span<const Buffer> buffers_;
  const bool is_snug_;
  std::vector<std::uint32_t> by_begin_, by_end_;
  std::vector<std::uint32_t> place_;  // in by_begin_
  std::vector<std::uint32_t> rank_;   // 0 is the best
  std::size_t leaves_ = 1;
  std::vector<Node> tree_;
};

struct Line {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::uint64_t height = 0;
};

class Skyline {
 public:
  Skyline(std::span<const Buffer> buffers, SkylineChoice choice)
      : buffers_(buffers), waiting_(buffers, choice) {}

  Plan run() {
    Plan out{.offsets = std::vector<std::uint64_t>(buffers_.size()), .height = 0};
    if (buffers_.empty()) return out;
    Line whole{buffers_[0].lower, buffers_[0].upper, 0};
    for (const Buffer& buffer : buffers_) {
      whole.lower = std::min(whole.lower, buffer.lower);
      whole.upper = std::max(whole.upper, buffer.upper);
    }
    add(lines_.end(), whole);
    for (std::size_t placed = 0; placed < buffers_.size();) {
      const Iterator line = lowest_.begin()->line;
      const std::uint64_t left =
          line == lines_.begin() ? 0 : std::prev(line)->height - line->height;
      const std::uint64_t right =
          std::next(line) == lines_.end() ? 0 : std::next(line)->height - line->height;
      const std::uint32_t i = waiting_.take(line->lower, line->upper, left, right);
      if (i == Waiting::kNone) {
        lift(line);
        continue;
      }
      out.offsets[i] = line->height;
      out.height = std::max(out.height, saturated(line->height, buffers_[i].bytes));
      stand(line, buffers_[i]);
      ++placed;
    }
    return out;
  }

 private:
  using Iterator = std::list<Line>::iterator;
  struct Entry {
    std::uint64_t height;
    std::int64_t lower;
    Iterator line;
    bool operator<(const Entry& other) const {
      return height != other.height ? height < other.height : lower < other.lower;
    }
  };

  Iterator add(Iterator before, const Line& line) {
    const Iterator it = lines_.insert(before, line);
    lowest_.insert({line.height, line.lower, it});
    return it;
  }
  void remove(Iterator line) {
    lowest_.erase({line->height, line->lower, line});
    lines_.erase(line);
  }

  // The line rises to the lower of its neighbours and joins those of that height.
  void lift(Iterator line) {
    const bool has_before = line != lines_.begin();
    const bool has_after = std::next(line) != lines_.end();
    Line raised = *line;
    raised.height = has_before && has_after
                        ? std::min(std::prev(line)->height, std::next(line)->height)
                    : has_before ? std::prev(line)->height
                                 : std::next(line)->height;
    join(line, raised);
  }

  void join(Iterator line, Line raised) {
    if (line != lines_.begin() && std::prev(line)->height == raised.height) {
      raised.lower = std::prev(line)->lower;
      remove(std::prev(line));
    }
    if (std::next(line) != lines_.end() && std::next(line)->height == raised.height) {
      raised.upper = std::next(line)->upper;
      remove(std::next(line));
    }
    const Iterator after = std::next(line);
    remove(line);
    add(after, raised);
  }

  // The buffer stands on the line; what of the line is left and right of it stays.
  void stand(Iterator line, const Buffer& buffer) {
    const Line whole = *line;
    const Line top{buffer.lower, buffer.upper, saturated(whole.height, buffer.bytes)};
    Iterator after = std::next(line);
    remove(line);
    if (top.upper < whole.upper) after = add(after, {top.upper, whole.upper, whole.height});
    const Iterator middle = add(after, top);
    if (whole.lower < top.lower) add(middle, {whole.lower, top.lower, whole.height});
    join(middle, top);
  }

  std::span<const Buffer> buffers_;
  Waiting waiting_;
  std::list<Line> lines_;  // in order of time, neighbours of different heights
  std::set<Entry> lowest_;
};

}  // namespace

Plan skyline_plan(std::span<const Buffer> buffers, SkylineChoice choice) {
  return Skyline(buffers, choice).run();
}

}  // namespace npusim::lab
