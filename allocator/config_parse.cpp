// SPDX-License-Identifier: BSD-3-Clause
// parse_config(): PYTORCH_ALLOC_CONF as an importer. Where upstream's parser asserts, wraps or
// leaves a half-applied text behind, this one names the key and the value and applies nothing.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "allocator/config.h"
#include "allocator/error.h"

namespace npusim::alloc {
namespace {

struct Setting {
  std::string key;
  std::string value;
};

[[noreturn]] void reject(const Setting& setting, std::string_view expected) {
  std::ostringstream text;
  text << "allocator config: " << setting.key << " is \"" << setting.value << "\"; expected "
       << expected;
  throw InvalidArgument(text.str());
}

std::size_t parse_number(const Setting& setting, std::string_view digits,
                         std::string_view expected) {
  std::size_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || stop != end) reject(setting, expected);
  return number;
}

std::size_t parse_megabytes(const Setting& setting) {
  constexpr std::string_view expected = "a whole number of MiB below 2^40";
  const std::size_t number = parse_number(setting, setting.value, expected);
  if (number >= std::size_t{1} << 40) reject(setting, expected);
  return number * kMiB;
}

double parse_fraction(const Setting& setting) {
  char* end = nullptr;
  const double number = std::strtod(setting.value.c_str(), &end);
  if (setting.value.empty() || *end != '\0') reject(setting, "a number from 0 to 1");
  return number;
}

bool parse_bool(const Setting& setting) {
  if (setting.value != "True" && setting.value != "False") reject(setting, "True or False");
  return setting.value == "True";
}

// choose() maps the words of a key to its values, in order: {word, value}, ...
template <class T>
T choose(const Setting& setting, std::initializer_list<std::pair<std::string_view, T>> options) {
  std::string expected;
  for (const auto& [word, value] : options) {
    if (setting.value == word) return value;
    expected += (expected.empty() ? "" : " or ") + std::string(word);
  }
  reject(setting, expected);
}

// One number fills the table. A list names thresholds in MiB: key k holds from k MiB on, the first
// key also below it, and ">" for the rest of the table.
std::array<std::size_t, 16> parse_divisions(const Setting& setting, bool rest_with_last) {
  constexpr std::string_view expected =
      "a power of two, or a list such as [256:1,512:2,>:8] with powers of two as keys";
  std::array<std::size_t, 16> table{};
  std::string_view text = setting.value;
  if (!text.starts_with('[')) {
    table.fill(parse_number(setting, text, expected));
    if (!std::has_single_bit(table[0])) reject(setting, expected);
    return table;
  }
  if (!text.ends_with(']')) reject(setting, expected);
  text = text.substr(1, text.size() - 2);
  std::size_t last = 0;
  for (bool first = true; !text.empty() || first; first = false) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view pair = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t colon = pair.find(':');
    if (colon == std::string_view::npos) reject(setting, expected);
    const std::size_t divisions = parse_number(setting, pair.substr(colon + 1), expected);
    if (divisions != 0 && !std::has_single_bit(divisions)) reject(setting, expected);
    if (pair.substr(0, colon) == ">") {
      std::fill(table.begin() + static_cast<std::ptrdiff_t>(last + (rest_with_last ? 0 : 1)),
                table.end(), divisions);
      continue;
    }
    const std::size_t threshold = parse_number(setting, pair.substr(0, colon), expected);
    if (!std::has_single_bit(threshold)) reject(setting, expected);
    const auto entry =
        std::min<std::size_t>(static_cast<std::size_t>(std::countr_zero(threshold)), 15);
    if (first)
      std::fill(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(entry), divisions);
    table[entry] = divisions;
    last = entry;
  }
  return table;
}

void refuse(const Setting& setting, bool harmless) {
  if (!harmless) {
    reject(setting, "nothing else here: this allocator has no such mode; remove the key");
  }
}

// Keys of the host allocator and of what takes no time here; their values are checked.
bool is_of_no_effect(const Setting& s) {
  if (s.key == "pinned_num_register_threads") {
    constexpr std::string_view expected = "a power of two up to 128";
    const std::size_t threads = parse_number(s, s.value, expected);
    if (!std::has_single_bit(threads) || threads > 128) reject(s, expected);
    return true;
  }
  if (s.key.starts_with("pinned_use_") || s.key.starts_with("release_lock_on_") ||
      s.key == "graph_capture_record_stream_reuse") {
    parse_bool(s);
    return true;
  }
  return s.key.starts_with("pinned_");
}

