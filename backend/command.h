// SPDX-License-Identifier: BSD-3-Clause
// submit() and run_now(): the only two ways in which work reaches a stream (rules S1, S4, S5).
// Invariant: a body gets addresses, not owners; stream order keeps the bytes valid. A body may be
// run later by another executor, so it must capture by value whatever may be gone by then.
// Called by csrc/aten/launch.h for every kernel and by copy.cpp.
#pragma once

#include <utility>

#include "backend/executor.h"

namespace npusim {

// submit() enqueues `body()`; its result is dropped. Charges launch latency to the host and the
// modelled duration to the stream. Inside the body of another command it just calls the body.
// An exception of the body propagates and leaves everything usable; the command stays charged.
// Throws DeviceFault (lost device, or any fault under launch blocking). Allocates nothing.
template <class Body>
void submit(Stream& stream, const CommandInfo& info, Body&& body) {
  detail::ThreadState& thread = detail::t_state;
  if (thread.body_depth != 0) {
    std::forward<Body>(body)();
    return;
  }
  if (!detail::needs_attention()) [[likely]] {
    InlineRun run(thread, stream, info);
    std::forward<Body>(body)();
    return;
  }
  const detail::FaultDraw draw = detail::draw_command_fault(stream, info);
  {
    InlineRun run(thread, stream, info, draw.hang_ns);
    if (!draw.hit) std::forward<Body>(body)();
  }
  detail::settle(stream);
}

// run_now() runs `body()` before it returns under every executor and returns its result; modelled
// as one asynchronous command. An injected fault does not keep the body from running, because its
// result is needed; the fault is reported all the same.
template <class Body>
decltype(auto) run_now(Stream& stream, const CommandInfo& info, Body&& body) {
  detail::ThreadState& thread = detail::t_state;
  if (thread.body_depth != 0) return std::forward<Body>(body)();
  if (detail::needs_attention()) [[unlikely]] {
    const std::int64_t hang_ns = detail::draw_command_fault(stream, info).hang_ns;
    detail::SettleAtEnd settle_at_end(stream);
    InlineRun run(thread, stream, info, hang_ns);
    return std::forward<Body>(body)();
  }
  InlineRun run(thread, stream, info);
  return std::forward<Body>(body)();
}

// in_command_body() is true while this thread runs the body of a command.
inline bool in_command_body() noexcept { return detail::t_state.body_depth != 0; }

}  // namespace npusim
