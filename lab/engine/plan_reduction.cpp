// SPDX-License-Identifier: BSD-3-Clause
// Finding pairs to glue with one table per kind of pair, each from a key to the nodes that have it.
#include "lab/engine/plan_reduction.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <utility>

namespace npusim::lab {

std::vector<Buffer> compact_lives(std::span<const Buffer> buffers) {
  struct Edge {
    std::int64_t time;
    bool is_birth;  // deaths come first where both fall on one moment
    std::int64_t* moment;
  };
  std::vector<Buffer> out(buffers.begin(), buffers.end());
  std::vector<Edge> edges;
  edges.reserve(2 * buffers.size());
  for (Buffer& buffer : out) {
    edges.push_back({buffer.lower, true, &buffer.lower});
    edges.push_back({buffer.upper, false, &buffer.upper});
    for (Life& gap : buffer.gaps) {
      edges.push_back({gap.lower, false, &gap.lower});
      edges.push_back({gap.upper, true, &gap.upper});
    }
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.time != b.time ? a.time < b.time : a.is_birth < b.is_birth;
  });
  std::int64_t moment = 0;
  bool was_death = false;
  for (const Edge& edge : edges) {
    if (edge.is_birth && was_death) ++moment;
    was_death = !edge.is_birth;
    *edge.moment = edge.is_birth ? moment : moment + 1;
  }
  return out;
}

