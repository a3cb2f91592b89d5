// SPDX-License-Identifier: BSD-3-Clause
// submit() and run_now(): how work reaches a stream (rules S1, S4, S5). Both run the body before
// they return, on the calling thread, so it may capture by reference. They allocate nothing.
//
//   no bit of slow_path.h set   RunningCommand around the body: the hot path, one relaxed load
//   any bit set                 + faults, observers, promises, captures, launch blocking
//
// Invariant: a body owns nothing; stream order keeps the bytes that it touches valid.
#pragma once

#include <utility>

#include "backend/dry_run.h"
#include "backend/observed_command.h"
#include "backend/running_command.h"

namespace npusim {

// submit() runs `body()` as one command and drops its result. Charges launch latency to the host
// and the modelled duration to the stream. Inside the body of another command it just calls the
// body. A command that a fault hits does not run its body, nor does any in a dry run. An exception
// of the body propagates and leaves everything usable; the command stays charged. Throws
// DeviceFault (lost device, or any fault under launch blocking), InvalidArgument (forked child,
// refused by a capture), what a promise of the stream throws, and what an observer throws.
template <class Body>
void submit(Stream& stream, const CommandInfo& info, Body&& body) {
  detail::ThreadState& thread = detail::t_state;
  if (thread.run != nullptr) {
    if (!dry()) [[likely]]
      std::forward<Body>(body)();
    return;
  }
  if (!detail::takes_slow_path()) [[likely]] {
    RunningCommand run(thread, stream, info);
    std::forward<Body>(body)();
    return;
  }
  const detail::FaultDraw draw = detail::draw_command_fault(stream, info);
  const Site site = observed() ? detail::gather_site() : 0;
  {
    RunningCommand run(thread, stream, info, draw);
    const detail::ObservedCommand record(run, stream, info, site);
    if (!draw.hit && !dry()) std::forward<Body>(body)();
  }
  detail::settle(stream);
}

// run_now() is submit() of a body whose result is needed, and returns it. A fault therefore does
// not keep the body from running: command_failed() tells the body, which then makes garbage of its
// results (rule F3), and dry() that it makes results without computing them. Throws as submit()
// does.
template <class Body>
decltype(auto) run_now(Stream& stream, const CommandInfo& info, Body&& body) {
  detail::ThreadState& thread = detail::t_state;
  if (thread.run != nullptr) return std::forward<Body>(body)();
  if (detail::takes_slow_path()) [[unlikely]] {
    const detail::FaultDraw draw = detail::draw_command_fault(stream, info);
    const Site site = observed() ? detail::gather_site() : 0;
    detail::SettleAtEnd settle_at_end(stream);
    RunningCommand run(thread, stream, info, draw);
    const detail::ObservedCommand record(run, stream, info, site);
    return std::forward<Body>(body)();
  }
  RunningCommand run(thread, stream, info);
  return std::forward<Body>(body)();
}

// in_command_body() is true while this thread runs the body of a command.
inline bool in_command_body() noexcept { return detail::t_state.run != nullptr; }

// command_failed() is whether a fault hit the command whose body this thread runs.
inline bool command_failed() noexcept {
  const RunningCommand* run = detail::t_state.run;
  return run != nullptr && run->fault().hit;
}

// recharge() replaces what the running command of this thread costs. Call it in the body, at its
// end, where the cost depends on what the body made.
inline void recharge(const Cost& cost) noexcept { detail::t_state.run->recharge(cost); }

// launches() says how many kernels of the chip the running command of this thread stands for.
inline void launches(double kernels) noexcept {
  if (detail::t_state.run != nullptr) detail::t_state.run->launches(kernels);
}

}  // namespace npusim
