// SPDX-License-Identifier: BSD-3-Clause
// The machine's part of graphs: a capture forbids the host to wait, and a thread's commands may be
// captured or replayed. The contents of a graph are csrc/runtime/graph.h's.
// Invariant: at most one capture at a time in a process.
#pragma once

#include <cstdint>
#include <string>

#include "backend/device.h"
#include "backend/slow_path.h"

namespace npusim {

// The threads whose waits a capture refuses: all; its own; none. Waits for a captured stream are
// always refused.
enum class CaptureMode : std::uint8_t { global, own_thread, relaxed };

// begin_capture() throws InvalidArgument while another capture lasts; `stream` is the one on which
// the capture began, join_capture() adds a stream that waits for it. end_capture() returns why the
// capture is not valid: what was refused in it first; empty: it is.
void begin_capture(const Stream& stream, CaptureMode mode);
void join_capture(const Stream& stream) noexcept;
std::string end_capture() noexcept;

// invalidate_capture() makes the capture, if there is one, end as not valid.
void invalidate_capture(const std::string& why) noexcept;

// LaunchingScope: while it lives, this thread's commands are captured or replayed.
class LaunchingScope {
 public:
  explicit LaunchingScope(detail::Launching launching) noexcept
      : before_(detail::t_state.launching) {
    detail::t_state.launching = launching;
  }
  ~LaunchingScope() { detail::t_state.launching = before_; }
  LaunchingScope(const LaunchingScope&) = delete;
  LaunchingScope& operator=(const LaunchingScope&) = delete;

 private:
  detail::Launching before_;
};

namespace detail {
// refuse_uncaptured() throws InvalidArgument if `stream` is captured: a command that did not come
// through an operator would run now, and at no replay.
void refuse_uncaptured(const char* name, const Stream& stream);
void refuse_wait(const char* what, const Stream* stream);
// check_may_wait() throws InvalidArgument where a capture forbids the calling thread to wait.
inline void check_may_wait(const char* what, const Stream* stream) {
  if (takes_slow_path(kCapturing)) [[unlikely]]
    refuse_wait(what, stream);
}
}  // namespace detail

}  // namespace npusim