void apply(Config& c, const Setting& s, std::vector<std::string>* skipped) {
  const std::string& key = s.key;
  if (key == "large_segment_size_mb") {
    c.large_segment_bytes = parse_megabytes(s);
  } else if (key == "max_split_size_mb") {
    c.max_split_bytes = parse_megabytes(s);
  } else if (key == "max_non_split_rounding_mb") {
    c.max_non_split_rounding_bytes = parse_megabytes(s);
  } else if (key == "garbage_collection_threshold") {
    c.garbage_collection_threshold = parse_fraction(s);
  } else if (key == "per_process_memory_fraction") {
    c.memory_fraction = parse_fraction(s);
  } else if (key == "roundup_power2_divisions") {
    c.roundup_power2_divisions = parse_divisions(s, c.divisions_rest_with_last);
  } else if (key == "quantum_bytes") {
    c.quantum_bytes = parse_number(s, s.value, "a power of two from 16 to 1048576");
  } else if (key == "pad_bytes") {
    c.pad_bytes = parse_number(s, s.value, "0 to 1048576");
  } else if (key == "fit") {
    c.fit = choose<Fit>(s, {{"best", Fit::best}, {"first", Fit::first}});
  } else if (key == "tie_break") {
    c.tie_break = choose<TieBreak>(s, {{"address", TieBreak::address},
                                       {"creation", TieBreak::creation},
                                       {"registration", TieBreak::registration}});
  } else if (key == "defers_in_pool_scopes") {
    c.defers_in_pool_scopes = parse_bool(s);
  } else if (key == "divisions_rest_with_last") {
    c.divisions_rest_with_last = parse_bool(s);
  } else if (key == "expandable_in_pools") {
    c.expandable_in_pools = parse_bool(s);
  } else if (key == "search_after_sync") {
    c.search_after_sync = parse_bool(s);
  } else if (key == "oversize_rules_on_expandable") {
    c.oversize_rules_on_expandable = parse_bool(s);
  } else if (key == "refuse_over_one_exabyte") {
    c.refuse_over_one_exabyte = parse_bool(s);
  } else if (key == "expandable_segments") {
    c.expandable_segments = parse_bool(s);
  } else if (key == "backend") {
    refuse(s, s.value == "native");
  } else if (is_of_no_effect(s)) {
    if (skipped) skipped->push_back(key);
  } else {
    throw InvalidArgument("allocator config: \"" + key +
                          "\" is not a key; expected one of backend, defers_in_pool_scopes, "
                          "divisions_rest_with_last, expandable_in_pools, "
                          "expandable_segments, fit, "
                          "garbage_collection_threshold, large_segment_size_mb, "
                          "max_non_split_rounding_mb, max_split_size_mb, "
                          "oversize_rules_on_expandable, pad_bytes, "
                          "per_process_memory_fraction, quantum_bytes, refuse_over_one_exabyte, "
                          "roundup_power2_divisions, search_after_sync, tie_break");
  }
}

// split() cuts the text at commas outside brackets. Blanks mean nothing anywhere.
std::vector<Setting> split(std::string_view raw) {
  std::string text;
  std::copy_if(raw.begin(), raw.end(), std::back_inserter(text),
               [](char c) { return c != ' ' && c != '\t' && c != '\n'; });
  std::vector<Setting> settings;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size() && !text.empty(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (i < text.size() && (text[i] != ',' || depth != 0)) continue;
    const std::string item = text.substr(begin, i - begin);
    const std::size_t colon = item.find(':');
    if (colon == std::string::npos || colon == 0) {
      throw InvalidArgument("allocator config: \"" + item + "\" in \"" + std::string(raw) +
                            "\"; expected key:value pairs separated by commas");
    }
    settings.push_back({item.substr(0, colon), item.substr(colon + 1)});
    begin = i + 1;
  }
  return settings;
}

}  // namespace

Config parse_config(const Config& base, std::string_view text, std::vector<std::string>* skipped) {
  Config config = base;
  bool sets_segment = false;
  bool sets_rounding = false;
  for (const Setting& setting : split(text)) {
    apply(config, setting, skipped);
    sets_segment |= setting.key == "large_segment_size_mb";
    sets_rounding |= setting.key == "max_non_split_rounding_mb";
  }
  // As upstream, the rounding limit follows the segment size unless it is given.
  if (sets_segment && !sets_rounding)
    config.max_non_split_rounding_bytes = config.large_segment_bytes;
  return validate(config);
}

std::string followed_by(std::string_view earlier, std::string_view later) {
  std::string text;
  for (const Setting& setting : split(earlier)) {
    if (setting.key != "max_split_size_mb" && setting.key != "roundup_power2_divisions" &&
        setting.key != "garbage_collection_threshold") {
      text += setting.key + ":" + setting.value + ",";
    }
  }
  text += later;
  if (later.empty() && !text.empty()) text.pop_back();
  return text;
}

}  // namespace npusim::alloc
