// SPDX-License-Identifier: BSD-3-Clause
// Sizes of CUB's buffers in bytes.
#pragma once

#include <cmath>

namespace torch_npusim {

inline constexpr double kIndex = 8;       // bytes
inline constexpr double kOneTile = 2048;  // as many are sorted without a copy

// CUB's radix sort of pairs: both lists once more, histograms of eight passes, a counter, and a
// state of 256 numbers for each tile. H200 lists of 4,096, 8,192 and 16,384 indices have these
// sizes for each length of a tile from 4,096 to 5,461.
inline double sort_buffer(double count, double key = kIndex) {
  constexpr double kTile = 4608, kCounter = 256, kAlignment = 255;
  if (count <= kOneTile) return 1;
  const double lists = 256 * (std::ceil(kIndex * count / 256) + std::ceil(key * count / 256));
  const double passes = key * 256 * 8;  // one for each byte of a key
  return lists + passes + kCounter + 1024 * std::ceil(count / kTile) + kAlignment;
}

// CUB's scan of up to 16,384 numbers; longer ones need little more. Of four bytes or fewer: less.
inline constexpr double kScan = 1279;
inline constexpr double kSmallScan = 1023;

}  // namespace torch_npusim
