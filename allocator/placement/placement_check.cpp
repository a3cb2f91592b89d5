// SPDX-License-Identifier: BSD-3-Clause
// The judgement, one placement at a time.
#include "allocator/placement/placement_check.h"

#include <iterator>

#include "allocator/bytes.h"

namespace npusim::alloc {

namespace {

std::string malloc_number(std::uint64_t number) { return "malloc " + std::to_string(number); }

}  // namespace

std::string PlacementCheck::add(const Placement& placement, const PlacementRequest& request) {
  const std::string wrong = place(placement, request);
  if (wrong.empty()) return {};
  std::string text = malloc_number(request.number) + " of " + std::to_string(request.bytes) +
                     " bytes got " + std::to_string(placement.bytes) + " at " +
                     hex(placement.address) + ", " + wrong;
  say(text);
  return text;
}

// The first that is wrong; what can be live of the placement is.
std::string PlacementCheck::place(const Placement& placement, const PlacementRequest& request) {
  std::string wrong;
  const auto object = [&](std::string what) {
    if (wrong.empty()) wrong = std::move(what);
  };
  if (placement.bytes < request.bytes) object("which is less");
  if (placement.address % kStorageAlignment != 0) {
    object("which is not a multiple of " + std::to_string(kStorageAlignment));
  }
  const auto pieces = device_.pieces_of(placement.address, placement.bytes);
  if (pieces.empty()) object("not all of which are lent");
  const auto [mine, is_new] = placed_.try_emplace(placement.address, Placed{request.number, {}});
  if (!is_new) {
    object("which is in use by " + malloc_number(mine->second.number));
    return wrong;
  }
  for (const auto& [address, bytes] : pieces) {
    const Address end = address + bytes;
    const auto next = live_.lower_bound(address);
    const bool hits_next = next != live_.end() && next->first < end;
    const bool hits_before = next != live_.begin() && std::prev(next)->second.end > address;
    if (hits_next || hits_before) {
      const Live& other = hits_next ? next->second : std::prev(next)->second;
      object("which overlap those of " + malloc_number(other.number));
      continue;
    }
    live_.emplace_hint(next, address, Live{end, request.number, request.bytes, placement.bytes});
    mine->second.pieces.emplace_back(address, bytes);
  }
  return wrong;
}

void PlacementCheck::remove(const Placement& placement, const PlacementRequest& request) {
  const auto it = placed_.find(placement.address);
  if (it == placed_.end() || it->second.number != request.number) return;
  for (const auto& [address, bytes] : it->second.pieces) live_.erase(address);
  placed_.erase(it);
}

void PlacementCheck::check_lent() {
  for (auto& [address, live] : live_) {
    if (live.is_gone || !device_.pieces_of(address, live.end - address).empty()) continue;
    live.is_gone = true;
    say("the memory of " + malloc_number(live.number) + " at " + hex(address) +
        " was given back while in use");
  }
}

}  // namespace npusim::alloc
