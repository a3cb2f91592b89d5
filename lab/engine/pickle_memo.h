// SPDX-License-Identifier: BSD-3-Clause
// PickleMemo: the memo of a pickle, without the values that nothing in it asks for again. A writer
// puts every container there, so that is most of them; which ones is known after a first look at
// the opcodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lab/engine/byte_source.h"
#include "lab/engine/pickle_values.h"

namespace npusim::lab {

class PickleMemo {
 public:
  // Reads `source` up to what ends it or is no opcode of a value, and rewinds it.
  explicit PickleMemo(ByteSource& source);

  std::size_t size() const noexcept { return size_; }  // 1 + the largest number so far
  void put(std::size_t number, PickleValue value);
  PickleValue get(std::size_t number) const;  // of kind "missing" where it was not put
  std::size_t bytes() const noexcept;

 private:
  void ask(std::uint64_t number, std::uint64_t position);
  std::size_t place(std::size_t number) const;
  bool is_asked(std::size_t number) const {
    return number / 64 < asked_.size() && (asked_[number / 64] >> number % 64 & 1) != 0;
  }

  std::size_t size_ = 0;
  std::vector<std::uint64_t> asked_;   // a bit per number
  std::vector<std::uint32_t> before_;  // how many are asked for in the words before
  std::vector<PickleValue> values_;    // of those, in order of their numbers
};

}  // namespace npusim::lab
