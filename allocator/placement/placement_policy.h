// SPDX-License-Identifier: BSD-3-Clause
// PlacementPolicy: what a policy of one's own implements, to be replayed (lab/engine/) or to run
// behind a live device (policy_allocator.h). The caller asks for one placement per request and
// gives it back when its memory is reusable; waiting for other streams, retrying after a failure
// and judging the answers are the caller's business:
//
//   malloc fails -> everything pending completes -> malloc again -> empty_cache -> malloc again
//
// Policies are found by name or in a shared library (policy_abi.h); a replay also takes one that is
// written in Python (lab/bindings/python_policy.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/placement/placement_device.h"
#include "allocator/provider.h"

namespace npusim::alloc {

constexpr std::uint64_t kStorageAlignment = 32;  // in bytes, of every placement (rule A1)

struct PlacementRequest {
  std::uint64_t bytes = 0;  // as requested
  std::uint32_t stream = 0;
  std::uint32_t pool = 0;    // 0 unless the trace has private pools; a policy may ignore it
  std::uint64_t number = 0;  // which malloc of the trace
};

struct Placement {
  Address address = 0;      // 0: out of memory
  std::uint64_t bytes = 0;  // what the policy set aside, the request included
};

class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  virtual Placement malloc(const PlacementRequest& request) = 0;
  virtual void free(const Placement& placement, const PlacementRequest& request) = 0;
  virtual void empty_cache() {}  // release what is free
  virtual void add_metrics(std::map<std::string, double>& /*metrics*/) const {}
};

// Settings of a policy, "key:value,...": read with number(), then finish() refuses what is left.
class PolicySettings {
 public:
  PolicySettings(std::string_view policy, std::string_view text);
  // number() is the value of a key, or `otherwise`. Throws InvalidArgument unless a whole number
  // from least to most.
  std::uint64_t number(const std::string& key, std::uint64_t otherwise, std::uint64_t least,
                       std::uint64_t most);
  // word() is the value of a key as it stands.
  std::string word(const std::string& key, const std::string& otherwise);
  // whole() is `text`, the value of a key. Throws InvalidArgument unless a number from least to
  // most.
  std::uint64_t whole(const std::string& key, const std::string& text, std::uint64_t least,
                      std::uint64_t most, const std::string& expected = {}) const;
  void finish() const;  // throws InvalidArgument naming keys that nobody read

 private:
  std::string policy_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
};

struct PolicyName {
  std::string_view name;
  std::string_view what;  // one line
  // What is freed on one stream goes to a request of another at once; safe only where the program
  // orders its streams itself.
  bool ignores_streams = false;
  bool has_arenas = false;  // its segments are what the setting `arena` says (arenas.h)
};

// live_policies() lists the policies that need nothing but a device. lab/engine/policies.h adds
// those that need the trace, or a device that stitches.
std::vector<PolicyName> live_policies();

// is_live_policy() is whether a name is one of those, or the path of a shared library.
// make_live_policy() makes it; the device must outlive it. Throws InvalidArgument.
bool is_live_policy(std::string_view name);
std::unique_ptr<PlacementPolicy> make_live_policy(std::string_view name, std::string_view settings,
                                                  PlacementDevice& device);

// The InvalidArgument for a name that is none of `known`, and no preset of the caching allocator.
[[noreturn]] void reject_policy(std::string_view name, std::span<const PolicyName> known);
[[noreturn]] void reject_live_policy(std::string_view name);

}  // namespace npusim::alloc
