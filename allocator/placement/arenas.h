// SPDX-License-Identifier: BSD-3-Clause
// Where policies get memory from: one rule for all of them, so that two policies can be compared
// and not their segments. The setting `arena` is
//
//   cuda    segments as the caching allocator buys them: 2 MiB for up to 1 MiB, 20 MiB for up to
//           10 MiB, above in multiples of 2 MiB (the default);
//   one     one range of addresses that grows and shrinks at its end by pages of 2 MiB, as brk()
//   does; a size  segments of so many MiB, or of what is asked for, if that is more.
#pragma once

#include <cstdint>

#include "allocator/config.h"
#include "allocator/placement/placement_policy.h"

namespace npusim::alloc {

struct AddressRange {
  Address address = 0;  // 0: none
  std::uint64_t bytes = 0;
};

class Arenas {
 public:
  Arenas(PolicySettings& settings, PlacementDevice& device);
  ~Arenas();
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  // is_one(): then what grow() gives begins where it ended before, end().
  bool is_one() const noexcept { return rule_ == Rule::one; }
  Address end() const noexcept { return end_; }
  Address begin() const noexcept { return begin_; }  // 0: nothing was needed yet

  // grow() gives at least so many bytes more.
  AddressRange grow(std::uint64_t bytes);
  // give_back() returns a range that is free: a whole segment, or the end of the one arena. What is
  // left of it is what could not be given back.
  AddressRange give_back(AddressRange range);

 private:
  enum class Rule : std::uint8_t { cuda, one, size };

  PlacementDevice& device_;
  Rule rule_ = Rule::cuda;
  std::uint64_t segment_ = 0;
  const Config cuda_ = preset("cuda-2.13");
  Address begin_ = 0, end_ = 0;  // of the one arena
  std::uint64_t reserved_ = 0;
};

}  // namespace npusim::alloc
