// SPDX-License-Identifier: BSD-3-Clause
// "cuda" as another name for npusim, for torch_npusim.cuda_alias.
#pragma once

namespace torch_npusim {

// While on, torch reads the device names "cuda" and "cuda:N" as "npusim" and "npusim:N", in every
// thread: arguments of operators, torch.device(), TorchScript. Doing it twice changes nothing.
// Raises c10::Error if torch's libraries do not import the function that reads names.
void read_cuda_names_as_npusim(bool on);

}  // namespace torch_npusim
