// SPDX-License-Identifier: BSD-3-Clause
// Stream: a FIFO of commands of one device with its own virtual clock (rules S1-S7).
// Invariant: done_at_ns() covers every command submitted so far, also one that is running now; the
// stream is idle only when the host clock has reached it. Streams live as long as the process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "backend/clock.h"
#include "backend/cost_model.h"
#include "backend/device.h"

namespace npusim {

using StreamId = std::int64_t;  // 0 is the default stream of its device

inline constexpr int kStreamsPerPriority = 32;
inline constexpr int kHighestPriority = -3;  // priorities run from 0 (default) down to this
inline constexpr int kPriorityCount = 1 - kHighestPriority;
inline constexpr int kStreamsPerDevice = 1 + kPriorityCount * kStreamsPerPriority;

class alignas(64) Stream {  // one cache line: streams of two threads do not disturb each other
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const noexcept { return device_; }
  StreamId id() const noexcept { return id_; }
  int priority() const noexcept { return priority_; }

  // done_at_ns() is when all work submitted so far has finished. Free of charge, lock-free: what
  // the allocator polls. "Done" means host_now_ns() >= done_at_ns().
  std::int64_t done_at_ns() const noexcept {
    return std::max(done_at_ns_.load(std::memory_order_acquire),
                    not_before_ns_.load(std::memory_order_acquire));
  }

  // query() is whether the stream is idle. Asking costs the host time, so polling ends (rule C4).
  // Throws a pending DeviceFault once the stream is idle.
  bool query();

  // synchronize() moves the host to done_at_ns() and throws a pending DeviceFault of the device.
  void synchronize();

  // start_after_ns() keeps later commands from starting before `time_ns` (events, rule E3). Never
  // waits for a body.
  void start_after_ns(std::int64_t time_ns) noexcept;

  const CostRates& rates() const noexcept { return *rates_; }

 private:
  friend class AllTurns;
  friend class RunningCommand;
  friend struct StreamTable;
  void lock_slow() noexcept;
  void lock() noexcept {
    if (lock_.exchange(1, std::memory_order_acquire) != 0) lock_slow();
  }
  void unlock() noexcept {
    if (lock_.exchange(0, std::memory_order_release) == 2) lock_.notify_one();
  }

  std::atomic<std::int64_t> done_at_ns_{0};     // of the last command; written under lock_
  std::atomic<std::int64_t> not_before_ns_{0};  // for later commands
  std::atomic<std::uint32_t> lock_{0};          // see RunningCommand: 0 free, 1 held, 2 contended
  int device_ = -1;
  int priority_ = 0;
  StreamId id_ = 0;
  const CostRates* rates_ = nullptr;
};

// A thread that must wait for its turn on a stream calls hook(wait, argument), which calls
// wait(argument). The hook releases locks of the layer above (the GIL) meanwhile, which the running
// body may need. nullptr: threads wait with their locks.
using WaitHook = void (*)(void (*wait)(void*), void* argument);
void set_wait_hook(WaitHook hook) noexcept;

// The default stream of a device, the next of its pool (32 per priority, round-robin; a priority
// outside 0 .. kHighestPriority is clamped, as CUDA does), and the stream of an id.
// Throw InvalidArgument for a device or an id that does not exist and in a forked child.
Stream& default_stream(int device);
Stream& next_stream(int device, int priority);
Stream& stream_from_id(int device, StreamId id);

// The current stream of this thread on a device; the default stream at first. `device` must exist:
// otherwise a placeholder stream is returned whose device is -1.
Stream& current_stream(int device) noexcept;
void set_current_stream(Stream& stream) noexcept;

// TurnlessWork marks work that touches device memory without a stream's turn: it is constructed by
// a thread that has a turn, and lives until the work is over. AllTurns waits for it.
class TurnlessWork {
 public:
  TurnlessWork() noexcept { begin(); }
  ~TurnlessWork() { end(); }
  TurnlessWork(const TurnlessWork&) = delete;
  TurnlessWork& operator=(const TurnlessWork&) = delete;
  static void begin() noexcept { count.fetch_add(1); }
  static void end() noexcept { count.fetch_sub(1); }
  static bool any() noexcept { return count.load() != 0; }

 private:
  static inline constinit std::atomic<int> count{0};
};

// AllTurns holds the turns of all streams of all devices: while it lives nothing of this process
// changes device memory. It settles all promises first. Throws the failure of a promise, and
// InvalidArgument in the body of a command or if turnless work does not end within 10 s of
// wall-clock time.
class AllTurns {
 public:
  AllTurns();
  ~AllTurns();
  AllTurns(const AllTurns&) = delete;
  AllTurns& operator=(const AllTurns&) = delete;
};

// synchronize_device() waits for every stream of the device and throws its pending DeviceFault.
void synchronize_device(int device);

// device_done_at_ns() is when all streams of the device have finished; costs nothing. Waiting for
// it with wait_until_ns() is what the allocator does: no fault is reported there.
std::int64_t device_done_at_ns(int device) noexcept;

// pass_backlog() moves the host to the end of all work that streams were given, and first settles
// what streams of `device` were promised. No program waits here: it orders nothing, reports no
// fault and leaves failed promises to the first command that needs them.
void pass_backlog(int device) noexcept;

namespace detail {
// For begin_dry() and end_dry(): no thread may launch meanwhile.
void set_rates_of_streams(const DeviceSpec& spec);
}  // namespace detail

// set_launch_blocking() makes each command wait and raise at the call; NPUSIM_LAUNCH_BLOCKING sets
// it at initialize().
void set_launch_blocking(bool enabled) noexcept;

}  // namespace npusim
