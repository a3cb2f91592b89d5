// SPDX-License-Identifier: BSD-3-Clause
// A collective that is under way: gloo moves the bytes on its own threads, the words of the ranks
// (backend/rendezvous.h) say when it starts and whether all mean the same, and whoever needs the
// result settles it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "backend/backend.h"
#include "backend/fabric.h"
#include "backend/promise.h"
#include "backend/rendezvous.h"

namespace torch_npusim::distributed {

using Inner = c10::intrusive_ptr<c10d::Work>;
using Milliseconds = std::chrono::milliseconds;
using WallClock = std::chrono::steady_clock;

class Pending;

// What the collectives of a group share.
struct Group {
  Group() = default;
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::string name;                           // as init_process_group() and new_group() know it
  int rank = 0;                               // in the group
  std::vector<int> ranks;                     // of its members in the whole job
  std::shared_ptr<npusim::Rendezvous> words;  // nullptr: the others are like this one, uniform.h
  std::shared_ptr<npusim::Rendezvous> board;  // what each rank is in: of the whole job if possible
  c10::intrusive_ptr<c10d::Backend> gloo;
  std::mutex mutex;     // guards the rest
  bool failed = false;  // gloo may be stuck: it is never asked again, and not destroyed

  // The number of a member in the whole job, and on the board.
  int in_job(int member) const { return ranks[static_cast<std::size_t>(member)]; }
  int on_board(int member) const { return board == words ? member : in_job(member); }
};

// A row of collectives that settle in their order: those of a group, or one rank's transfers to or
// from another.
struct Row {
  npusim::Rendezvous::Channel channel;
  std::uint64_t next = 0;
  std::int64_t end_ns = 0;     // of the last settled one
  std::exception_ptr failure;  // of the first that failed: none after it can be had
  std::mutex settling;         // held while one is waited for
  std::mutex mutex;            // guards `open`
  std::deque<std::shared_ptr<Pending>> open;
};

struct Description {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  npusim::Collective collective = npusim::Collective::all_reduce;
  at::ScalarType dtype = at::kByte;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::UNUSED;
  int root = -1;
  int64_t count = 0;  // what ranks must agree on; 0: nothing
  double bytes = 0;
  int peer = -1;  // of a transfer
  int64_t numel_in = 0, numel_out = 0;
};

class Pending final : public npusim::Promise {
 public:
  Pending(std::shared_ptr<Group> group, std::shared_ptr<Row> row, Description what,
          Milliseconds timeout);

  // announce() leaves word that this rank is ready, with links that have 1/slowdown of their
  // bandwidth. Raises if another rank's word contradicts it: then nothing may be moved.
  void announce(std::int64_t ready_ns, double slowdown, const std::string& line);

  // stay_away() is what a rank that a fault hit does instead: nobody hears of it.
  void stay_away(npusim::FaultKind fault, const std::string& line);

  // moving() takes what gloo was given, the tensors whose bytes it moves, and what is to be done
  // when it is over.
  void moving(std::vector<Inner> works, std::vector<at::Tensor> kept, std::function<void()> finish);

  // chains() is whether the next one of the row may be given to gloo before this is settled.
  bool chains_with(const Row& row) const { return &row == row_.get() && !finish_; }

  std::int64_t settle() override;
  bool settled() const noexcept override { return done_.load(std::memory_order_acquire); }
  bool failed() const { return settled() && failure_ != nullptr; }
  const Group& group() const { return *group_; }
  std::uint64_t sequence() const { return sequence_; }
  const Description& what() const { return what_; }
  void set_limit(Milliseconds timeout) { limit_ = WallClock::now() + timeout; }

 private:
  void run_to_end();  // the row's settling lock is held
  const npusim::Word* word_of(int rank) const;
  void compare(int rank, const npusim::Word& theirs) const;
  [[noreturn]] void never_take_part();
  std::int64_t latest_ready();
  void wait_for_bytes();
  std::string call_of(int rank, const npusim::Word& word) const;
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
  std::vector<int> members_;  // whose words count, this rank's included
  const WallClock::time_point began_ = WallClock::now();
  WallClock::time_point limit_;
  npusim::Word word_;
  std::optional<npusim::FaultKind> fault_;  // why this rank stays away
  double slowdown_ = 1;                     // of the worst links
  std::vector<Inner> works_;
  std::optional<npusim::TurnlessWork> moves_;  // until the bytes are there
  std::vector<at::Tensor> kept_;
  std::function<void()> finish_;
  std::exception_ptr failure_;
  std::int64_t end_ns_ = 0;
  std::atomic<bool> done_{false};
};

// The line of the program that the calling thread is in, or "".
using LineSource = std::string (*)();
void set_line_source(LineSource source) noexcept;
std::string current_line();

// "all_reduce" and so on, as torch.distributed calls it.
const char* operation_name(c10d::OpType type);

}  // namespace torch_npusim::distributed
