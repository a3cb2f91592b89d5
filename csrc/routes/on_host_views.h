// SPDX-License-Identifier: BSD-3-Clause
// on_host_views(): a hand-written kernel that calls one CPU operator on host views.
#pragma once

#include "csrc/launch/launch.h"
#include "csrc/routes/cpu_call.h"

namespace torch_npusim {

using Operands = TensorPointers;

// on_host_views() runs body(call) as one command on the device of `operands` and returns its
// result, whose bytes are charged beside `cost`. The body makes views with call.view(), calls the
// CPU operator, then call.finish(), then call.result() for every tensor that it returns. Raises if
// the operands are on several devices.
template <class Body>
auto on_host_views(const char* op, Operands operands, const npusim::Cost& cost, Body&& body) {
  const c10::DeviceIndex device = common_device(op, operands, HostScalars::refused);
  const Account account(cost);
  return launch({op, npusim::CommandKind::kernel, cost}, device, [&] {
    const NoWrappers no_wrappers;
    CpuCall call(op, device);
    auto result = body(call);
    account.settle(result);
    return result;
  });
}

// view_of() is call.view() of an optional operand that is only read.
inline std::optional<at::Tensor> view_of(CpuCall& call, const std::optional<at::Tensor>& operand) {
  if (!operand.has_value() || !operand->defined()) return std::nullopt;
  return call.view(*operand, /*written=*/false);
}

}  // namespace torch_npusim
