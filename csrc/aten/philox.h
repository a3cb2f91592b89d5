// SPDX-License-Identifier: BSD-3-Clause
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) and what turns
// its words into uniform and normal numbers.
// Invariant (rule R1): element i of a call takes word i mod 4 of the block with the key `seed` and
// the counter (offset, i / 4), low word first; a 64-bit draw takes two words, of block i / 2. So
// values depend on nothing but seed, offset and i.
#pragma once

#include <cstdint>

#include "csrc/runtime/generator.h"

namespace torch_npusim {

// Kernels make this many elements at a time.
constexpr std::int64_t kTileElements = 256;

// philox_draws() writes the draws of elements [first, first + count) to `draws`, which has room for
// kTileElements. `first` is a multiple of kTileElements; count <= kTileElements.
void philox_draws(const PhiloxState& state, std::int64_t first, std::int64_t count,
                  std::uint32_t* draws);
void philox_draws(const PhiloxState& state, std::int64_t first, std::int64_t count,
                  std::uint64_t* draws);

// standard_normals() writes count numbers of mean 0 and deviation 1 (Box-Muller on the pairs of
// elements 2j and 2j+1). Draws and values have room for kTileElements. The float version uses no
// math library, so its values are the same on every machine without fused multiply-add.
void standard_normals(const std::uint32_t* draws, std::int64_t count, float* values);
void standard_normals(const std::uint64_t* draws, std::int64_t count, double* values);

// unit() is uniform in [0, 1), as precise as the type.
inline float unit(std::uint32_t draw) { return static_cast<float>(draw >> 8) * 0x1p-24f; }
inline double unit(std::uint64_t draw) { return static_cast<double>(draw >> 11) * 0x1p-53; }

// open_unit() is uniform in (0, 1): neither end occurs.
inline double open_unit(std::uint32_t draw) { return (draw + 0.5) * 0x1p-32; }
inline double open_unit(std::uint64_t draw) {
  return (static_cast<double>(draw >> 12) + 0.5) * 0x1p-52;
}

// below() is uniform in [0, range); range > 0. The skew is at most range / 2^32 or range / 2^64.
inline std::uint64_t below(std::uint32_t draw, std::uint64_t range) {
  return (draw * range) >> 32;  // range < 2^32
}
inline std::uint64_t below(std::uint64_t draw, std::uint64_t range) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(draw) * range) >> 64);
}

// happens() is true with the given probability. One 32-bit draw decides, whatever the dtype of the
// result, so that a mask does not depend on it.
inline bool happens(std::uint32_t draw, double probability) { return draw < probability * 0x1p32; }

}  // namespace torch_npusim
