// SPDX-License-Identifier: BSD-3-Clause
// The pure functions of config.h. Nothing here wraps while refuse_over_one_exabyte holds: sizes of
// 1 EB and more never get past round_request(), and every rule of a validated Config stays below.
#include "allocator/config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "allocator/bytes.h"
#include "allocator/error.h"

namespace npusim::alloc {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  text << "allocator config: ";
  (text << ... << parts);
  throw InvalidArgument(text.str());
}

// In the words of PYTORCH_ALLOC_CONF, where users set them.
std::string megabytes(std::size_t bytes) {
  return bytes % kMiB == 0 ? std::to_string(bytes / kMiB) : std::to_string(bytes) + " bytes";
}

void validate_multiple(const char* field, std::size_t bytes, std::size_t quantum_bytes) {
  if (bytes == 0 || bytes % quantum_bytes != 0 || bytes > kRequestLimit) {
    refuse(field, " is ", bytes, "; expected a multiple of quantum_bytes (", quantum_bytes,
           ") from there to 1 EB");
  }
}

void validate_sizes(const Config& c) {
  if (!std::has_single_bit(c.quantum_bytes) || c.quantum_bytes < 16 || c.quantum_bytes > kMiB) {
    refuse("quantum_bytes is ", c.quantum_bytes, "; expected a power of two from 16 to 1048576");
  }
  if (c.pad_bytes > kMiB) refuse("pad_bytes is ", c.pad_bytes, "; expected 0 to 1048576");
  validate_multiple("small_limit_bytes", c.small_limit_bytes, c.quantum_bytes);
  validate_multiple("small_segment_bytes", c.small_segment_bytes, c.quantum_bytes);
  validate_multiple("large_segment_bytes", c.large_segment_bytes, c.quantum_bytes);
  validate_multiple("large_limit_bytes", c.large_limit_bytes, c.quantum_bytes);
  validate_multiple("large_round_bytes", c.large_round_bytes, c.quantum_bytes);
  if (c.small_segment_bytes < c.small_limit_bytes) {
    refuse("small_segment_bytes is ", c.small_segment_bytes,
           "; expected at least small_limit_bytes (", c.small_limit_bytes, ")");
  }
  if (c.large_limit_bytes > c.large_segment_bytes) {
    refuse("large_segment_size_mb is ", megabytes(c.large_segment_bytes), "; expected more than ",
           megabytes(c.large_limit_bytes));
  }
}

void validate_reuse(const Config& c) {
  if (c.large_remainder_bytes > kRequestLimit) {
    refuse("large_remainder_bytes is ", c.large_remainder_bytes, "; expected at most 1 EB");
  }
  if (c.max_split_bytes < c.large_segment_bytes) {
    refuse("max_split_size_mb is ", megabytes(c.max_split_bytes),
           "; expected at least large_segment_size_mb (", megabytes(c.large_segment_bytes),
           ") or no limit");
  }
  if (c.max_non_split_rounding_bytes < c.large_segment_bytes ||
      c.max_non_split_rounding_bytes > kRequestLimit) {
    refuse("max_non_split_rounding_mb is ", megabytes(c.max_non_split_rounding_bytes),
           "; expected large_segment_size_mb (", megabytes(c.large_segment_bytes), ") to 1 EB");
  }
  for (std::size_t divisions : c.roundup_power2_divisions) {
    if (divisions != 0 && (!std::has_single_bit(divisions) || divisions > kGiB)) {
      refuse("roundup_power2_divisions has ", divisions,
             "; expected 0 or a power of two up to 2^30");
    }
  }
}

bool is_fraction(double value) { return value >= 0.0 && value <= 1.0; }  // NaN is none

}  // namespace

Config validate(Config config) {
  validate_sizes(config);
  validate_reuse(config);
  if (!is_fraction(config.memory_fraction)) {
    refuse("memory_fraction is ", config.memory_fraction, "; expected 0 to 1");
  }
  if (!(config.garbage_collection_threshold >= 0.0 && config.garbage_collection_threshold < 1.0)) {
    refuse("garbage_collection_threshold is ", config.garbage_collection_threshold,
           "; expected 0 (off) up to, not including, 1");
  }
  return config;
}

std::size_t fraction_limit(double fraction, std::size_t capacity_bytes) {
  if (!is_fraction(fraction)) {
    throw InvalidArgument("memory fraction is " + std::to_string(fraction) + "; expected 0 to 1");
  }
  if (fraction == 1.0) return kUnlimited;
  return static_cast<std::size_t>(std::llround(fraction * static_cast<double>(capacity_bytes)));
}

Config preset(std::string_view name) {
  Config config;
  if (name == "npusim") return config;
  config.quantum_bytes = 512;
  config.search_after_sync = false;
  config.oversize_rules_on_expandable = true;
  if (name == "cuda-2.13") return config;
  config.tie_break = TieBreak::creation;
  config.defers_in_pool_scopes = true;
  if (name == "cuda-2.12") return config;
  config.tie_break = TieBreak::address;
  if (name == "cuda-2.11") return config;
  if (name == "ascend") {
    config.pad_bytes = 32;
    return config;
  }
  config.divisions_rest_with_last = true;
  if (name == "cuda-2.9") return config;
  config.expandable_in_pools = false;
  if (name == "cuda-2.4") return config;
  refuse("preset is \"", name,
         "\"; expected npusim, cuda-2.13, cuda-2.12, cuda-2.11, cuda-2.9, cuda-2.4 or ascend");
}

std::optional<std::size_t> round_request(const Config& config, std::size_t bytes) noexcept {
  if (bytes >= kRequestLimit && config.refuse_over_one_exabyte) return std::nullopt;
  const std::size_t padded = std::max<std::size_t>(bytes + config.pad_bytes, 1);
  const int log2 = static_cast<int>(std::bit_width(padded)) - 1;
  const auto entry = static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15));
  const std::size_t divisions = config.roundup_power2_divisions[entry];
  if (divisions > 1 && padded > config.quantum_bytes * divisions) {
    if (std::has_single_bit(padded)) return padded;
    const std::size_t power = std::bit_floor(padded);
    const std::size_t step = power / divisions;
    return (padded + step - 1) & ~(step - 1);
  }
  return (padded + config.quantum_bytes - 1) & ~(config.quantum_bytes - 1);
}

bool rounds_plainly(const Config& config) noexcept {
  return std::all_of(config.roundup_power2_divisions.begin(), config.roundup_power2_divisions.end(),
                     [](std::size_t divisions) { return divisions <= 1; });
}

std::size_t segment_bytes_for(const Config& config, std::size_t rounded_bytes) noexcept {
  if (rounded_bytes <= config.small_limit_bytes) return config.small_segment_bytes;
  if (rounded_bytes < config.large_limit_bytes) return config.large_segment_bytes;
  return round_up(rounded_bytes, config.large_round_bytes);
}

bool should_split(const Config& config, bool splits_finely, std::size_t block_bytes,
                  std::size_t rounded_bytes) noexcept {
  const std::size_t remainder = block_bytes - rounded_bytes;
  if (splits_finely) return remainder >= config.quantum_bytes;
  return rounded_bytes < config.max_split_bytes && remainder > config.large_remainder_bytes;
}

bool may_use(const Config& config, std::size_t block_bytes, std::size_t rounded_bytes) noexcept {
  if (rounded_bytes < config.max_split_bytes) return block_bytes < config.max_split_bytes;
  return block_bytes - rounded_bytes < config.max_non_split_rounding_bytes;
}

}  // namespace npusim::alloc
