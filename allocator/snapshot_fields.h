// SPDX-License-Identifier: BSD-3-Clause
// The names and values of torch's memory dictionaries, once, for whoever makes dictionaries of
// them: for_each_field(thing, put) calls put("name", value) in torch's order. Values are integers,
// bools, doubles, texts, PoolId and std::array of integers; frames and lists of blocks are the
// caller's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "allocator/config.h"
#include "allocator/snapshot.h"
#include "allocator/stats.h"

namespace npusim::alloc {

constexpr std::string_view tie_break_name(TieBreak tie_break) noexcept {
  switch (tie_break) {
    case TieBreak::address:
      return "address";
    case TieBreak::creation:
      return "creation";
    default:
      return "registration";
  }
}

// An entry of `blocks` in a segment.
template <class Put>
void for_each_field(const BlockInfo& block, const Put& put) {
  put("address", block.address);
  put("size", block.bytes);
  put("requested_size", block.requested_bytes);
  put("state", std::string_view(state_name(block.state)));
}

// An entry of `segments`.
template <class Put>
void for_each_field(const SegmentInfo& segment, int device, const Put& put) {
  put("device", device);
  put("address", segment.address);
  put("total_size", segment.total_bytes);
  put("allocated_size", segment.allocated_bytes);
  put("active_size", segment.active_bytes);
  put("requested_size", segment.requested_bytes);
  put("stream", segment.stream);
  put("segment_type", std::string_view(segment.is_large ? "large" : "small"));
  put("segment_pool_id", segment.pool);
  put("is_expandable", segment.is_expandable);
}

// An entry of `device_traces`.
template <class Put>
void for_each_field(const HistoryEntry& entry, const Put& put) {
  put("action", std::string_view(action_name(entry.action)));
  put(entry.action == HistoryAction::oom ? "device_free" : "addr", entry.address);
  put("size", entry.bytes);
  put("stream", entry.stream);
  put("time_us", entry.time_ns / 1000);
  put("compile_context", std::string_view("N/A"));
  put("user_metadata", std::string_view());
  put("pool_id", entry.pool);
}

// One statistic, under flat names: "<name>.current" and so on.
template <class Put>
void for_each_field(const std::string& name, const Stat& stat, const Put& put) {
  put(name + ".current", stat.current);
  put(name + ".peak", stat.peak);
  put(name + ".allocated", stat.allocated);
  put(name + ".freed", stat.freed);
}

// One by pool: "<name>.all.current" and so on.
template <class Put>
void for_each_field(const std::string& name, const StatArray& pools, const Put& put) {
  for_each_field(name + ".all", pools[PoolKind::all], put);
  for_each_field(name + ".small_pool", pools[PoolKind::small_pool], put);
  for_each_field(name + ".large_pool", pools[PoolKind::large_pool], put);
}

// Statistics, under the flat names of torch.cuda.memory_stats(): "active.all.current" and so on.
template <class Put>
void for_each_field(const Stats& stats, const Put& put) {
  const auto put_stat = [&put](const char* name, const Stat& stat) {
    for_each_field(name, stat, put);
  };
  const auto put_array = [&put](const char* name, const StatArray& pools) {
    for_each_field(name, pools, put);
  };
  put_array("allocation", stats.allocation);
  put_array("segment", stats.segment);
  put_array("active", stats.active);
  put_array("inactive_split", stats.inactive_split);
  put_array("allocated_bytes", stats.allocated_bytes);
  put_array("reserved_bytes", stats.reserved_bytes);
  put_array("active_bytes", stats.active_bytes);
  put_array("inactive_split_bytes", stats.inactive_split_bytes);
  put_array("requested_bytes", stats.requested_bytes);
  put_stat("oversize_allocations", stats.oversize_allocations);
  put_stat("oversize_segments", stats.oversize_segments);
  put("num_alloc_retries", stats.num_alloc_retries);
  put("num_ooms", stats.num_ooms);
  put("num_sync_all_streams", stats.num_sync_all_streams);
  put("num_device_alloc", stats.num_device_alloc);
  put("num_device_free", stats.num_device_free);
  put("max_split_size", stats.max_split_bytes);
}

// The rules, under the names of config.h; no limit is an empty optional.
template <class Put>
void for_each_field(const Config& config, const Put& put) {
  put("quantum_bytes", config.quantum_bytes);
  put("pad_bytes", config.pad_bytes);
  put("roundup_power2_divisions", config.roundup_power2_divisions);
  put("small_limit_bytes", config.small_limit_bytes);
  put("small_segment_bytes", config.small_segment_bytes);
  put("large_segment_bytes", config.large_segment_bytes);
  put("large_limit_bytes", config.large_limit_bytes);
  put("large_round_bytes", config.large_round_bytes);
  put("large_remainder_bytes", config.large_remainder_bytes);
  put("max_split_bytes", config.max_split_bytes == kUnlimited
                             ? std::optional<std::size_t>()
                             : std::optional(config.max_split_bytes));
  put("max_non_split_rounding_bytes", config.max_non_split_rounding_bytes);
  put("fit", std::string_view(config.fit == Fit::best ? "best" : "first"));
  put("tie_break", tie_break_name(config.tie_break));
  put("memory_fraction", config.memory_fraction);
  put("garbage_collection_threshold", config.garbage_collection_threshold);
  put("expandable_segments", config.expandable_segments);
  put("divisions_rest_with_last", config.divisions_rest_with_last);
  put("expandable_in_pools", config.expandable_in_pools);
  put("oversize_rules_on_expandable", config.oversize_rules_on_expandable);
  put("refuse_over_one_exabyte", config.refuse_over_one_exabyte);
  put("search_after_sync", config.search_after_sync);
  put("defers_in_pool_scopes", config.defers_in_pool_scopes);
}

}  // namespace npusim::alloc
