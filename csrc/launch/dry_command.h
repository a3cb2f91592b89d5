// SPDX-License-Identifier: BSD-3-Clause
// Dry commands: the cost of an operator follows from the shapes of its operands and results, so a
// program's commands can be launched, charged and observed although no kernel runs and no tensor
// has memory. For models that are larger than the RAM of this machine.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc/launch/launch.h"

namespace torch_npusim {

// without_memory() returns a tensor with the metadata of `like`, on `device`, whose data is
// nullptr: no kernel may get it.
at::Tensor without_memory(const at::Tensor& like, c10::Device device);

// launch_dry() launches the command of one call of an operator on the current stream of `device`;
// `stack` has its arguments. It waits as the operator itself would.
void launch_dry(const c10::OperatorHandle& op, torch::jit::Stack stack,
                const std::vector<at::Tensor>& results, c10::DeviceIndex device);

// add_own_command() registers the command of an operator whose kernel computes its own cost, by
// name without overload. Called while the library is loaded; the results are charged beside it.
using OwnCommand = npusim::CommandInfo (*)(c10::ArrayRef<c10::IValue> arguments);
void add_own_command(const char* op, OwnCommand command);

}  // namespace torch_npusim
