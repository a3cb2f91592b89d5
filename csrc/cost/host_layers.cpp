// SPDX-License-Identifier: BSD-3-Clause
// Which commands pay for which layer of the host.
#include "csrc/cost/host_layers.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <string_view>

#include "backend/host_layer.h"

namespace torch_npusim {

namespace {

std::atomic<std::int64_t> g_backward_ns{0}, g_library_ns{0}, g_reduction_ns{0};

// Whether a command is among operators that are named without their space and overload.
bool is_among(std::string_view name, std::span<const std::string_view> names) {
  constexpr std::string_view kSpace = "aten::";
  if (!name.starts_with(kSpace)) return false;
  name = name.substr(kSpace.size());
  return std::find(names.begin(), names.end(), name.substr(0, name.find('.'))) != names.end();
}

bool is_of_library(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "mm",      "bmm",       "addmm", "addbmm", "baddbmm",
      "addmv",   "mv",        "dot",   "vdot",   "_addmm_activation",
      "_int_mm", "_scaled_mm"};
  return name.find("convolution") != std::string_view::npos || is_among(name, kNames);
}

bool is_reduction_or_lookup(std::string_view name) {
  constexpr std::string_view kNames[] = {"sum",    "mean",       "amax",
                                         "amin",   "max",        "min",
                                         "argmax", "argmin",     "prod",
                                         "any",    "all",        "std",
                                         "var",    "norm",       "linalg_vector_norm",
                                         "index",  "index_put_", "_index_put_impl_"};
  return is_among(name, kNames);
}

// Nodes of autograd for casts launch one kernel and no more.
bool is_cast(std::string_view name) {
  constexpr std::string_view kNames[] = {"copy_", "_to_copy"};
  return is_among(name, kNames);
}

std::int64_t beside_ns(const char* name) {
  std::int64_t ns = 0;
  if (torch::autograd::get_current_graph_task_id() != -1 && !is_cast(name)) ns += g_backward_ns;
  if (is_of_library(name)) ns += g_library_ns;
  if (is_reduction_or_lookup(name)) ns += g_reduction_ns;
  return ns;
}

}  // namespace

void set_host_layers(const HostLayers& layers) {
  g_backward_ns = layers.backward_ns;
  g_library_ns = layers.library_ns;
  g_reduction_ns = layers.reduction_ns;
  npusim::set_host_call_ns(npusim::HostCall::call, layers.call_ns);
  npusim::set_host_call_ns(npusim::HostCall::kernel, layers.kernel_ns);
  npusim::set_host_call_ns(npusim::HostCall::input, layers.input_ns);
  const bool any = layers.backward_ns > 0 || layers.library_ns > 0 || layers.reduction_ns > 0;
  npusim::set_host_layer(any ? &beside_ns : nullptr);
}

}  // namespace torch_npusim
