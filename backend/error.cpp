// SPDX-License-Identifier: BSD-3-Clause
// The cold halves of the checks, and byte counts for messages.
#include "backend/error.h"

#include <array>
#include <cstdio>

namespace npusim {

namespace detail {

void throw_invalid_argument(const std::string& message) { throw InvalidArgument(message); }

void throw_internal_error(const char* condition, const char* file, int line) {
  throw InternalError(join("npusim internal error: `", condition, "` does not hold at ", file, ":",
                           line, ". This is a defect of npusim; please report it."));
}

}  // namespace detail

std::string format_bytes(unsigned long long bytes) {
  constexpr std::array<const char*, 6> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace npusim
