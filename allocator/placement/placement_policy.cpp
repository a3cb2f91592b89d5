// SPDX-License-Identifier: BSD-3-Clause
// Settings of policies, and the table of those that need nothing but a device.
#include "allocator/placement/placement_policy.h"

#include <charconv>
#include <sstream>

#include "allocator/error.h"
#include "allocator/placement/policies.h"

namespace npusim::alloc {
namespace {

struct Entry {
  PolicyName name;
  PolicyPointer (*make)(PolicySettings&, PlacementDevice&);
};

constexpr Entry fit(std::string_view name, std::string_view what,
                    PolicyPointer (*make)(PolicySettings&, PlacementDevice&)) {
  return {.name = {.name = name, .what = what, .ignores_streams = true, .has_arenas = true},
          .make = make};
}

constexpr Entry kPolicies[] = {
    {.name = {.name = "bfc",
              .what = "TensorFlow's best fit with coalescing: bins by powers of two, doubling "
                      "regions",
              .ignores_streams = true},
     .make = make_bfc_policy},
    {.name = {.name = "buddy",
              .what = "binary buddies: sizes are powers of two, halves split and merge",
              .ignores_streams = true,
              .has_arenas = true},
     .make = make_buddy_policy},
    {.name = {.name = "banked",
              .what = "best fit for interleaved banks: blocks in use together start in different "
                      "banks",
              .ignores_streams = true},
     .make = make_banked_policy},
    fit("best-fit", "the smallest free range that is large enough", make_best_fit_policy),
    fit("first-fit", "the lowest free range that is large enough", make_first_fit_policy),
    fit("next-fit", "first fit from where the last request ended", make_next_fit_policy),
    fit("tlsf", "two-level segregated fit: 32 classes of sizes to a doubling, constant time",
        make_tlsf_policy),
    fit("bins", "segregated free lists: four classes to a doubling, no splitting, no merging",
        make_bins_policy),
};

const Entry* find_entry(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name.name == name) return &entry;
  }
  return nullptr;
}

bool is_path(std::string_view name) { return name.find('/') != std::string_view::npos; }

}  // namespace

PolicySettings::PolicySettings(std::string_view policy, std::string_view text) : policy_(policy) {
  std::stringstream items{std::string(text)};
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t colon = item.find(':');
    if (colon == std::string::npos || colon == 0) {
      throw InvalidArgument("policy " + policy_ + ": \"" + item +
                            "\"; expected key:value pairs separated by commas");
    }
    values_[item.substr(0, colon)] = item.substr(colon + 1);
  }
}

std::string PolicySettings::word(const std::string& key, const std::string& otherwise) {
  known_.push_back(key);
  const auto it = values_.find(key);
  if (it == values_.end()) return otherwise;
  std::string text = std::move(it->second);
  values_.erase(it);
  return text;
}

std::uint64_t PolicySettings::whole(const std::string& key, const std::string& text,
                                    std::uint64_t least, std::uint64_t most,
                                    const std::string& expected) const {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    throw InvalidArgument("policy " + policy_ + ": " + key + " is \"" + text + "\"; expected " +
                          expected + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

std::uint64_t PolicySettings::number(const std::string& key, std::uint64_t otherwise,
                                     std::uint64_t least, std::uint64_t most) {
  return whole(key, word(key, std::to_string(otherwise)), least, most);
}

void PolicySettings::finish() const {
  if (values_.empty()) return;
  std::string known;
  for (const std::string& key : known_) known += (known.empty() ? "" : ", ") + key;
  throw InvalidArgument("policy " + policy_ + ": \"" + values_.begin()->first +
                        "\" is not a key; expected " +
                        (known.empty() ? "no settings" : "one of " + known));
}

void release_lent(PlacementDevice& device, Address address) {
  const auto it = device.lent().find(address);
  if (it == device.lent().end()) {
    device.refuse("releases " + std::to_string(address) +
                  ", which acquire() did not return, or which is released already");
    return;
  }
  device.release_segment(address, it->second);
}

std::vector<PolicyName> live_policies() {
  std::vector<PolicyName> names;
  for (const Entry& entry : kPolicies) names.push_back(entry.name);
  return names;
}

bool is_live_policy(std::string_view name) { return is_path(name) || find_entry(name); }

std::unique_ptr<PlacementPolicy> make_live_policy(std::string_view name, std::string_view settings,
                                                  PlacementDevice& device) {
  if (is_path(name)) return load_policy(name, settings, device);
  const Entry* entry = find_entry(name);
  if (!entry) reject_live_policy(name);
  PolicySettings parsed(name, settings);
  auto policy = entry->make(parsed, device);
  parsed.finish();
  return policy;
}

void reject_policy(std::string_view name, std::span<const PolicyName> known) {
  std::string names = "npusim, cuda-2.13, cuda-2.12, cuda-2.11, cuda-2.9, cuda-2.4, ascend";
  for (const PolicyName& policy : known) names += ", " + std::string(policy.name);
  throw InvalidArgument("policy is \"" + std::string(name) + "\"; expected one of " + names +
                        ", or the path of a shared library (with a /)");
}

void reject_live_policy(std::string_view name) { reject_policy(name, live_policies()); }

}  // namespace npusim::alloc
