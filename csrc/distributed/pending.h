// SPDX-License-Identifier: BSD-3-Clause
// Pending: a collective between its call and its end. Each rank leaves a notice of it in shared
// memory (backend/collective_board.h); the notices fix the start in virtual time and show ranks
// that disagree. Then the group's transport moves the bytes in host memory: gloo, ThreadRanks or
// UniformRanks. The first command that needs the result settles the Pending: it waits for the
// notices and for the bytes, and raises what went wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backend/backend.h"
#include "backend/collective_board.h"
#include "backend/fabric.h"
#include "backend/promised_end.h"
#include "csrc/distributed/recorder.h"

namespace torch_npusim::distributed {

using Inner = c10::intrusive_ptr<c10d::Work>;
using Milliseconds = std::chrono::milliseconds;
using WallClock = std::chrono::steady_clock;

class Pending;

struct Group {  // what the collectives of a group share
  ~Group();

  std::string name;        // as init_process_group() and new_group() know it
  int rank = 0;            // in the group
  std::vector<int> ranks;  // of its members in the whole job
  std::shared_ptr<npusim::CollectiveBoard> notices;  // nullptr: the ranks are UniformRanks
  std::shared_ptr<npusim::CollectiveBoard> board;    // of the whole job if possible
  c10::intrusive_ptr<c10d::Backend> transport;       // simccl.h
  std::atomic<bool> aborted{false};                  // ends all waits
  // Numbers of torch's flight recorder, which the thread that calls the group counts.
  std::uint64_t collectives = 0, transfers = 0, operations = 0;
  std::mutex mutex;            // guards the rest
  const char* over = nullptr;  // the reason why no collective may begin; the first one stays
  bool said_lines = false;     // that the ranks are on different lines
  std::function<void(std::shared_ptr<c10d::WorkInfo>)> hook;  // of each collective's end
  std::vector<std::shared_ptr<c10d::WorkInfo>> ended;         // that the hook has not seen
  void end(const char* reason);
  // tell_hook() calls the hook, in this thread, for what has ended; no lock may be held.
  void tell_hook();

  // The number of a member in the whole job, and on the board.
  int in_job(int member) const { return ranks[static_cast<std::size_t>(member)]; }
  int on_board(int member) const { return board == notices ? member : in_job(member); }
};

// A row of collectives that settle in their order: a group's, or transfers from a rank to another.
struct Row {
  npusim::CollectiveBoard::Channel channel;
  std::uint64_t next = 0;
  std::int64_t end_ns = 0;     // of the last settled one
  std::exception_ptr failure;  // of the first that failed: none after it can be had
  std::mutex mutex;            // guards what follows
  std::deque<std::shared_ptr<Pending>> open;
  bool settling = false;  // a thread is at the first of them
  std::condition_variable settled;
};

struct Description {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  npusim::Collective collective = npusim::Collective::all_reduce;
  at::ScalarType dtype = at::kByte;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::UNUSED;
  int root = -1, peer = -1, device = -1;  // of a transfer its peer; the device as configured
  int64_t count = 0;                      // what ranks must agree on; 0: nothing
  double bytes = 0;
  bool queued = false;
  int64_t numel_in = 0, numel_out = 0;
  std::vector<int64_t> sends, expects;  // bytes for and from each rank
};

class Pending final : public npusim::Promise {
 public:
  Pending(std::shared_ptr<Group> group, std::shared_ptr<Row> row, Description what,
          Milliseconds timeout);

  // announce() leaves the notice that this rank is ready, with links that have 1/slowdown of
  // their bandwidth. Raises if another rank's notice contradicts it: then nothing may be moved.
  void announce(std::int64_t ready_ns, double slowdown, const std::string& line);

  // stay_away() is what a rank that a fault hit does instead: nobody hears of it.
  void stay_away(npusim::FaultKind fault, const std::string& line);

  // moving() takes the works of the transport, the tensors whose bytes these move, and a function
  // that runs when they have ended.
  void moving(std::vector<Inner> works, std::vector<at::Tensor> kept, std::function<void()> finish);

  // report_to() ends a part of the record when this one ends, or now.
  void report_to(std::shared_ptr<FlightEntry> record);

  // copying() takes a function that copies results when they are there, before anything that
  // follows in the row. False if something does already, or if they are there.
  bool copying(std::function<void()> copy);

  // queued_in() is whether what is queued in the row may follow before this is settled.
  bool queued_in(const Row& row) const { return &row == row_.get() && queued(); }

  std::int64_t settle() override;
  bool settled() const noexcept override { return done_.load(std::memory_order_acquire); }
  // A row settles in its order, and fails from its first failure on.
  bool covers(const npusim::Promise& other) const noexcept override;
  // failure() is why it has ended without a result; that of an abort is not thrown by settle().
  std::exception_ptr failure() const { return settled() ? failure_ : nullptr; }
  const Group& group() const { return *group_; }
  std::uint64_t sequence() const { return sequence_; }
  double duration_ms() const { return static_cast<double>(end_ns_ - start_ns_) / 1e6; }
  const Description& what() const { return what_; }
  void set_limit(Milliseconds timeout) { limit_ = WallClock::now() + timeout; }

 private:
  bool queued() const { return what_.queued && !copies_; }
  void run_to_end();  // the row is settling
  const npusim::Notice* notice_of(int rank) const;
  void compare(int rank, const npusim::Notice& theirs) const;
  void compare_splits(int rank, const npusim::Notice& theirs) const;
  void compare_lines(int rank, const npusim::Notice& theirs);
  std::string circle_of(const std::vector<int>& seats) const;
  [[noreturn]] void never_take_part();
  std::int64_t latest_ready();
  void wait_for_bytes();
  std::string call_of(int rank, const npusim::Notice& notice) const;
  std::string table() const;
  std::string title() const;
  [[noreturn]] void time_out() const;
  void fail();
  void say(const char* state) const;
  void say_fault() const;

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Row> row_;
  const Description what_;
  const Milliseconds timeout_;
  const std::uint64_t sequence_;
  std::vector<int> members_;  // whose notices count, this rank's included
  const WallClock::time_point began_ = WallClock::now();
  WallClock::time_point limit_;
  npusim::Notice notice_;
  std::optional<npusim::FaultKind> fault_;  // why this rank stays away
  double slowdown_ = 1;                     // of the worst links
  std::vector<Inner> works_;
  std::optional<npusim::TurnlessWork> moves_;  // until the bytes are there
  std::vector<at::Tensor> kept_;
  std::function<void()> finish_;
  std::function<void()> copy_;  // guarded by the row's mutex
  std::atomic<bool> copies_{false};
  std::exception_ptr failure_;
  bool aborted_ = false;
  std::int64_t start_ns_ = 0, end_ns_ = 0;
  std::vector<std::shared_ptr<FlightEntry>> records_;  // guarded by the row's mutex
  std::atomic<bool> done_{false};
};

// "all_reduce" and so on, as torch.distributed calls it.
const char* operation_name(c10d::OpType type);

}  // namespace torch_npusim::distributed
