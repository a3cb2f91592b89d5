// SPDX-License-Identifier: BSD-3-Clause
// on_host_views(): the shape of every native kernel that is one call of CPU operators. Used by
// convolution, rnn_fused_cells, attention and sync_batch_norm.
// Invariant: the body meets neither autograd nor autocast, which have had their turn, and what it
// allocates comes from the device pool, so that results are born on the device.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include "csrc/aten/host_view.h"
#include "csrc/aten/launch.h"
#include "csrc/runtime/pool_allocator.h"

namespace torch_npusim {

using Operands = c10::ArrayRef<const at::TensorBase*>;

// on_host_views() runs body(call) as one command on the device of `operands` and returns its
// result. The body makes views with call.view(), calls the CPU operator, then call.finish(), then
// call.result() for every tensor it returns.
template <class Body>
auto on_host_views(const char* op, Operands operands, const npusim::Cost& cost, Body&& body) {
  const c10::DeviceIndex device = common_device(op, operands, HostScalars::refused);
  const npusim::CommandInfo info{op, npusim::CommandKind::kernel, cost};
  return translated([&] {
    return npusim::run_now(npusim::current_stream(device), info, [&] {
      const NoWrappers no_wrappers;
      const PoolScope pool(device);
      HostCall call(op, device);
      return body(call);
    });
  });
}

// view_of() is call.view() of an optional operand that is only read.
inline std::optional<at::Tensor> view_of(HostCall& call, const std::optional<at::Tensor>& operand) {
  if (!operand.has_value() || !operand->defined()) return std::nullopt;
  return call.view(*operand, /*written=*/false);
}

}  // namespace torch_npusim
