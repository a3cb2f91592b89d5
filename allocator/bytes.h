// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic and words for numbers of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace npusim::alloc {

constexpr std::int64_t signed_bytes(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

// Returns the next multiple of `multiple`, which is not 0.
constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Returns "0x7f00", as debuggers print addresses.
inline std::string hex(std::uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace npusim::alloc
