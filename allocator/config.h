// SPDX-License-Identifier: BSD-3-Clause
// The rules of the caching allocator as one value, and the pure functions that follow from it.
// Invariant: a Config that reached an allocator has passed validate().
// CachingAllocator, the lab and the tests read it; names in quotes below are PyTorch's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace npusim::alloc {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;
inline constexpr std::size_t kGiB = 1024 * kMiB;
inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t kRequestLimit = std::size_t{1} << 60;  // 1 EB: refused before rounding

enum class Fit : std::uint8_t {
  best,   // the smallest free block that is large enough; TieBreak among equals
  first,  // the first free block in TieBreak order that is large enough
};

enum class TieBreak : std::uint8_t {
  address,       // up to 2.11: lower address first
  creation,      // 2.12: the block whose record is older first; what a split cuts off is newer
  registration,  // from 2.13: older segment first, then lower address
};

struct Config {
  // Rounding. Every block is a multiple of the quantum; pad is added to a request before rounding.
  std::size_t quantum_bytes = 32;
  std::size_t pad_bytes = 0;
  // Entry i holds for requests of [2^(20+i), 2^(21+i)) bytes, entry 0 also below, entry 15 also
  // above: round up to one of that many steps between two powers of two. 0 and 1 mean off.
  std::array<std::size_t, 16> roundup_power2_divisions{};

  // Pools and segments. A rounded request up to small_limit goes to the small pool.
  std::size_t small_limit_bytes = kMiB;
  std::size_t small_segment_bytes = 2 * kMiB;
  std::size_t large_segment_bytes = 20 * kMiB;  // for requests below large_limit
  std::size_t large_limit_bytes =
      10 * kMiB;  // from here on: own segment, rounded up to large_round
  std::size_t large_round_bytes = 2 * kMiB;

  // Splitting and reuse. The small pool splits when at least one quantum remains, the large pool
  // when more than large_remainder does. Blocks of max_split and more are never split.
  std::size_t large_remainder_bytes = kMiB;
  std::size_t max_split_bytes = kUnlimited;
  std::size_t max_non_split_rounding_bytes = 20 * kMiB;
  Fit fit = Fit::best;
  TieBreak tie_break = TieBreak::registration;

  // Limits. The fraction is of the capacity of the device; 1 is no limit. Garbage collection works
  // only under a fraction below 1, as upstream; 0 is off.
  double memory_fraction = 1.0;
  double garbage_collection_threshold = 0.0;

  // Expandable segments: ranges of addresses that grow and shrink by pages (of small_segment and
  // large_segment bytes) instead of segments of fixed size. The provider must be able to map.
  bool expandable_segments = false;
  // Up to 2.4 private pools take segments of fixed size all the same.
  bool expandable_in_pools = true;

  // Up to 2.9 what a list of divisions says of the rest (">") holds for its last size, too.
  bool divisions_rest_with_last = false;

  // Defects of upstream, each with the value that repairs it as the default.
  // It applies the max_split rules to expandable blocks too, which then are not reused although
  // they could be split (pytorch #193400, #123548). False repairs it.
  bool oversize_rules_on_expandable = false;

  // A request of nearly 2^64 bytes that does not pass through torch's own check wraps to 0 when
  // rounded (pytorch #182446). False lets such requests through, as upstream's raw_alloc().
  bool refuse_over_one_exabyte = true;

  // Upstream does not search the pool again after it has waited for pending frees, and so can
  // report running out although the memory just came back (pytorch #189504). True repairs it.
  bool search_after_sync = true;

  // While anything allocates to a private pool (enter_pool_scope()), upstream up to 2.12 looks at
  // no pending free, sets no mark for a new one, and gives nothing back before it runs out. Of a
  // block freed there it forgets the streams recorded there. False repairs it.
  bool defers_in_pool_scopes = false;

  bool operator==(const Config&) const = default;
};

// validate() returns its argument or throws InvalidArgument naming field, value and rule.
Config validate(Config config);

// fraction_limit() is the bytes that a memory fraction allows of a capacity, kUnlimited for 1.
// Throws InvalidArgument unless the fraction is from 0 to 1.
std::size_t fraction_limit(double fraction, std::size_t capacity_bytes);

// preset() knows "npusim" (the defaults), "cuda-2.13", "cuda-2.12", "cuda-2.11", "cuda-2.9"
// and "cuda-2.4" (quantum 512, upstream defects as they are; the request limit is there, because
// torch has it), and "ascend" (as cuda-2.11 with 32 bytes added to each request). Any other name
// throws InvalidArgument.
Config preset(std::string_view name);

// parse_config() applies text in the syntax of PYTORCH_ALLOC_CONF ("key:value,key:value") to a base
// and validates the result; nothing of a bad text is applied. Keys: upstream's that mean something
// here (large_segment_size_mb, max_split_size_mb, max_non_split_rounding_mb,
// garbage_collection_threshold, roundup_power2_divisions, per_process_memory_fraction,
// expandable_segments, backend:native) and our own (quantum_bytes, pad_bytes, fit, tie_break,
// search_after_sync, defers_in_pool_scopes, expandable_in_pools, oversize_rules_on_expandable,
// refuse_over_one_exabyte, divisions_rest_with_last: before the list).
// Keys that belong to the host allocator (pinned_*) or change no placement go to `skipped`.
Config parse_config(const Config& base, std::string_view text,
                    std::vector<std::string>* skipped = nullptr);

// followed_by() is one text for two that are set one after the other, as upstream reads them: the
// later one switches off limits of splits, divisions and the threshold of collection.
std::string followed_by(std::string_view earlier, std::string_view later);

// round_request() is the block size for a request: pad, power-of-two divisions, quantum. Nothing
// where the request is 1 EB or more; then no arithmetic wraps.
std::optional<std::size_t> round_request(const Config& config, std::size_t bytes) noexcept;

// rounds_plainly() says whether pad and quantum are all there is to rounding.
bool rounds_plainly(const Config& config) noexcept;

// segment_bytes_for() is the size of the segment bought for a rounded request.
std::size_t segment_bytes_for(const Config& config, std::size_t rounded_bytes) noexcept;

// should_split() says whether a free block of block_bytes, chosen for rounded_bytes, is cut in two.
// The small pool and expandable segments split finely: wherever a quantum remains.
bool should_split(const Config& config, bool splits_finely, std::size_t block_bytes,
                  std::size_t rounded_bytes) noexcept;

// may_use() says whether a free block that is large enough is not too large (max_split rules).
bool may_use(const Config& config, std::size_t block_bytes, std::size_t rounded_bytes) noexcept;

}  // namespace npusim::alloc
