// SPDX-License-Identifier: BSD-3-Clause
// PlacementPolicy: what a policy of one's own implements to be replayed. The replay asks for one
// placement per request and gives it back when its memory is reusable; waiting for other streams,
// retrying after a failure and judging the answers are the replay's business:
//
//   malloc fails -> everything pending completes -> malloc again -> empty_cache -> malloc again
//
// Policies are found by name (make_policy), in a shared library (policy_abi.h) or made in Python.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/provider.h"
#include "allocator/replay/placement_device.h"
#include "allocator/replay/trace.h"

namespace npusim::alloc {

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
  void finish() const;  // throws InvalidArgument naming keys that nobody read

 private:
  std::string policy_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
};

struct PolicyName {
  std::string_view name;
  std::string_view what;  // one line
};

// built_in_policies() lists what make_policy() knows, presets of the caching allocator not
// included.
std::vector<PolicyName> built_in_policies();

// make_policy() takes one of those names, or the path of a shared library. The device must outlive
// the policy; policies that plan ahead look at the trace. Throws InvalidArgument.
std::unique_ptr<PlacementPolicy> make_policy(std::string_view name, std::string_view settings,
                                             PlacementDevice& device, const Trace& trace);

// make_live_policy() is the same for a device that runs now: policies that need the trace, or a
// device that stitches, are refused. is_live_policy() is whether a name is none of those;
// reject_live_policy() throws the InvalidArgument for one that is, which lists presets, too.
bool is_live_policy(std::string_view name);
[[noreturn]] void reject_live_policy(std::string_view name);
std::unique_ptr<PlacementPolicy> make_live_policy(std::string_view name, std::string_view settings,
                                                  PlacementDevice& device);

}  // namespace npusim::alloc
