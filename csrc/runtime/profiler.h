// SPDX-License-Identifier: BSD-3-Clause
// What torch.profiler hears of the devices: rows of virtual time beside its own of wall time.
#pragma once

#include <cstdint>
#include <string>

namespace torch_npusim {

// How rows of the host are called: "npusim" by our own names, "cuda" by CUDA's, which tools that
// know CUDA traces only look for.
enum class TraceNames : std::uint8_t { npusim, cuda };
void set_trace_names(TraceNames names) noexcept;
TraceNames trace_names() noexcept;

// set_profiling_as_cuda() leaves commands without work out of profiles, as CUDA's have none.
void set_profiling_as_cuda(bool on) noexcept;

// set_profiling_paused() keeps commands out of a running profile, and lets them in again.
void set_profiling_paused(bool paused) noexcept;

}  // namespace torch_npusim
