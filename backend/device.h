// SPDX-License-Identifier: BSD-3-Clause
// The devices: how many, which is current on this thread, what they are.
// Invariant: initialize() maps memory once; before it only counting and configuration work.
#pragma once

#include <cstdint>

#include "backend/process.h"
#include "backend/spec.h"

namespace npusim {

class RunningCommand;
class Stream;

inline constexpr int kMaxDevices = 64;

namespace detail {

// How the commands that a thread launches reach their streams.
enum class Launching : std::uint8_t {
  directly,
  captured,        // into a graph (graph.h): they run, but take no time, and nobody hears of them
  first_replayed,  // the next one is the first of a graph's, for which the host pays
  replayed,        // the rest of a graph, for which it does not
};

// What a thread remembers. `current` holds nullptr for "the default stream".
struct ThreadState {
  int device = 0;
  Launching launching = Launching::directly;
  RunningCommand* run = nullptr;  // while this thread runs the body of a command (rule S4)
  Stream* current[kMaxDevices] = {};
};
extern constinit thread_local ThreadState t_state;

}  // namespace detail

// device_count() is the number of visible devices; 0 when the configuration is unusable (config()
// then says why). Never throws; works in a forked child.
int device_count() noexcept;

// initialize() maps the memory of all devices and arms NPUSIM_FAULT. Idempotent, thread-safe.
// Throws InvalidArgument (configuration, forked child) or OutOfMemory (no address space).
void initialize();
bool initialized() noexcept;

// The current device of this thread; 0 at first. Needs no initialize().
inline int current_device() noexcept { return detail::t_state.device; }

// set_device() and exchange_device() throw InvalidArgument for a device that does not exist.
void set_device(int device);
int exchange_device(int device);  // returns the one before
inline void unchecked_set_device(int device) noexcept { detail::t_state.device = device; }

// check_device() throws InvalidArgument unless 0 <= device < device_count(); refuses a forked
// child.
void check_device(int device);

// device_spec() describes a device, NPUSIM_DEVICE_MEMORY included.
const DeviceSpec& device_spec(int device);

}  // namespace npusim