class GluedBuffers::Gluing {
 public:
  explicit Gluing(std::vector<Node>& nodes) : nodes_(nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const bool is_plain = nodes[i].buffer.gaps.empty() && nodes[i].buffer.alignment == 1;
      if (is_plain) wait(i);
      if (!is_plain) roots_.push_back(i);
    }
  }

  // Pinwheels come first: more has to agree, so fewer are there by chance.
  std::vector<std::size_t> run() {
    while (!waiting_.empty() || !unpaired_.empty()) {
      auto& queue = waiting_.empty() ? unpaired_ : waiting_;
      const Area next = queue.top();
      queue.pop();
      if (&queue == &unpaired_) {
        if (is_there_[next.second]) glue(next.second);
        continue;
      }
      add(next.second);
      if (!glue_around(next.second)) unpaired_.push(next);
    }
    for (const auto& [life, nodes] : alike_) {
      roots_.insert(roots_.end(), nodes.begin(), nodes.end());
    }
    std::sort(roots_.begin(), roots_.end());
    return std::move(roots_);
  }

 private:
  using Life = std::pair<std::int64_t, std::int64_t>;
  using Edge = std::pair<std::int64_t, std::uint64_t>;  // a moment and bytes
  template <class Key>
  using Table = std::map<Key, std::set<std::size_t>>;

  template <class Key>
  static std::size_t find(const Table<Key>& table, const Key& key) {
    const auto it = table.find(key);
    return it == table.end() ? kNone : *it->second.begin();
  }
  template <class Key>
  static void erase(Table<Key>& table, const Key& key, std::size_t node) {
    const auto it = table.find(key);
    it->second.erase(node);
    if (it->second.empty()) table.erase(it);
  }

  void glue(std::size_t node) {
    const Buffer& buffer = nodes_[node].buffer;
    remove(node);
    if (const std::size_t other = find(alike_, Life{buffer.lower, buffer.upper}); other != kNone) {
      remove(other);
      const std::uint64_t below = nodes_[other].buffer.bytes;
      join(buffer.lower, buffer.upper, below + buffer.bytes, {{other, 0}, {node, below}});
    } else if (const std::size_t next = find(by_birth_, Edge{buffer.upper, buffer.bytes});
               next != kNone) {
      remove(next);
      join(buffer.lower, nodes_[next].buffer.upper, buffer.bytes, {{node, 0}, {next, 0}});
    } else if (const std::size_t last = find(by_death_, Edge{buffer.lower, buffer.bytes});
               last != kNone) {
      remove(last);
      join(nodes_[last].buffer.lower, buffer.upper, buffer.bytes, {{last, 0}, {node, 0}});
    } else {
      add(node);
    }
  }

  // The pinwheel that a new node is a part of: its middle begins or ends where the node does.
  bool glue_around(std::size_t node) {
    const Life life{nodes_[node].buffer.lower, nodes_[node].buffer.upper};
    for (const std::int64_t moment : {life.first, life.second}) {
      for (const auto* edges : {&by_birth_, &by_death_}) {
        for (const std::size_t middle : at(*edges, moment)) {
          if (glue_pinwheel(middle)) return true;
        }
      }
    }
    return false;
  }

  // The letters are those of the header's picture.
  bool glue_pinwheel(std::size_t e) {
    const Buffer& middle = nodes_[e].buffer;
    for (const std::size_t c : at(by_birth_, middle.lower)) {
      const Buffer& above = nodes_[c].buffer;
      const std::size_t d = find(by_death_, Edge{middle.lower, middle.bytes + above.bytes});
      if (c == e || d == kNone || above.upper <= middle.upper) continue;
      for (const std::size_t a : at(by_death_, middle.upper)) {
        const Buffer& below = nodes_[a].buffer;
        const std::size_t b = find(by_birth_, Edge{middle.upper, below.bytes + middle.bytes});
        if (a == e || b == kNone || below.lower != nodes_[d].buffer.lower ||
            nodes_[b].buffer.upper != above.upper) {
          continue;
        }
        const std::uint64_t low = below.bytes, high = low + middle.bytes;
        for (const std::size_t part : {a, b, c, d, e}) remove(part);
        join(below.lower, above.upper, high + above.bytes,
             {{a, 0}, {b, 0}, {c, high}, {d, low}, {e, low}});
        return true;
      }
    }
    return false;
  }

  // Nodes with an edge at a moment; none where these are too many to try them all.
  static std::vector<std::size_t> at(const Table<Edge>& edges, std::int64_t moment) {
    constexpr std::size_t kMost = 16;
    std::vector<std::size_t> found;
    for (auto it = edges.lower_bound({moment, 0}); it != edges.end() && it->first.first == moment;
         ++it) {
      found.insert(found.end(), it->second.begin(), it->second.end());
      if (found.size() > kMost) return {};
    }
    return found;
  }

  void join(std::int64_t lower, std::int64_t upper, std::uint64_t bytes,
            std::vector<Part>&& parts) {
    Node& node = nodes_.emplace_back();
    node.buffer.lower = lower;
    node.buffer.upper = upper;
    node.buffer.bytes = bytes;
    node.parts = std::move(parts);
    wait(nodes_.size() - 1);
  }
  void wait(std::size_t node) {
    const Buffer& buffer = nodes_[node].buffer;
    const auto life = static_cast<double>(buffer.upper - buffer.lower);
    waiting_.emplace(life * static_cast<double>(buffer.bytes), node);
  }

  void add(std::size_t node) {
    is_there_.resize(nodes_.size());
    is_there_[node] = true;
    const Buffer& buffer = nodes_[node].buffer;
    alike_[{buffer.lower, buffer.upper}].insert(node);
    by_birth_[{buffer.lower, buffer.bytes}].insert(node);
    by_death_[{buffer.upper, buffer.bytes}].insert(node);
  }
  void remove(std::size_t node) {
    is_there_[node] = false;
    const Buffer& buffer = nodes_[node].buffer;
    erase(alike_, Life{buffer.lower, buffer.upper}, node);
    erase(by_birth_, Edge{buffer.lower, buffer.bytes}, node);
    erase(by_death_, Edge{buffer.upper, buffer.bytes}, node);
  }

  static constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<Node>& nodes_;
  std::vector<std::size_t> roots_;
  using Area = std::pair<double, std::size_t>;
  std::priority_queue<Area, std::vector<Area>, std::greater<>> waiting_,
      unpaired_;                // the smallest first
  std::vector<bool> is_there_;  // by node: in the tables
  Table<Life> alike_;
  Table<Edge> by_birth_, by_death_;
};

GluedBuffers::GluedBuffers(std::span<const Buffer> buffers) : given_(buffers.size()) {
  nodes_.reserve(2 * buffers.size());
  for (const Buffer& buffer : buffers) nodes_.push_back({.buffer = buffer});
  roots_ = Gluing(nodes_).run();
  for (const std::size_t root : roots_) whole_.push_back(nodes_[root].buffer);
}

Plan GluedBuffers::apart(const Plan& plan) const {
  std::vector<std::uint64_t> offsets(nodes_.size());
  for (std::size_t i = 0; i < roots_.size(); ++i) offsets[roots_[i]] = plan.offsets[i];
  for (std::size_t i = nodes_.size(); i-- > given_;) {  // parts stand before what is made of them
    for (const Part& part : nodes_[i].parts) offsets[part.node] = offsets[i] + part.offset;
  }
  offsets.resize(given_);
  return {std::move(offsets), plan.height};
}

}  // namespace npusim::lab
