// SPDX-License-Identifier: BSD-3-Clause
// Dry commands: what an operator costs is known from the shapes of its operands and results, so a
// program's commands can be launched, charged and recorded although nothing of it runs and no
// tensor has memory. For models that are too large for the machine of the simulation.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc/launch/launch.h"

namespace torch_npusim {

// without_memory() returns a tensor of the shape of `like` that no kernel may be given.
at::Tensor without_memory(const at::Tensor& like, c10::Device device);

// launch_dry() launches the command of one call of an operator; `stack` has its arguments.
void launch_dry(const c10::OperatorHandle& op, torch::jit::Stack stack,
                const std::vector<at::Tensor>& results, c10::DeviceIndex device);

// Operators whose kernels work their cost out themselves say here how, by name without overload.
// The results are charged beside it.
using OwnCommand = npusim::CommandInfo (*)(c10::ArrayRef<c10::IValue> arguments);
void add_own_command(const char* op, OwnCommand command);

}  // namespace torch_npusim
