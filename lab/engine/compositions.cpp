// SPDX-License-Identifier: BSD-3-Clause
// Looks for patterns of buffers, round after round.
#include "lab/engine/compositions.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace npusim::lab {
namespace {

using Index = std::uint32_t;
using Indices = std::vector<Index>;

class Composer {
 public:
  Composer(std::span<const Buffer> buffers, std::size_t most)
      : all_(buffers.begin(), buffers.end()), given_(buffers.size()), most_(most) {
    for (Index i = 0; i < all_.size(); ++i) parts_.push_back({i});
  }

  // One round; whether it found anything.
  bool look(bool for_pairs) {
    begins_.clear();
    ends_.clear();
    const auto count = static_cast<Index>(all_.size());
    for (Index i = 0; i < count; ++i) {
      begins_[all_[i].lower].push_back(i);
      ends_[all_[i].upper].push_back(i);
    }
    for (Index i = 0; i < count; ++i) look_around(i);
    for (Index i = 0; for_pairs && i < count; ++i) look_for_pairs(i);
    return all_.size() > count;
  }

  std::vector<Composition> found() && { return std::move(found_); }

 private:
  void look_for_pairs(Index a) {
    for (const Index b : begins_[all_[a].lower]) {
      if (b > a && all_[a].upper == all_[b].upper) {
        add({a, b}, {0, all_[a].bytes}, all_[a].upper, all_[a].bytes + all_[b].bytes);
      }
    }
    for (const Index b : begins_[all_[a].upper]) {
      if (all_[a].bytes == all_[b].bytes) add({a, b}, {0, 0}, all_[b].upper, all_[a].bytes);
    }
  }

  //   | d |   c   |     The lives of the five say which is which, their bytes whether they fit.
  //   |   +---+---+
  //   |   | e |   |
  //   +---+---+ b |
  //   |   a   |   |
  void look_around(Index e) {
    const std::uint64_t middle = all_[e].bytes;
    for (const Index d : ends_[all_[e].lower]) {
      for (const Index c : begins_[all_[e].lower]) {
        if (c == e || all_[d].bytes != all_[c].bytes + middle) continue;
        for (const Index a : ends_[all_[e].upper]) {
          if (a == e || all_[a].lower != all_[d].lower) continue;
          for (const Index b : begins_[all_[e].upper]) {
            if (all_[b].upper != all_[c].upper || all_[b].bytes != all_[a].bytes + middle) continue;
            const std::uint64_t low = all_[a].bytes, high = all_[b].bytes;
            add({a, b, c, d, e}, {0, 0, high, low, low}, all_[b].upper, low + all_[d].bytes);
          }
        }
      }
    }
  }

  void add(Indices members, std::vector<std::uint64_t> offsets, std::int64_t upper,
           std::uint64_t bytes) {
    if (found_.size() == most_) return;
    Indices parts;
    for (const Index i : members) parts.insert(parts.end(), parts_[i].begin(), parts_[i].end());
    std::sort(parts.begin(), parts.end());
    if (std::adjacent_find(parts.begin(), parts.end()) != parts.end()) return;
    if (!known_.insert(parts).second) return;
    const Buffer whole{.lower = all_[members[0]].lower, .upper = upper, .bytes = bytes};
    all_.push_back(whole);
    parts_.push_back(std::move(parts));
    found_.push_back({whole, std::move(members), std::move(offsets)});
  }

  std::vector<Buffer> all_;
  std::size_t given_, most_;
  std::vector<Indices> parts_;  // of each, those given
  std::set<Indices> known_;
  std::map<std::int64_t, Indices> begins_, ends_;
  std::vector<Composition> found_;
};

}  // namespace

std::vector<Composition> compositions(std::span<const Buffer> buffers, unsigned rounds_of_pairs,
                                      std::size_t most) {
  Composer composer(buffers, most);
  for (unsigned round = 0; composer.look(round < rounds_of_pairs) || round < rounds_of_pairs;) {
    ++round;
  }
  return std::move(composer).found();
}

}  // namespace npusim::lab
