// SPDX-License-Identifier: BSD-3-Clause
// The pure rules: rounding, segment sizes, presets, and the importer of PYTORCH_ALLOC_CONF.
// Expected numbers come from the published behaviour of upstream, not from the code under test.
#include "allocator/config.h"
#include "allocator/error.h"
#include "tests/native/check.h"

using namespace npusim::alloc;

namespace {

std::string error_of(std::string_view text) {
  try {
    parse_config(Config{}, text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(rounds_to_the_quantum) {
  const Config npusim = preset("npusim");
  CHECK_EQ(*round_request(npusim, 1), 32);
  CHECK_EQ(*round_request(npusim, 32), 32);
  CHECK_EQ(*round_request(npusim, 33), 64);
  const Config cuda = preset("cuda-2.13");
  CHECK_EQ(*round_request(cuda, 1), 512);
  CHECK_EQ(*round_request(cuda, 513), 1024);
}

TEST(pad_comes_before_rounding) {
  Config config = preset("cuda-2.13");
  config.pad_bytes = 32;
  CHECK_EQ(*round_request(config, 480), 512);
  CHECK_EQ(*round_request(config, 481), 1024);
}

TEST(power_of_two_divisions) {
  Config config = preset("cuda-2.13");
  config.roundup_power2_divisions.fill(4);
  CHECK_EQ(*round_request(config, 1200), 1536);  // not above 512 * 4: the quantum
  CHECK_EQ(*round_request(config, 4096), 4096);  // powers of two stay
  CHECK_EQ(*round_request(config, 4097), 5120);  // 4096, 5120, 6144, 7168
  CHECK_EQ(*round_request(config, 7169), 8192);
  config.quantum_bytes = 32;
  CHECK_EQ(*round_request(config, 1200), 1280);
}

TEST(sizes_up_to_the_largest_do_not_wrap) {
  const Config config = preset("npusim");
  for (int k = 1; k < 64; ++k) {
    for (int offset : {-1, 0, 1}) {
      const std::size_t bytes = (std::size_t{1} << k) + static_cast<std::size_t>(offset);
      const auto rounded = round_request(config, bytes);
      CHECK_EQ(rounded.has_value(), bytes < kRequestLimit);
      if (rounded) CHECK(*rounded >= bytes && segment_bytes_for(config, *rounded) >= *rounded);
    }
  }
  for (std::size_t below = 0; below < 600; ++below) CHECK(!round_request(config, ~below));
}

TEST(segment_sizes) {
  const Config config = preset("cuda-2.13");
  CHECK_EQ(segment_bytes_for(config, 512), 2 * kMiB);
  CHECK_EQ(segment_bytes_for(config, kMiB), 2 * kMiB);
  CHECK_EQ(segment_bytes_for(config, kMiB + 512), 20 * kMiB);
  CHECK_EQ(segment_bytes_for(config, 10 * kMiB - 512), 20 * kMiB);
  CHECK_EQ(segment_bytes_for(config, 10 * kMiB), 10 * kMiB);
  CHECK_EQ(segment_bytes_for(config, 10 * kMiB + 512), 12 * kMiB);
}

TEST(split_and_reuse_rules) {
  Config config = preset("cuda-2.13");
  CHECK(should_split(config, true, 1024, 512));
  CHECK(!should_split(config, true, 1024, 1024));
  CHECK(!should_split(config, false, 3 * kMiB, 2 * kMiB));  // the remainder must exceed 1 MiB
  CHECK(should_split(config, false, 3 * kMiB + 512, 2 * kMiB));
  config.max_split_bytes = 64 * kMiB;
  CHECK(!may_use(config, 64 * kMiB, 2 * kMiB));
  CHECK(may_use(config, 83 * kMiB, 64 * kMiB));
  CHECK(!may_use(config, 84 * kMiB, 64 * kMiB));
  CHECK(!should_split(config, false, 80 * kMiB, 64 * kMiB));
}

TEST(presets) {
  CHECK(preset("npusim") == Config{});
  CHECK_EQ(preset("cuda-2.13").quantum_bytes, 512);
  CHECK(!preset("cuda-2.13").search_after_sync);
  CHECK_EQ(preset("cuda-2.13").tie_break, TieBreak::registration);
  CHECK(!preset("cuda-2.13").defers_in_pool_scopes);
  CHECK_EQ(preset("cuda-2.12").tie_break, TieBreak::creation);
  CHECK(preset("cuda-2.12").defers_in_pool_scopes);
  CHECK_EQ(preset("cuda-2.11").tie_break, TieBreak::address);
  CHECK(preset("cuda-2.11").defers_in_pool_scopes);
  CHECK_THROWS(preset("cuda-9"), InvalidArgument);
  CHECK(preset("cuda-2.11").expandable_in_pools);
  CHECK(preset("cuda-2.9").expandable_in_pools);
  CHECK(!preset("cuda-2.4").expandable_in_pools);
  const char* list = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
  const auto of_a_gibibyte = [&](const char* name) {
    return parse_config(preset(name), list).roundup_power2_divisions[10];
  };
  CHECK_EQ(of_a_gibibyte("cuda-2.11"), 4);
  CHECK_EQ(of_a_gibibyte("ascend"), 4);
  CHECK_EQ(of_a_gibibyte("cuda-2.9"), 8);
  CHECK_EQ(of_a_gibibyte("cuda-2.4"), 8);
}

TEST(parses_what_upstream_accepts) {
  std::vector<std::string> skipped;
  const Config config =
      parse_config(Config{},
                   "max_split_size_mb:128, garbage_collection_threshold:0.8,"
                   "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:False,"
                   "pinned_use_background_threads:True,backend:native",
                   &skipped);
  CHECK_EQ(config.max_split_bytes, 128 * kMiB);
  CHECK_EQ(config.garbage_collection_threshold, 0.8);
  const std::array<std::size_t, 16> table{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8};
  CHECK(config.roundup_power2_divisions == table);
  CHECK_EQ(skipped.size(), 1);
  CHECK(parse_config(config, "") == config);
  CHECK_EQ(parse_config(Config{}, "roundup_power2_divisions:[>:4]").roundup_power2_divisions[0], 0);
  CHECK_EQ(parse_config(Config{}, "roundup_power2_divisions:8").roundup_power2_divisions[15], 8);
  // The rounding limit follows the segment size, wherever the keys stand.
  CHECK_EQ(parse_config(Config{}, "large_segment_size_mb:40").max_non_split_rounding_bytes,
           40 * kMiB);
}

TEST(parses_our_own_keys) {
  const Config config = parse_config(
      Config{},
      "quantum_bytes:512,pad_bytes:32,fit:first,tie_break:creation,search_after_sync:False,"
      "defers_in_pool_scopes:True");
  CHECK_EQ(config.quantum_bytes, 512);
  CHECK_EQ(config.pad_bytes, 32);
  CHECK_EQ(config.fit, Fit::first);
  CHECK_EQ(config.tie_break, TieBreak::creation);
  CHECK(config.defers_in_pool_scopes);
  CHECK(!config.search_after_sync);
}

TEST(bad_settings_are_named) {
  CHECK(mentions(error_of("max_split_size_mb:19"),
                 "max_split_size_mb is 19; expected at least large_segment_size_mb (20)"));
  CHECK(mentions(error_of("max_split_size_mb:-1"), "max_split_size_mb is \"-1\""));
  CHECK(mentions(error_of("max_split_size_mb:99999999999999999999"), "max_split_size_mb"));
  CHECK(mentions(error_of("max_split_size_mb=128"), "expected key:value"));
  CHECK(mentions(error_of("max_split_size_mb:128,,"), "expected key:value"));
  CHECK(mentions(error_of("expandable_segments:true"), "True or False"));
  CHECK(mentions(error_of("backend:cudaMallocAsync"), "backend"));
  CHECK(mentions(error_of("max_splt_size_mb:128"), "max_splt_size_mb"));
  CHECK(mentions(error_of("garbage_collection_threshold:1.5"), "0 (off) up to"));
  CHECK(mentions(error_of("garbage_collection_threshold:nan"), "0 (off) up to"));
  CHECK(mentions(error_of("roundup_power2_divisions:3"), "power of two"));
  CHECK(mentions(error_of("roundup_power2_divisions:[100:2]"), "power of two"));
  CHECK(mentions(error_of("roundup_power2_divisions:[]"), "power of two"));
  CHECK(mentions(error_of("roundup_power2_divisions:[256:2"), "expected"));
  CHECK(mentions(error_of("quantum_bytes:48"), "power of two"));
  CHECK(mentions(error_of("fit:worst"), "best or first"));
  CHECK(mentions(error_of("large_segment_size_mb:5"),
                 "large_segment_size_mb is 5; expected more than 10"));
}

TEST(a_memory_fraction_is_of_the_capacity) {
  CHECK_EQ(fraction_limit(1.0, 1001), kUnlimited);
  CHECK_EQ(fraction_limit(0.5, 1001), 501);
  CHECK_EQ(fraction_limit(0.0, 1001), 0);
  for (const double fraction : {-0.25, 1.25, std::numeric_limits<double>::quiet_NaN()}) {
    std::string refused;
    try {
      fraction_limit(fraction, 1001);
    } catch (const InvalidArgument& error) {
      refused = error.what();
    }
    CHECK_EQ(refused, "memory fraction is " + std::to_string(fraction) + "; expected 0 to 1");
  }
}
