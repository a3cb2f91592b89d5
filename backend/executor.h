// SPDX-License-Identifier: BSD-3-Clause
// The inline executor: a command runs on the thread that submits it, at once; the clocks say when
// it would have finished. Invariant: bodies of one stream never overlap (rule S1), and a thread is
// in at most one, so that stream locks cannot deadlock. Used by command.h only.
#pragma once

#include <algorithm>
#include <exception>

#include "backend/attention.h"
#include "backend/cost_model.h"
#include "backend/fault.h"
#include "backend/stream.h"

namespace npusim {

// What a command is, apart from its body. `name` must outlive the process (a literal or interned).
struct CommandInfo {
  const char* name;
  CommandKind kind = CommandKind::kernel;
  Cost cost{};
};

// InlineRun is the time during which a body runs: charges the clocks, holds the stream.
class InlineRun {
 public:
  InlineRun(detail::ThreadState& thread, Stream& stream, const CommandInfo& info,
            std::int64_t extra_ns = 0) noexcept
      : thread_(thread), stream_(stream) {
    stream.lock();
    thread.body_depth = 1;
    const CostRates& rates = stream.rates();
    const std::int64_t host_ns = pass_host_ns(rates.launch_latency_ns);
    const std::int64_t start_ns =
        std::max(stream.done_at_ns_.load(std::memory_order_relaxed), host_ns);
    stream.done_at_ns_.store(start_ns + duration_ns(rates, info.kind, info.cost) + extra_ns,
                             std::memory_order_release);
  }
  ~InlineRun() {
    thread_.body_depth = 0;
    stream_.unlock();
  }
  InlineRun(const InlineRun&) = delete;
  InlineRun& operator=(const InlineRun&) = delete;

 private:
  detail::ThreadState& thread_;
  Stream& stream_;
};

namespace detail {

// settle() ends a command on the slow path: with launch blocking it waits and reports.
void settle(Stream& stream);

// SettleAtEnd calls settle() when the body returned, not when it threw.
class SettleAtEnd {
 public:
  explicit SettleAtEnd(Stream& stream) noexcept
      : stream_(stream), exceptions_(std::uncaught_exceptions()) {}
  ~SettleAtEnd() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) settle(stream_);
  }
  SettleAtEnd(const SettleAtEnd&) = delete;
  SettleAtEnd& operator=(const SettleAtEnd&) = delete;

 private:
  Stream& stream_;
  int exceptions_;
};

}  // namespace detail

}  // namespace npusim
