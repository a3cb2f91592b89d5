// SPDX-License-Identifier: BSD-3-Clause
// Blocks of Philox4x32-10, several at once so that compilers vectorise the rounds, and Box-Muller.
#include "csrc/aten/philox.h"

#include <algorithm>
#include <cmath>

// Loops over small arrays, written to be vectorised, which -O2 does not do.
#pragma GCC optimize("O3")

// A second version for wider vectors, without fused multiply-add: the values stay the same.
#if defined(__x86_64__)
#define NPUSIM_WIDER __attribute__((target_clones("avx2", "default")))
#else
#define NPUSIM_WIDER
#endif

namespace torch_npusim {

namespace {

constexpr int kLanes = 8;

// Words [word][lane] of kBlocks counters, replaced by their random words.
template <int kBlocks>
constexpr void philox_rounds(std::uint32_t (&words)[4][kBlocks], std::uint64_t key) {
  auto key_low = static_cast<std::uint32_t>(key);
  auto key_high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1  // unrolled before it is vectorised, the loop would stay scalar
    for (int lane = 0; lane < kBlocks; ++lane) {
      const std::uint64_t left = 0xD2511F53ULL * words[0][lane];
      const std::uint64_t right = 0xCD9E8D57ULL * words[2][lane];
      words[0][lane] = static_cast<std::uint32_t>(right >> 32) ^ words[1][lane] ^ key_low;
      words[1][lane] = static_cast<std::uint32_t>(right);
      words[2][lane] = static_cast<std::uint32_t>(left >> 32) ^ words[3][lane] ^ key_high;
      words[3][lane] = static_cast<std::uint32_t>(left);
    }
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
}

// The known answers of the paper's reference implementation.
constexpr bool answers(std::uint32_t counter_0, std::uint32_t counter_1, std::uint32_t counter_2,
                       std::uint32_t counter_3, std::uint64_t key, std::uint32_t word_0,
                       std::uint32_t word_1, std::uint32_t word_2, std::uint32_t word_3) {
  std::uint32_t words[4][1] = {{counter_0}, {counter_1}, {counter_2}, {counter_3}};
  philox_rounds<1>(words, key);
  return words[0][0] == word_0 && words[1][0] == word_1 && words[2][0] == word_2 &&
         words[3][0] == word_3;
}
static_assert(answers(0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
static_assert(answers(~0U, ~0U, ~0U, ~0U, ~0ULL, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
static_assert(answers(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0x299f31d0a4093822ULL,
                      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));

// Blocks [first, first + kLanes): store(lane, words) gets the four words of each.
template <class Store>
inline void eight_blocks(const PhiloxState& state, std::uint64_t first, Store store) {
  std::uint32_t words[4][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(lane);
    words[0][lane] = static_cast<std::uint32_t>(state.offset);
    words[1][lane] = static_cast<std::uint32_t>(state.offset >> 32);
    words[2][lane] = static_cast<std::uint32_t>(block);
    words[3][lane] = static_cast<std::uint32_t>(block >> 32);
  }
  philox_rounds<kLanes>(words, state.seed);
  for (int lane = 0; lane < kLanes; ++lane) {
    store(lane, words[0][lane], words[1][lane], words[2][lane], words[3][lane]);
  }
}

std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

// Natural logarithm of a positive normal number, within 1e-7 (the polynomial of Cephes' logf).
inline float fast_log(float x) {
  constexpr std::uint32_t kSqrtHalf =
      0x3f3504f3;  // as bits: mantissas run from sqrt(1/2) to sqrt(2)
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x) - kSqrtHalf;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float f = __builtin_bit_cast(float, (bits & 0x007fffff) + kSqrtHalf) - 1.0f;
  const float z = f * f;
  float y = 7.0376836292e-2f * f - 1.1514610310e-1f;
  y = y * f + 1.1676998740e-1f;
  y = y * f - 1.2420140846e-1f;
  y = y * f + 1.4249322787e-1f;
  y = y * f - 1.6668057665e-1f;
  y = y * f + 2.0000714765e-1f;
  y = y * f - 2.4999993993e-1f;
  y = y * f + 3.3333331174e-1f;
  return f + (y * f * z - 0.5f * z - 2.12194440e-4f * exponent) + 0.693359375f * exponent;
}

// Square root, within 1e-7: std::sqrt's check for negative numbers would keep loops scalar.
inline float fast_sqrt(float x) {
  float y = __builtin_bit_cast(float, 0x5f375a86 - (__builtin_bit_cast(std::uint32_t, x) >> 1));
  y = y * (1.5f - 0.5f * x * y * y);
  y = y * (1.5f - 0.5f * x * y * y);
  y = y * (1.5f - 0.5f * x * y * y);
  return x * y;
}

struct Direction {
  float cosine;
  float sine;
};

// The point of the unit circle at `turn` / 2^32 of a full turn (the polynomials of Cephes).
inline Direction direction(std::uint32_t turn) {
  const std::uint32_t quarter = (turn + 0x20000000U) >> 30;  // the nearest one
  const auto rest = static_cast<std::int32_t>(turn - (quarter << 30));
  const float angle = static_cast<float>(rest) * 1.4629180793e-9f;  // 2 pi / 2^32
  const float z = angle * angle;
  const float sine =
      ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * angle + angle;
  const float cosine =
      ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
      0.5f * z + 1.0f;
  // Odd quarters swap the two; the signs follow from the quadrant. As bits, so without a branch.
  const auto cosine_bits = __builtin_bit_cast(std::uint32_t, cosine);
  const auto sine_bits = __builtin_bit_cast(std::uint32_t, sine);
  const std::uint32_t swap = (cosine_bits ^ sine_bits) & (0U - (quarter & 1));
  const std::uint32_t x = (cosine_bits ^ swap) ^ ((quarter + 1) >> 1 << 31);
  const std::uint32_t y = (sine_bits ^ swap) ^ (quarter >> 1 << 31);
  return {__builtin_bit_cast(float, x), __builtin_bit_cast(float, y)};
}

}  // namespace

void philox_draws(const PhiloxState& state, std::int64_t first, std::int64_t count,
                  std::uint32_t* draws) {
  for (std::int64_t i = 0; i < count; i += 4 * kLanes) {
    eight_blocks(state, static_cast<std::uint64_t>(first + i) / 4,
                 [&](int lane, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
                   std::uint32_t* to = draws + i + 4 * lane;
                   to[0] = a;
                   to[1] = b;
                   to[2] = c;
                   to[3] = d;
                 });
  }
}

void philox_draws(const PhiloxState& state, std::int64_t first, std::int64_t count,
                  std::uint64_t* draws) {
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    eight_blocks(state, static_cast<std::uint64_t>(first + i) / 2,
                 [&](int lane, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
                   draws[i + 2 * lane] = joined(a, b);
                   draws[i + 2 * lane + 1] = joined(c, d);
                 });
  }
}

NPUSIM_WIDER void standard_normals(const std::uint32_t* draws, std::int64_t count, float* values) {
  for (std::int64_t j = 0; j < (count + 1) / 2; ++j) {
    const auto radius_draw = static_cast<std::int32_t>(draws[2 * j] >> 1);
    const float u = (static_cast<float>(radius_draw) + 0.5f) * 0x1p-31f;  // (0, 1]
    const float radius = fast_sqrt(-2.0f * fast_log(u));
    const Direction towards = direction(draws[2 * j + 1]);
    values[2 * j] = radius * towards.cosine;
    values[2 * j + 1] = radius * towards.sine;
  }
}

void standard_normals(const std::uint64_t* draws, std::int64_t count, double* values) {
  constexpr double kTurn = 6.283185307179586;
  for (std::int64_t j = 0; j < (count + 1) / 2; ++j) {
    const double radius = std::sqrt(-2.0 * std::log(open_unit(draws[2 * j])));
    const double angle = kTurn * unit(draws[2 * j + 1]);
    values[2 * j] = radius * std::cos(angle);
    values[2 * j + 1] = radius * std::sin(angle);
  }
}

}  // namespace torch_npusim
