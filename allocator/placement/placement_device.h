// SPDX-License-Identifier: BSD-3-Clause
// PlacementDevice: the device as a placement policy sees it, in a replay (replay_device.h) or live
// (policy_allocator.h). It lends segments and knows what it has lent. Single-threaded: no locks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "allocator/provider.h"

namespace npusim::alloc {

class PlacementDevice : public Provider {
 public:
  using Piece = std::pair<Address, std::uint64_t>;  // address, bytes

  virtual std::uint64_t capacity_bytes() const noexcept = 0;
  virtual std::uint64_t reserved_bytes() const noexcept = 0;
  virtual const std::map<Address, std::size_t>& lent() const noexcept = 0;

  // stitch() gives addresses behind which pieces of lent memory lie in a row; unstitch() ends that.
  // For policies that move physical pages (GMLake). Throws InvalidArgument for memory not lent, or
  // where the device cannot do it.
  virtual Address stitch(std::span<const Piece> pieces) = 0;
  virtual void unstitch(Address address) = 0;

  // pieces_of() is the lent memory behind a range, stitched or not; empty if some of it is missing.
  // The result is valid until the next call.
  virtual std::span<const Piece> pieces_of(Address address, std::uint64_t bytes) = 0;

  // refuse() notes that a policy asked for what cannot be ("releases ..."): live its call ends with
  // an error, in a replay it is a violation.
  virtual void refuse(std::string what) = 0;

  // when() is the beginning of a sentence about this moment: "event 12: ", or nothing.
  virtual std::string when() const { return {}; }
};

}  // namespace npusim::alloc
