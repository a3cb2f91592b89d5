// SPDX-License-Identifier: BSD-3-Clause
// PQ-trees and their reduction, the walls of a moment, and the placement read from the trees.
#include "lab/engine/order_search.h"

#include <algorithm>
#include <cmath>

namespace npusim::lab {
namespace {

using Index = std::uint32_t;

constexpr std::size_t kWidth = 256;            // trees kept
constexpr std::size_t kMostTogether = 12;      // buffers that end at one moment, told apart
constexpr std::uint64_t kMostLooks = 1 << 24;  // at nodes
constexpr std::uint64_t kLooksPerStep = 4;
constexpr double kWall = 3;  // worth of a wall, in logarithms of orders: equal sums are rare
constexpr Index kAnyOrder = Index{1} << 30, kThisOrder = Index{1} << 31;  // of a stored tree
constexpr Index kNoBuffer = ~Index{0};

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

struct OrderSearch::Expansion {
  const State& state;
  std::vector<State>& next;
  std::unordered_set<std::uint64_t>& known;
  std::vector<Wall> walls;
};

OrderSearch::OrderSearch(std::span<const Buffer> buffers)
    : buffers_(buffers.begin(), buffers.end()), is_looked_for_(buffers.size()) {
  std::int64_t moments = 0;
  for (const Buffer& buffer : buffers_) moments = std::max(moments, buffer.upper);
  begins_.resize(static_cast<std::size_t>(moments) + 1);
  ends_.resize(static_cast<std::size_t>(moments) + 1);
  for (Index i = 0; i < buffers_.size(); ++i) {
    const auto upper = static_cast<std::uint64_t>(buffers_[i].upper);
    begins_[static_cast<std::size_t>(buffers_[i].lower)].push_back(i);
    ends_[upper].push_back(i);
    keys_.push_back(mixed(upper ^ mixed(buffers_[i].bytes)));
  }
  for (Indices& begins : begins_) {  // twins beside each other
    std::sort(begins.begin(), begins.end(),
              [&](Index a, Index b) { return keys_[a] != keys_[b] ? keys_[a] < keys_[b] : a < b; });
  }
}

OrderSearch::Outcome OrderSearch::run(SearchBudget& budget) {
  if (buffers_.empty()) return Outcome::unknown;
  looked_at_ = 0;
  std::uint64_t counted = 0;
  std::vector<State> states(1), next;
  used_ = 0;
  Indices all;
  for (const Index i : begins_[0]) all.push_back(add(Kind::leaf, i));
  store(join(all, Kind::any_order), states[0].tree);
  std::unordered_set<std::uint64_t> known;
  const auto keep_best = [&] {
    if (next.size() <= kWidth) return;
    std::nth_element(next.begin(), next.begin() + kWidth, next.end(),
                     [](const State& a, const State& b) { return a.rank > b.rank; });
    next.erase(next.begin() + kWidth, next.end());
  };
  for (std::size_t moment = 1; moment + 1 < ends_.size(); ++moment) {
    next.clear();
    known.clear();
    for (const State& state : states) {
      Indices ends;
      for (const Index node : state.tree) {
        if (node < kAnyOrder && static_cast<std::size_t>(buffers_[node].upper) == moment) {
          ends.push_back(node);
        }
      }
      if (ends.size() > kMostTogether) return Outcome::unknown;
      Expansion expansion{state, next, known, {}};
      expand(expansion, state.tree, ends, begins_[moment]);
      budget.spend((looked_at_ - counted) / kLooksPerStep);
      counted = looked_at_;
      if (looked_at_ > kMostLooks || budget.is_spent()) return Outcome::unknown;
      if (next.size() > 4 * kWidth) keep_best();
    }
    keep_best();
    std::swap(states, next);
    if (states.empty()) return Outcome::unknown;
  }
  return write(states[0]) ? Outcome::found : Outcome::unknown;
}

// Tells the walls of a moment apart, in every way: that of the first buffer that ends, then others.
void OrderSearch::expand(Expansion& at, const Indices& tree, const Indices& ends,
                         const Indices& begins) {
  if (looked_at_ > kMostLooks) return;
  if (ends.empty()) {
    used_ = 0;
    std::size_t first = 0;
    const Index root = read(tree, first);
    finish(root);
    if (!begins.empty() || !at.known.insert(nodes_[root].key).second) return;
    const std::size_t walls = at.state.walls + at.walls.size();
    const double rank = nodes_[root].orders + kWall * static_cast<double>(walls);
    auto step = std::make_shared<const Step>(Step{at.state.step, at.walls});
    at.next.push_back({tree, rank, walls, std::move(step)});
    return;
  }
  for (std::size_t with = 0; with < std::size_t{1} << (ends.size() - 1); ++with) {
    Wall wall{{ends[0]}, {}};
    Indices others, after;
    std::uint64_t bytes = buffers_[ends[0]].bytes;
    for (std::size_t i = 1; i < ends.size(); ++i) {
      const bool is_with = (with >> (i - 1) & 1) != 0;
      (is_with ? wall.ends : others).push_back(ends[i]);
      if (is_with) bytes += buffers_[ends[i]].bytes;
    }
    if (!replace(tree, {wall.ends, {ends[0]}}, after)) continue;  // not side by side
    std::vector<Indices> found;
    Indices picked;
    pick(begins, 0, bytes, picked, found);
    for (const Indices& those : found) {
      wall.begins = those;
      replace(tree, wall, after);
      Indices rest;
      for (const Index i : begins) {
        if (std::find(those.begin(), those.end(), i) == those.end()) rest.push_back(i);
      }
      at.walls.push_back(wall);
      expand(at, after, others, rest);
      at.walls.pop_back();
    }
  }
}

// All choices of buffers that have so many bytes together; of twins the first.
void OrderSearch::pick(const Indices& from, std::size_t next, std::uint64_t bytes, Indices& picked,
                       std::vector<Indices>& found) {
  ++looked_at_;
  if (bytes == 0) {
    found.push_back(picked);
    return;
  }
  if (next == from.size() || looked_at_ > kMostLooks) return;
  const Index first = from[next];
  if (buffers_[first].bytes <= bytes) {
    picked.push_back(first);
    pick(from, next + 1, bytes - buffers_[first].bytes, picked, found);
    picked.pop_back();
  }
  do ++next;
  while (next < from.size() && is_twin(first, from[next]));
  pick(from, next, bytes, picked, found);
}

// The tree after a wall; false where what ends at it cannot lie side by side.
bool OrderSearch::replace(const Indices& tree, const Wall& wall, Indices& after) {
  looked_at_ += tree.size();
  used_ = 0;
  std::size_t first = 0;
  Index root = read(tree, first);
  for (const Index i : wall.ends) is_looked_for_[i] = true;
  count(root);
  for (const Index i : wall.ends) is_looked_for_[i] = false;
  Indices begins;
  for (const Index i : wall.begins) begins.push_back(add(Kind::leaf, i));
  const Index place = join(begins, Kind::any_order);
  if (!reduce(root, wall.ends.size(), place)) return false;
  after.clear();
  store(root, after);
  return true;
}

// The placement of the last tree's first order, moment by moment back to the first.
bool OrderSearch::write(const State& state) {
  std::vector<const Step*> steps;
  for (const Step* step = state.step.get(); step; step = step->before.get()) steps.push_back(step);
  std::reverse(steps.begin(), steps.end());
  used_ = 0;
  Indices all;
  for (const Index i : begins_[0]) all.push_back(add(Kind::leaf, i));
  std::vector<Indices> trees(1);
  store(join(all, Kind::any_order), trees[0]);
  for (const Step* step : steps) {
    Indices tree = trees.back(), after;
    for (const Wall& wall : step->walls) {
      if (!replace(tree, wall, after)) return false;
      std::swap(tree, after);
    }
    trees.push_back(std::move(tree));
  }
  offset_.assign(buffers_.size(), ~std::uint64_t{0});
  Indices position(buffers_.size(), 0);
  for (std::size_t moment = trees.size(); moment-- > 0;) {
    used_ = 0;
    std::size_t first = 0;
    const Index root = read(trees[moment], first);
    if (moment + 1 < trees.size()) {  // what ends at a wall lies where others begin
      for (const Wall& wall : steps[moment]->walls) {
        Index lowest = kNoBuffer;
        for (const Index i : wall.begins) lowest = std::min(lowest, position[i]);
        for (const Index i : wall.ends) position[i] = lowest;
      }
      sort(root, position);
    }
    Indices order;
    store(root, order);
    std::erase_if(order, [](Index node) { return node >= kAnyOrder; });
    std::uint64_t end = 0;
    Index last = 0;
    for (Index at = 0; at < order.size(); ++at) {
      const Index i = order[at];
      const bool is_new = offset_[i] == ~std::uint64_t{0};
      if (!is_new && offset_[i] != end) return false;
      if (moment + 1 < trees.size() && position[i] < last) return false;
      last = position[i];
      offset_[i] = end;
      end += buffers_[i].bytes;
    }
    for (Index at = 0; at < order.size(); ++at) position[order[at]] = at;
  }
  return true;
}

OrderSearch::Index OrderSearch::add(Kind kind, Index buffer) {
  if (used_ == nodes_.size()) nodes_.emplace_back();
  Node& node = nodes_[used_];
  node.kind = kind;
  node.buffer = buffer;
  node.children.clear();
  return static_cast<Index>(used_++);
}

OrderSearch::Index OrderSearch::join(const Indices& children, Kind kind) {
  if (children.size() == 1) return children[0];
  const Index node = add(children.size() == 2 ? Kind::any_order : kind);
  nodes_[node].children = children;
  return node;
}

OrderSearch::Index OrderSearch::read(const Indices& tree, std::size_t& next) {
  const Index stored = tree[next++];
  if (stored < kAnyOrder) return add(Kind::leaf, stored);
  const Index node = add((stored & kThisOrder) != 0 ? Kind::this_order : Kind::any_order);
  for (Index left = stored & (kAnyOrder - 1); left > 0; --left) {
    const Index child = read(tree, next);
    nodes_[node].children.push_back(child);
  }
  return node;
}

void OrderSearch::store(Index node, Indices& tree) const {
  const Node& at = nodes_[node];
  if (at.kind == Kind::leaf) {
    tree.push_back(at.buffer);
    return;
  }
  const Index kind = at.kind == Kind::any_order ? kAnyOrder : kThisOrder;
  tree.push_back(kind | static_cast<Index>(at.children.size()));
  for (const Index child : at.children) store(child, tree);
}

void OrderSearch::count(Index node) {
  Node& at = nodes_[node];
  at.full = at.kind == Kind::leaf && is_looked_for_[at.buffer] ? 1 : 0;
  at.leaves = at.kind == Kind::leaf ? 1 : 0;
  for (const Index child : at.children) {
    count(child);
    at.full += nodes_[child].full;
    at.leaves += nodes_[child].leaves;
  }
}

// Keys and orders.
void OrderSearch::finish(Index node) {
  Node& at = nodes_[node];
  at.orders = 0;
  at.key = at.kind == Kind::leaf ? keys_[at.buffer] : at.children.size();
  std::uint64_t forth = 0, back = 0;
  for (const Index child : at.children) {
    finish(child);
    at.orders += nodes_[child].orders;
    forth = mixed(forth * 31 + nodes_[child].key);
    if (at.kind == Kind::any_order) at.key += mixed(nodes_[child].key + 1);
  }
  if (at.kind == Kind::any_order) {
    at.key = mixed(at.key);
    at.orders += std::lgamma(static_cast<double>(at.children.size()) + 1);
  }
  if (at.kind != Kind::this_order) return;
  for (std::size_t i = at.children.size(); i-- > 0;) {
    back = mixed(back * 31 + nodes_[at.children[i]].key);
  }
  at.key = mixed(std::min(forth, back) ^ mixed(std::max(forth, back)));
  at.orders += std::log(2.0);
}

bool OrderSearch::line_up(Index node, Indices& line) {
  Indices children = nodes_[node].children;
  if (nodes_[node].kind == Kind::any_order) {
    Indices empty, partial;
    for (const Index child : children) {
      if (is_empty(child)) empty.push_back(child);
      if (!is_empty(child) && !is_full(child)) partial.push_back(child);
    }
    if (partial.size() > 1) return false;
    if (!empty.empty()) line.push_back(join(empty, Kind::any_order));
    return partial.empty() || line_up(partial[0], line);
  }
  const bool is_right = is_full(children.back()) || is_empty(children.front());
  if (!is_right || is_full(children.front()) || is_empty(children.back())) {
    std::reverse(children.begin(), children.end());
  }
  bool is_past = false;
  for (const Index child : children) {
    if (is_full(child)) {
      is_past = true;
      continue;
    }
    if (is_past) return false;
    if (is_empty(child)) {
      line.push_back(child);
      continue;
    }
    is_past = true;
    if (!line_up(child, line)) return false;
  }
  return true;
}

// What is looked for, all below the node, is brought side by side and replaced.
bool OrderSearch::reduce(Index& node, std::size_t full, Index place) {
  if (is_full(node)) {
    node = place;
    return true;
  }
  const Indices children = nodes_[node].children;
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (nodes_[children[i]].full != full) continue;
    Index child = children[i];
    if (!reduce(child, full, place)) return false;
    nodes_[node].children[i] = child;
    return true;
  }
  const auto line_down = [&](Index child, Indices& line) {  // mirrored
    Indices other;
    if (!line_up(child, other)) return false;
    line.insert(line.end(), other.rbegin(), other.rend());
    return true;
  };
  Indices line;
  if (nodes_[node].kind == Kind::any_order) {
    Indices empty, partial;
    for (const Index child : children) {
      if (is_empty(child)) empty.push_back(child);
      if (!is_empty(child) && !is_full(child)) partial.push_back(child);
    }
    if (partial.size() > 2) return false;
    if (!partial.empty() && !line_up(partial[0], line)) return false;
    line.push_back(place);
    if (partial.size() == 2 && !line_down(partial[1], line)) return false;
    empty.push_back(join(line, Kind::this_order));
    node = join(empty, Kind::any_order);
    return true;
  }
  bool is_begun = false, is_past = false;
  for (const Index child : children) {
    if (is_empty(child)) {
      is_past = is_begun;
      line.push_back(child);
      continue;
    }
    if (is_past) return false;
    if (is_begun && !is_full(child)) {
      if (!line_down(child, line)) return false;
      is_past = true;
    }
    if (is_begun) continue;
    if (!is_full(child) && !line_up(child, line)) return false;
    line.push_back(place);
    is_begun = true;
  }
  node = join(line, Kind::this_order);
  return true;
}

// Orders the tree by these positions as far as it can; returns the least and the largest.
std::pair<Index, Index> OrderSearch::sort(Index node, const Indices& position) {
  Node& at = nodes_[node];
  if (at.kind == Kind::leaf) return {position[at.buffer], position[at.buffer]};
  std::vector<std::pair<std::pair<Index, Index>, Index>> children;
  for (const Index child : at.children) children.push_back({sort(child, position), child});
  const auto is_less = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (at.kind == Kind::any_order) std::sort(children.begin(), children.end());
  if (at.kind == Kind::this_order && is_less(children.back(), children.front())) {
    std::reverse(children.begin(), children.end());
  }
  std::pair<Index, Index> range = children[0].first;
  for (std::size_t i = 0; i < children.size(); ++i) {
    at.children[i] = children[i].second;
    range.first = std::min(range.first, children[i].first.first);
    range.second = std::max(range.second, children[i].first.second);
  }
  return range;
}

bool OrderSearch::is_twin(Index a, Index b) const {
  return buffers_[a].upper == buffers_[b].upper && buffers_[a].bytes == buffers_[b].bytes;
}

}  // namespace npusim::lab
