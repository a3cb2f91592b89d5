// SPDX-License-Identifier: BSD-3-Clause
// RunningCommand: a command while its body runs. The thread that submits a command runs its body at
// once; the virtual clocks say when a device would have started and finished it.
//   host clock   --launch latency-->| host_ns
//   stream clock ......... busy ....|..| start_ns ---- duration ----| end_ns = done_at_ns()
//
// Invariant: bodies of one stream never overlap (rule S1), except those that give up their turn; a
// thread is in at most one body, so stream locks cannot deadlock.
#pragma once

#include <algorithm>
#include <cmath>
#include <exception>

#include "backend/cost_model.h"
#include "backend/fault.h"
#include "backend/slow_path.h"
#include "backend/stream.h"

namespace npusim {

class Promise;

// A command without its body. `name` lives as long as the process: a literal, or interned.
struct CommandInfo {
  const char* name;
  CommandKind kind = CommandKind::kernel;
  Cost cost{};
  // Whether other threads' commands of the stream wait for the body. False for bodies that run a
  // user's Python code: a waiting thread may hold what that code needs, the GIL for one.
  bool keeps_turn = true;
};

// Its constructor takes the stream's lock and charges both clocks; its destructor gives the lock
// back, also when the body throws. `stream`, `info` and `thread` (the caller's own) outlive it. All
// times are virtual nanoseconds. Other threads never see it.
class RunningCommand {
 public:
  RunningCommand(detail::ThreadState& thread, Stream& stream, const CommandInfo& info,
                 const detail::FaultDraw& fault = {}) noexcept
      : thread_(thread), stream_(stream), info_(info), fault_(fault) {
    stream.lock();
    thread.run = this;
    const CostRates& rates = stream.rates();
    paid_ = thread.launching == detail::Launching::directly;
    if (thread.launching == detail::Launching::first_replayed) [[unlikely]] {
      paid_ = true;
      thread.launching = detail::Launching::replayed;
    }
    host_ns_ = pass_host_ns(paid_ ? rates.launch_latency_ns : 0);
    start_ns_ = std::max(stream.done_at_ns(), host_ns_);
    charge(info.cost);
    if (!info.keeps_turn) {
      TurnlessWork::begin();
      stream.unlock();
    }
  }
  ~RunningCommand() {
    thread_.run = nullptr;
    if (info_.keeps_turn) {
      stream_.unlock();
    } else {
      TurnlessWork::end();
    }
  }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  const CommandInfo& info() const noexcept { return info_; }
  const detail::FaultDraw& fault() const noexcept { return fault_; }

  // When the host had launched the command, when it started, when it will have ended.
  std::int64_t host_ns() const noexcept { return host_ns_; }
  std::int64_t start_ns() const noexcept { return start_ns_; }
  std::int64_t end_ns() const noexcept { return end_ns_; }
  // Whether the host paid for the launch.
  bool paid() const noexcept { return paid_; }
  // What it costs, and what a fault adds to its duration.
  const Cost& cost() const noexcept { return cost_; }
  std::int64_t extra_ns() const noexcept { return extra_ns_; }

  // The promise that decides when the command ends (promised_end.h), or nullptr. Not owned.
  const Promise* promise() const noexcept { return promise_; }
  void promises(const Promise* promise) noexcept { promise_ = promise; }

  // launches() says how many kernels of the chip stand behind the command.
  void launches(double kernels) noexcept { kernels_ = kernels, recharge(cost_); }
  // recharge() replaces the cost; called at the end of the body, which knows its results' sizes.
  void recharge(const Cost& cost) noexcept {
    if (!info_.keeps_turn) stream_.lock();
    charge(cost);
    if (!info_.keeps_turn) stream_.unlock();
  }

 private:
  // Under the lock. If the turn was given up, later commands may lie behind this one already.
  void charge(const Cost& cost) noexcept {
    cost_ = cost;
    if (kernels_ >= 0) cost_.kernels = kernels_;
    if (thread_.launching == detail::Launching::captured) [[unlikely]] {
      end_ns_ = start_ns_;
      return;
    }
    const std::int64_t usual_ns = duration_ns(stream_.rates(), info_.kind, cost_);
    extra_ns_ = fault_.hang_ns;
    if (fault_.slowdown != 1) [[unlikely]] {
      extra_ns_ += std::llround((fault_.slowdown - 1) * static_cast<double>(usual_ns));
    }
    end_ns_ = start_ns_ + extra_ns_ + usual_ns;
    const std::int64_t done_at_ns =
        info_.keeps_turn ? end_ns_ : std::max(end_ns_, stream_.done_at_ns());
    stream_.done_at_ns_.store(done_at_ns, std::memory_order_release);
  }

  detail::ThreadState& thread_;
  Stream& stream_;
  const CommandInfo& info_;
  const detail::FaultDraw fault_;
  const Promise* promise_ = nullptr;
  bool paid_;
  Cost cost_;
  double kernels_ = -1;  // of launches()
  std::int64_t host_ns_, start_ns_, extra_ns_ = 0, end_ns_;
};

namespace detail {

// settle() ends a command on the slow path: with launch blocking it waits and reports; observers
// may throw here.
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
