// SPDX-License-Identifier: BSD-3-Clause
// The caching allocator's policy on std::set, as upstream has it: what the benchmarks are measured
// against. Statistics are kept, memory is never given back. Upstream had one set per pool up to
// 2.12; since 2.13 a second one holds the same blocks by address.
#pragma once

#include <array>
#include <mutex>
#include <set>
#include <utility>

#include "allocator/config.h"
#include "allocator/counters.h"
#include "allocator/provider.h"

namespace npusim::alloc {

// SetAllocator: the policy of preset("npusim") for one stream, on two ordered sets.
template <class Mutex, bool kSecondSet>
class SetAllocator {
 public:
  struct Node {
    Address address = 0;
    std::size_t bytes = 0;
    std::size_t requested_bytes = 0;
    std::int64_t order = 0;
    Address base = 0;
    Node* prev = nullptr;
    Node* next = nullptr;
    bool is_small = false;
    bool is_free = false;
  };
  using Handle = Node*;

  explicit SetAllocator(Provider& provider) : provider_(provider) {}

  Node* malloc(std::size_t bytes) {
    const std::lock_guard<Mutex> lock(mutex_);
    Node key{.bytes = *round_request(config_, bytes), .order = -1};
    const bool is_small = key.bytes <= config_.small_limit_bytes;
    Pool& pool = pools_[is_small];
    const auto found = pool.lower_bound(&key);
    Node* node =
        found == pool.end() ? buy(segment_bytes_for(config_, key.bytes), is_small) : *found;
    if (found != pool.end()) {
      pool.erase(found);
      erase_address(node);
    }
    if (should_split(config_, is_small, node->bytes, key.bytes)) node = split(node, key.bytes);
    node->requested_bytes = bytes;
    node->is_free = false;
    const auto size = static_cast<std::int64_t>(node->bytes);
    counters_.increase(Counters::kAllocation, is_small, 1);
    counters_.increase(Counters::kAllocatedBytes, is_small, size);
    counters_.increase(Counters::kActive, is_small, 1);
    counters_.increase(Counters::kActiveBytes, is_small, size);
    counters_.increase(Counters::kRequestedBytes, is_small, static_cast<std::int64_t>(bytes));
    return node;
  }

  void free(Node* node) {
    const std::lock_guard<Mutex> lock(mutex_);
    const auto size = static_cast<std::int64_t>(node->bytes);
    counters_.decrease(Counters::kAllocation, node->is_small, 1);
    counters_.decrease(Counters::kAllocatedBytes, node->is_small, size);
    counters_.decrease(Counters::kActive, node->is_small, 1);
    counters_.decrease(Counters::kActiveBytes, node->is_small, size);
    counters_.decrease(Counters::kRequestedBytes, node->is_small,
                       static_cast<std::int64_t>(node->requested_bytes));
    for (Node* other : {node->prev, node->next}) {
      if (other && other->is_free) absorb(node, other);
    }
    node->is_free = true;
    insert(node);
  }

  static std::pair<std::int64_t, Address> place(const Node* node) {
    return {node->order, node->address - node->base};
  }

  const Counters& counters() const { return counters_; }

 private:
  static bool before(const Node* a, const Node* b) {
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->order != b->order ? a->order < b->order : a->address < b->address;
  }
  static bool lower(const Node* a, const Node* b) { return a->address < b->address; }
  using Pool = std::set<Node*, bool (*)(const Node*, const Node*)>;

  void insert(Node* node) {
    pools_[node->is_small].insert(node);
    if (kSecondSet) by_address_[node->is_small].insert(node);
  }
  void erase_address(Node* node) {
    if (kSecondSet) by_address_[node->is_small].erase(node);
  }

  Node* buy(std::size_t bytes, bool is_small) {
    const Address base = provider_.acquire_segment(bytes).address;
    counters_.increase(Counters::kReservedBytes, is_small, static_cast<std::int64_t>(bytes));
    return new Node{
        .address = base, .bytes = bytes, .order = segments_++, .base = base, .is_small = is_small};
  }

  Node* split(Node* node, std::size_t bytes) {
    Node* low = new Node(*node);
    low->bytes = bytes;
    low->next = node;
    if (low->prev) low->prev->next = low;
    node->prev = low;
    node->address += bytes;
    node->bytes -= bytes;
    node->is_free = true;
    insert(node);
    return low;
  }

  void absorb(Node* node, Node* other) {
    pools_[node->is_small].erase(other);
    erase_address(other);
    node->bytes += other->bytes;
    if (other == node->prev) {
      node->address = other->address;
      node->prev = other->prev;
      if (node->prev) node->prev->next = node;
    } else {
      node->next = other->next;
      if (node->next) node->next->prev = node;
    }
    delete other;
  }

  Provider& provider_;
  const Config config_;
  Mutex mutex_;
  std::array<Pool, 2> pools_{Pool(before), Pool(before)};
  std::array<Pool, 2> by_address_{Pool(lower), Pool(lower)};
  Counters counters_;
  std::int64_t segments_ = 0;
};

}  // namespace npusim::alloc
