// SPDX-License-Identifier: BSD-3-Clause
// PlacementCheck: is what a policy answers possible? Every live placement must be aligned, lie in
// lent memory and share none of it with another one. Stitched addresses are judged by the memory
// behind them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocator/placement/placement_device.h"
#include "allocator/placement/placement_policy.h"

namespace npusim::alloc {

// What is wrong, in words: the first of it, and how much there is.
struct Findings {
  static constexpr std::size_t kMost = 20;
  std::vector<std::string> first;
  std::uint64_t count = 0;
  void add(std::string text) {
    if (count++ < kMost) first.push_back(std::move(text));
  }
};

class PlacementCheck {
 public:
  explicit PlacementCheck(PlacementDevice& device) : device_(device) {}

  // add() is what is wrong with a placement, empty if nothing. One that is not possible counts as
  // live, where it can.
  std::string add(const Placement& placement, const PlacementRequest& request);
  void remove(const Placement& placement, const PlacementRequest& request);  // that add() has seen
  // check_lent() finds live placements whose memory has been given back, each once.
  void check_lent();
  // say() adds what the caller found.
  void say(const std::string& what) { found_.add(device_.when() + what); }

  const Findings& found() const noexcept { return found_; }

  struct Live {
    Address end = 0;
    std::uint64_t number = 0;  // which malloc
    std::uint64_t requested_bytes = 0;
    std::uint64_t bytes = 0;
    bool is_gone = false;  // its memory was given back
  };
  const std::map<Address, Live>& live() const noexcept { return live_; }  // in lent memory

 private:
  struct Placed {
    std::uint64_t number = 0;
    std::vector<PlacementDevice::Piece> pieces;
  };
  std::string place(const Placement& placement, const PlacementRequest& request);

  PlacementDevice& device_;
  std::map<Address, Live> live_;
  std::map<Address, Placed> placed_;  // by the address given out
  Findings found_;
};

}  // namespace npusim::alloc
