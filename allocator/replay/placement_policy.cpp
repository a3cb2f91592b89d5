// SPDX-License-Identifier: BSD-3-Clause
// Settings of policies, and the table of those that are built in.
#include "allocator/replay/placement_policy.h"

#include <charconv>
#include <sstream>

#include "allocator/error.h"
#include "allocator/replay/policies.h"

namespace npusim::alloc {
namespace {

using Maker = std::unique_ptr<PlacementPolicy> (*)(PolicySettings&, PlacementDevice&, const Trace&);

struct Entry {
  PolicyName name;
  Maker make;
  bool is_live;  // needs neither the trace nor a device that stitches
};

constexpr Entry kPolicies[] = {
    {{"bfc", "TensorFlow's best fit with coalescing: bins by powers of two, doubling regions"},
     make_bfc_policy,
     true},
    {{"buddy", "binary buddies: sizes are powers of two, halves split and merge"},
     make_buddy_policy,
     true},
    {{"stitching", "as GMLake: free physical pieces are stitched to one range of addresses"},
     make_stitching_policy,
     false},
    {{"banked", "best fit for interleaved banks: blocks in use together start in different banks"},
     make_banked_policy,
     true},
    {{"planned", "as STAlloc: offsets planned before the run, from the lifetimes in the trace"},
     make_planned_policy,
     false},
};

const Entry* find_entry(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name.name == name) return &entry;
  }
  return nullptr;
}

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

std::uint64_t PolicySettings::number(const std::string& key, std::uint64_t otherwise,
                                     std::uint64_t least, std::uint64_t most) {
  known_.push_back(key);
  const auto it = values_.find(key);
  if (it == values_.end()) return otherwise;
  const std::string& text = it->second;
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    throw InvalidArgument("policy " + policy_ + ": " + key + " is \"" + text + "\"; expected " +
                          std::to_string(least) + " to " + std::to_string(most));
  }
  values_.erase(it);
  return value;
}

void PolicySettings::finish() const {
  if (values_.empty()) return;
  std::string known;
  for (const std::string& key : known_) known += (known.empty() ? "" : ", ") + key;
  throw InvalidArgument("policy " + policy_ + ": \"" + values_.begin()->first +
                        "\" is not a key; expected " +
                        (known.empty() ? "no settings" : "one of " + known));
}

std::vector<PolicyName> built_in_policies() {
  std::vector<PolicyName> names;
  for (const Entry& entry : kPolicies) names.push_back(entry.name);
  return names;
}

bool is_live_policy(std::string_view name) {
  const auto* entry = find_entry(name);
  return name.find('/') != std::string_view::npos || (entry && entry->is_live);
}

std::unique_ptr<PlacementPolicy> make_live_policy(std::string_view name, std::string_view settings,
                                                  PlacementDevice& device) {
  if (!is_live_policy(name)) reject_live_policy(name);
  return make_policy(name, settings, device, Trace(EventColumns{}));
}

void reject_live_policy(std::string_view name) {
  std::string known = "npusim, cuda-2.13, cuda-2.11, ascend";
  for (const Entry& entry : kPolicies) {
    if (entry.is_live) known += ", " + std::string(entry.name.name);
  }
  throw InvalidArgument("policy is \"" + std::string(name) + "\"; expected one of " + known +
                        ", or the path of a shared library (with a /)");
}

std::unique_ptr<PlacementPolicy> make_policy(std::string_view name, std::string_view settings,
                                             PlacementDevice& device, const Trace& trace) {
  if (name.find('/') != std::string_view::npos) return load_policy(name, settings, device);
  if (const Entry* entry = find_entry(name)) {
    PolicySettings parsed(name, settings);
    auto policy = entry->make(parsed, device, trace);
    parsed.finish();
    return policy;
  }
  std::string known = "npusim, cuda-2.13, cuda-2.11, ascend";
  for (const Entry& entry : kPolicies) known += ", " + std::string(entry.name.name);
  throw InvalidArgument("policy is \"" + std::string(name) + "\"; expected one of " + known +
                        ", or the path of a shared library (with a /)");
}

}  // namespace npusim::alloc
