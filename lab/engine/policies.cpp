// SPDX-License-Identifier: BSD-3-Clause
// The table of the policies of a replay.
#include "lab/engine/policies.h"

namespace npusim::lab {
namespace {

constexpr PolicyName kStitching = {
    .name = "stitching",
    .what = "as GMLake: free physical pieces are stitched to one range of addresses",
    .ignores_streams = true};  // for requests that get whole pages
constexpr PolicyName kPlanned = {
    .name = "planned",
    .what = "as STAlloc: offsets planned before the run, from the lifetimes in the trace",
    .ignores_streams = true};

}  // namespace

std::vector<PolicyName> built_in_policies() {
  std::vector<PolicyName> names = live_policies();
  names.insert(names.end(), {kStitching, kPlanned});
  return names;
}

std::unique_ptr<PlacementPolicy> make_policy(std::string_view name, std::string_view settings,
                                             PlacementDevice& device, const Trace& trace) {
  if (is_live_policy(name)) return make_live_policy(name, settings, device);
  if (name != kStitching.name && name != kPlanned.name) reject_policy(name, built_in_policies());
  PolicySettings parsed(name, settings);
  auto policy = name == kStitching.name ? make_stitching_policy(parsed, device)
                                        : make_planned_policy(parsed, device, trace);
  parsed.finish();
  return policy;
}

}  // namespace npusim::lab
