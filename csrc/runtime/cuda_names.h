// SPDX-License-Identifier: BSD-3-Clause
// "cuda" as another name for npusim, for torch_npusim.cuda_alias.
#pragma once

namespace torch_npusim {

// While on, npusim is called "cuda", in every thread: torch reads the device names "cuda" and
// "cuda:N" as it reads "npusim" and "npusim:N", and writes "cuda" where it wrote "npusim", in
// device.type, str(), error texts and the name of the backend. Doing it twice changes nothing.
// Raises c10::Error, changing nothing, if torch's libraries do not import the functions that do so.
void call_npusim_cuda(bool on);

bool is_called_cuda() noexcept;

}  // namespace torch_npusim
