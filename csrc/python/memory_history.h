// SPDX-License-Identifier: BSD-3-Clause
// Memory history: call stacks for allocations, and snapshots in the form that torch's memory viewer
// reads. Stacks are gathered before the allocator's lock is taken, never under it.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "allocator/allocator.h"

namespace torch_npusim {

// know_python_frames() makes torch's captured tracebacks hold the frames of Python.
void know_python_frames();

// memory_snapshot() covers all devices: {"segments": [...], "device_traces": [...],
// "allocator_settings": {...}, "external_annotations": []}. Of a private pool: its segments only.
enum class Traces : std::uint8_t {
  none,
  torchs,  // the entries that torch's memory viewer knows
  whole,   // all of them, and "whole_history"
};
pybind11::dict memory_snapshot(npusim::alloc::PoolId pool, Traces traces_wanted);

// While stacks are recorded, allocations have rising numbers. live_blocks() lists those after
// number `after` that nobody has freed: (device, address, bytes, requested bytes, number).
// allocation_frames() is the stack of each, as in a snapshot; empty if it is no longer known.
std::uint64_t newest_allocation();
pybind11::list live_blocks(std::uint64_t after);
pybind11::list allocation_frames(const std::vector<std::uint64_t>& allocations);

// record_memory_history() takes torch.cuda.memory._record_memory_history's arguments, already
// validated: enabled is None (off), "state" or "all"; context is None, "state", "alloc" or "all";
// stacks is "python" or "all".
void record_memory_history(const std::optional<std::string>& enabled,
                           const std::optional<std::string>& context, const std::string& stacks,
                           std::int64_t max_entries, bool clear);

// record_as_before() has new allocators, those of a dry run, record what the last call asked for.
void record_as_before();

}  // namespace torch_npusim
