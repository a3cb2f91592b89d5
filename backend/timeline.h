// SPDX-License-Identifier: BSD-3-Clause
// Timeline keeps commands, marks and waits as rows: profiles are made of them, and they can be
// replayed to the nanosecond. All times are virtual nanoseconds.
// Invariant: memory is bounded; rows that come when it is full are counted and dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "backend/observer.h"

namespace npusim {

// A row is a command, or an order between streams and the host (`is_command`). Members that say "of
// a command" are 0 or nullptr otherwise.
struct TimelineRow {
  bool is_command;
  bool in_body;     // a wait of the allocator in the body of a command that was launched already
  bool paid;        // CommandRecord::paid
  OrderKind order;  // if it is no command
  CommandKind command;
  Precision precision;
  Work work;
  std::int16_t device;    // -1: the host alone
  std::int16_t stream;    // -1: none
  std::uint32_t thread;   // of the host, counted from 0
  const char* name;       // of a command
  std::int64_t host_ns;   // a command: when it was launched; else: afterwards
  std::int64_t start_ns;  // of a command
  std::int64_t end_ns;    // of a command; else OrderRecord::time_ns
  std::int64_t extra_ns;  // a command's as in CommandRecord; of a timing event, rule E7; in_body:
                          // how long the command seemed to take then
  double flops;
  double bytes;          // that are charged
  double operand_bytes;  // of the operands, if each element counted once
  double tiles;          // of a product's result
  double aligned;        // this and the next three as in Cost
  double done;
  double cached;
  double kernels;
  std::uint64_t correlation;  // of a command
  std::uint64_t event;        // which one, and its version
  std::uint64_t version;
  Site site;
};

class Timeline : public Observer {
 public:
  // begin() forgets all rows and keeps up to `most_rows` new ones; it throws as attach() does.
  // end() keeps no more rows.
  void begin(std::size_t most_rows);
  void end() noexcept;

  // Call the rest after end(): rows may still come before. References hold until the next begin().
  const std::deque<TimelineRow>& rows() const noexcept { return rows_; }
  std::int64_t host_begin_ns() const noexcept { return host_begin_ns_; }
  std::int64_t host_end_ns() const noexcept { return host_end_ns_; }
  std::uint64_t dropped() const noexcept { return dropped_; }

  void on_command(const CommandRecord& record, std::span<const Operand> operands) noexcept override;
  void on_order(const OrderRecord& record) noexcept override;
  void on_kept(const Promise* promise, std::int64_t start_ns,
               std::int64_t end_ns) noexcept override;

 protected:
  ~Timeline() = default;

 private:
  void keep(const TimelineRow& row, const Promise* promise = nullptr) noexcept;

  mutable std::mutex mutex_;  // guards the rest: a call may come for a moment after end()
  bool on_ = false;
  std::size_t most_rows_ = 0;
  std::deque<TimelineRow> rows_;
  std::unordered_map<const Promise*, std::size_t> promised_;  // rows whose end is not known yet
  std::int64_t host_begin_ns_ = 0;
  std::int64_t host_end_ns_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace npusim
