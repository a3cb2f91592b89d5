// SPDX-License-Identifier: BSD-3-Clause
// submit() and run_now(): how work reaches a stream (rules S1, S4, S5).
// Invariant: a body gets addresses, not owners; stream order keeps the bytes valid. A body may be
// run later by another executor, so it must capture by value whatever may be gone by then.
#pragma once

#include <utility>

#include "backend/executor.h"
#include "backend/observed_command.h"

namespace npusim {

// submit() enqueues `body()`; its result is dropped. Charges launch latency to the host and the
// modelled duration to the stream. Inside the body of another command it just calls the body.
// An exception of the body propagates and leaves everything usable; the command stays charged.
// Throws DeviceFault (lost device, or any fault under launch blocking). Allocates nothing.
template <class Body>
void submit(Stream& stream, const CommandInfo& info, Body&& body) {
  detail::ThreadState& thread = detail::t_state;
  if (thread.run != nullptr) {
    std::forward<Body>(body)();
    return;
  }
  if (!detail::needs_attention()) [[likely]] {
    InlineRun run(thread, stream, info);
    std::forward<Body>(body)();
    return;
  }
  const detail::FaultDraw draw = detail::draw_command_fault(stream, info);
  const Site site = observed() ? detail::gather_site() : 0;
  {
    InlineRun run(thread, stream, info, draw);
    const detail::ObservedCommand record(run, stream, info, site);
    if (!draw.hit) std::forward<Body>(body)();
  }
  detail::settle(stream);
}

// run_now() runs `body()` before it returns under every executor and returns its result; modelled
// as one asynchronous command. An injected fault does not keep the body from running, because its
// result is needed; command_failed() tells the body, which makes garbage of what it wrote.
template <class Body>
decltype(auto) run_now(Stream& stream, const CommandInfo& info, Body&& body) {
  detail::ThreadState& thread = detail::t_state;
  if (thread.run != nullptr) return std::forward<Body>(body)();
  if (detail::needs_attention()) [[unlikely]] {
    const detail::FaultDraw draw = detail::draw_command_fault(stream, info);
    const Site site = observed() ? detail::gather_site() : 0;
    detail::SettleAtEnd settle_at_end(stream);
    InlineRun run(thread, stream, info, draw);
    const detail::ObservedCommand record(run, stream, info, site);
    return std::forward<Body>(body)();
  }
  InlineRun run(thread, stream, info);
  return std::forward<Body>(body)();
}

// in_command_body() is true while this thread runs the body of a command.
inline bool in_command_body() noexcept { return detail::t_state.run != nullptr; }

// command_failed() is whether a fault hit the command whose body this thread runs.
inline bool command_failed() noexcept {
  const InlineRun* run = detail::t_state.run;
  return run != nullptr && run->fault().hit;
}

// recharge() replaces what the running command of this thread costs. Call it in the body, at its
// end, where the cost depends on what the body made.
inline void recharge(const Cost& cost) noexcept { detail::t_state.run->recharge(cost); }

}  // namespace npusim
