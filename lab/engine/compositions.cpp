// SPDX-License-Identifier: BSD-3-Clause
// Looks for patterns of buffers, round after round, where one of them is new.
#include "lab/engine/compositions.h"

#include <algorithm>
#include <bit>

namespace npusim::lab {
namespace {

constexpr std::uint64_t kMostLooks = 1 << 28;             // at buffers, and words of bits
constexpr std::size_t kMostWords = std::size_t{1} << 23;  // of bits, of all compositions: 64 MiB

}  // namespace

Compositions::Compositions(std::span<const Buffer> buffers, std::size_t most)
    : given_(buffers.size()), all_(buffers.begin(), buffers.end()) {
  const std::size_t words = (given_ + 63) / 64;
  most_ = words == 0 ? 0 : std::min(most, kMostWords / words);
  for (Index i = 0; i < given_; ++i) {
    Members own(words);
    own[i / 64] = std::uint64_t{1} << (i % 64);
    has_.push_back(&*known_.insert(std::move(own)).first);
  }
}

bool Compositions::is_done() const {
  return has_all_ || found_.size() >= most_ || looked_at_ > kMostLooks;
}

bool Compositions::look(bool for_pairs) {
  const auto count = static_cast<Index>(all_.size());
  for (auto i = static_cast<Index>(in_fours_); i < count; ++i) {
    begins_[all_[i].lower].push_back(i);
    begins_with_[{all_[i].lower, all_[i].bytes}].push_back(i);
    ends_[all_[i].upper].push_back(i);
  }
  for (Index i = 0; i < count && !is_done(); ++i) add_fours_around(i);
  in_fours_ = count;
  for (Index i = 0; for_pairs && i < count && !is_done(); ++i) add_pairs_of(i);
  if (for_pairs) in_pairs_ = count;
  return all_.size() > count;
}

void Compositions::add_pairs_of(Index a) {
  const Buffer one = all_[a];
  const Indices& alike = begins_[one.lower];
  looked_at_ += alike.size();
  for (const Index b : alike) {
    if (b <= a || b < in_pairs_ || all_[b].upper != one.upper) continue;
    add({a, b}, {0, one.bytes}, one.upper, one.bytes + all_[b].bytes);
  }
  for (const Index b : find(one.upper, one.bytes)) {
    if (std::max(a, b) < in_pairs_) continue;
    add({a, b}, {0, 0}, all_[b].upper, one.bytes);
  }
}

//   | d |   c   |     The lives of the five say which is which, their bytes whether they fit.
//   |   +---+---+
//   |   | e |   |
//   +---+---+ b |
//   |   a   |   |
void Compositions::add_fours_around(Index e) {
  const Buffer middle = all_[e];
  const Indices& below = ends_[middle.upper];
  for (const Index d : ends_[middle.lower]) {
    const std::int64_t lower = all_[d].lower;
    if (all_[d].bytes <= middle.bytes) continue;
    for (const Index c : find(middle.lower, all_[d].bytes - middle.bytes)) {
      if (c == e || all_[c].upper <= middle.upper) continue;
      looked_at_ += below.size();
      for (const Index a : below) {
        if (a == e || all_[a].lower != lower) continue;
        const std::uint64_t low = all_[a].bytes, high = low + middle.bytes;
        for (const Index b : find(middle.upper, high)) {
          if (all_[b].upper != all_[c].upper || std::max({a, b, c, d, e}) < in_fours_) continue;
          const std::uint64_t bytes = high + all_[c].bytes;
          add({a, b, c, d, e}, {0, 0, high, low, low}, all_[b].upper, bytes);
        }
      }
    }
  }
}

const Compositions::Indices& Compositions::find(std::int64_t moment, std::uint64_t bytes) {
  ++looked_at_;
  const auto found = begins_with_.find({moment, bytes});
  return found == begins_with_.end() ? none_ : found->second;
}

void Compositions::add(Indices members, std::vector<std::uint64_t> offsets, std::int64_t upper,
                       std::uint64_t bytes) {
  if (is_done()) return;
  Members all(has_[0]->size());
  for (const Index i : members) {
    looked_at_ += all.size();
    for (std::size_t word = 0; word < all.size(); ++word) {
      if ((all[word] & (*has_[i])[word]) != 0) return;
      all[word] |= (*has_[i])[word];
    }
  }
  const auto [at, is_new] = known_.insert(std::move(all));
  if (!is_new) return;
  const Buffer whole{.lower = all_[members[0]].lower, .upper = upper, .bytes = bytes};
  all_.push_back(whole);
  has_.push_back(&*at);
  std::size_t count = 0;
  for (const std::uint64_t word : *at) count += static_cast<std::size_t>(std::popcount(word));
  has_all_ = count == given_;
  found_.push_back({whole, std::move(members), std::move(offsets)});
}

void Compositions::place_members(std::vector<std::uint64_t>& offsets) const {
  for (std::size_t i = found_.size(); i-- > 0;) {
    const auto& [whole, members, inside] = found_[i];
    const std::uint64_t offset = offsets[given_ + i];
    if (offset == kNowhere) continue;
    for (std::size_t j = 0; j < members.size(); ++j) offsets[members[j]] = offset + inside[j];
  }
}

}  // namespace npusim::lab
