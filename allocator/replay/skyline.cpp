// SPDX-License-Identifier: BSD-3-Clause
// The lines of the skyline, and the search for the buffer that a line takes.
#include "allocator/replay/skyline.h"

#include <algorithm>
#include <list>
#include <numeric>
#include <set>

namespace npusim::alloc {
namespace {

// Buffers by begin; those that are placed are skipped in chains that grow shorter with use.
class Waiting {
 public:
  Waiting(std::span<const Buffer> buffers, SkylineChoice choice)
      : buffers_(buffers), choice_(choice), order_(buffers.size()), next_(buffers.size() + 1) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::iota(next_.begin(), next_.end(), std::size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](std::size_t a, std::size_t b) { return buffers[a].lower < buffers[b].lower; });
  }

  static constexpr std::size_t kNone = ~std::size_t{0};

  // take() removes and returns the best buffer within [lower, upper), whose neighbours are so much
  // higher; kNone where there is none.
  std::size_t take(std::int64_t lower, std::int64_t upper, std::uint64_t left,
                   std::uint64_t right) {
    const auto touches = [&](const Buffer& buffer) {
      int score = 0;
      if (buffer.lower == lower) score += buffer.bytes == left ? 3 : 1;
      if (buffer.upper == upper) score += buffer.bytes == right ? 3 : 1;
      return score;
    };
    int found_score = -1;
    const auto first =
        std::lower_bound(order_.begin(), order_.end(), lower,
                         [&](std::size_t i, std::int64_t at) { return buffers_[i].lower < at; });
    std::size_t found = kNone;
    for (std::size_t at = skip(static_cast<std::size_t>(first - order_.begin()));
         at < order_.size(); at = skip(at + 1)) {
      const Buffer& buffer = buffers_[order_[at]];
      if (buffer.lower >= upper) break;
      if (buffer.upper > upper) continue;
      const int score = choice_ == SkylineChoice::snug ? touches(buffer) : 0;
      if (score < found_score) continue;
      if (score == found_score && !is_better(buffer, buffers_[order_[found]])) continue;
      found = at;
      found_score = score;
    }
    if (found == kNone) return kNone;
    next_[found] = found + 1;
    return order_[found];
  }

 private:
  bool is_better(const Buffer& a, const Buffer& b) const {
    const double x = life(a), y = life(b);
    switch (choice_) {
      case SkylineChoice::bytes:
        return a.bytes != b.bytes ? a.bytes > b.bytes : x > y;
      case SkylineChoice::area:
        return static_cast<double>(a.bytes) * x > static_cast<double>(b.bytes) * y;
      default:
        return x != y ? x > y : a.bytes > b.bytes;
    }
  }
  static double life(const Buffer& buffer) {
    return static_cast<double>(buffer.upper) - static_cast<double>(buffer.lower);
  }

  // skip() is the first position from `at` on that is still waiting.
  std::size_t skip(std::size_t at) {
    while (next_[at] != at) {
      next_[at] = next_[next_[at]];
      at = next_[at];
    }
    return at;
  }

  std::span<const Buffer> buffers_;
  SkylineChoice choice_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> next_;  // itself while waiting
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
      const std::size_t i = waiting_.take(line->lower, line->upper, left, right);
      if (i == Waiting::kNone) {
        lift(line);
        continue;
      }
      out.offsets[i] = line->height;
      out.height = std::max(out.height, line->height + buffers_[i].bytes);
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
    const Line top{buffer.lower, buffer.upper, whole.height + buffer.bytes};
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

}  // namespace npusim::alloc
