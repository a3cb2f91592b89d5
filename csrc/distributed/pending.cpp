// SPDX-License-Identifier: BSD-3-Clause
// The ranks' notices are compared before the transport moves a byte: ranks that disagree raise, and
// no memory has changed.
#include "csrc/distributed/pending.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <utility>

#include "backend/observer.h"
#include "csrc/distributed/caller.h"

namespace torch_npusim::distributed {

namespace {

// Tensors that the transport may still write to, and the transport, whose destructor would wait.
void keep_forever(c10::intrusive_ptr<c10d::Backend> transport, std::vector<Inner> works,
                  std::vector<at::Tensor> kept) {
  struct Stuck {
    c10::intrusive_ptr<c10d::Backend> transport;
    std::vector<Inner> works;
    std::vector<at::Tensor> kept;
  };
  new Stuck{std::move(transport), std::move(works), std::move(kept)};
}

const char* reduction_name(std::uint8_t reduction) {
  constexpr std::array<const char*, 10> kNames = {"sum",  "avg", "product", "min",        "max",
                                                  "band", "bor", "bxor",    "premul_sum", ""};
  return reduction < kNames.size() ? kNames[reduction] : "";
}

std::string element_type(std::uint8_t type) {
  return std::string(c10::getDtypeNames(static_cast<c10::ScalarType>(type)).first);
}

bool is_transfer(c10d::OpType type) {
  return type == c10d::OpType::SEND || type == c10d::OpType::RECV;
}

// A program has no reason to ask for these on different lines: no rank has a part of its own.
bool is_symmetric(c10d::OpType type) {
  using c10d::OpType;
  return type == OpType::ALLREDUCE || type == OpType::ALLGATHER ||
         type == OpType::_ALLGATHER_BASE || type == OpType::REDUCE_SCATTER ||
         type == OpType::_REDUCE_SCATTER_BASE || type == OpType::ALLTOALL ||
         type == OpType::ALLTOALL_BASE;
}

}  // namespace

// gloo's destructor joins threads that may want the GIL, for what a work has of its thread's state;
// the last owner is often Python, or the reducer of DDP, which keeps the GIL (pytorch/pytorch
// 56297).
Group::~Group() {
  const auto drop = [](void* group) { static_cast<Group*>(group)->transport.reset(); };
  npusim::detail::without_locks(drop, this);
}

void Group::end(const char* reason) {
  const std::lock_guard lock(mutex);
  if (over == nullptr) over = reason;
}

void Group::tell_hook() {
  std::unique_lock lock(mutex);
  if (!hook) return ended.clear();
  const auto infos = std::exchange(ended, {});
  lock.unlock();
  for (const auto& info : infos) hook(info);
}

const char* operation_name(c10d::OpType type) {
  using c10d::OpType;
  switch (type) {
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return "all_reduce";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
    case OpType::ALLGATHER_COALESCED:
      return "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "all_gather_into_tensor";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return "reduce_scatter_tensor";
    case OpType::ALLTOALL_BASE:
      return "all_to_all_single";
    case OpType::ALLTOALL:
      return "all_to_all";
    case OpType::SEND:
      return "send";
    case OpType::RECV:
      return "recv";
    case OpType::BARRIER:
      return "barrier";
    default:
      return "collective";
  }
}

Pending::Pending(std::shared_ptr<Group> group, std::shared_ptr<Row> row, Description what,
                 Milliseconds timeout)
    : group_(std::move(group)),
      row_(std::move(row)),
      what_(what),
      timeout_(timeout),
      sequence_(row_->next++),
      limit_(began_ + timeout) {
  if (what.peer >= 0) {
    members_ = {group_->rank};
    if (what.peer != group_->rank) members_.push_back(what.peer);
  } else {
    members_.resize(group_->ranks.size());
    std::iota(members_.begin(), members_.end(), 0);
  }
}

const npusim::Notice* Pending::notice_of(int rank) const {
  return group_->notices->notice(row_->channel, rank, sequence_);
}

std::string Pending::call_of(int rank, const npusim::Notice& notice) const {
  const auto type = static_cast<c10d::OpType>(notice.operation);
  std::ostringstream out;
  out << "  rank " << group_->in_job(rank) << ": " << operation_name(type);
  if (type != c10d::OpType::BARRIER) {
    out << "(" << element_type(notice.type);
    if (notice.count != 0) out << "[" << notice.count << "]";
    if (*reduction_name(notice.reduction) != '\0') out << ", " << reduction_name(notice.reduction);
    if (notice.root >= 0) out << ", root " << notice.root;
    out << ")";
  }
  if (notice.line[0] != '\0') out << " at " << notice.line;
  return out.str();
}

// Raises if this rank and another mean different collectives, or share one device from different
// processes. Both notices are immutable by now.
void Pending::compare(int rank, const npusim::Notice& theirs) const {
  const bool shared = rank != group_->rank && theirs.device >= 0 &&
                      theirs.device == notice_.device &&
                      !group_->notices->same_process(rank, group_->rank);
  TORCH_CHECK_WITH(DistBackendError, !shared, "simccl: Duplicate GPU detected : rank ",
                   group_->in_job(std::min(rank, group_->rank)), " and rank ",
                   group_->in_job(std::max(rank, group_->rank)), " of group '", group_->name,
                   "' are both on device ", theirs.device,
                   " of this host. Each needs one of its own, as with NCCL: "
                   "torch.npusim.set_device(local_rank) before the first collective");
  const auto type = static_cast<c10d::OpType>(theirs.operation);
  const bool same_operation = is_transfer(what_.type) || theirs.operation == notice_.operation;
  const bool same = same_operation && theirs.type == notice_.type &&
                    theirs.count == notice_.count && theirs.root == notice_.root &&
                    theirs.reduction == notice_.reduction;
  if (same) return compare_splits(rank, theirs);
  const char* what = !same_operation                 ? "different operations"
                     : theirs.type != notice_.type   ? "different types"
                     : theirs.count != notice_.count ? "different numbers of elements"
                     : theirs.root != notice_.root   ? "different roots"
                                                     : "different reductions";
  const int first = std::min(rank, group_->rank);
  const auto& first_notice = first == rank ? theirs : notice_;
  const auto& second_notice = first == rank ? notice_ : theirs;
  TORCH_CHECK_WITH(DistBackendError, false, "simccl: the ranks of group '", group_->name,
                   "' disagree: ", what, " are ", is_transfer(type) ? "transfer " : "collective ",
                   sequence_, " of the group\n", call_of(first, first_notice), "\n",
                   call_of(std::max(rank, group_->rank), second_notice));
}

// The transport would end the process: one side's bytes do not fit into the other's.
void Pending::compare_splits(int rank, const npusim::Notice& theirs) const {
  if (what_.sends.empty() || std::max(rank, group_->rank) >= npusim::Notice::kCounted) return;
  const auto check = [&](int from, int to, const npusim::Notice& sender,
                         const npusim::Notice& receiver) {
    TORCH_CHECK_WITH(DistBackendError, sender.sends[to] == receiver.expects[from],
                     "simccl: the ranks of group '", group_->name,
                     "' disagree: different splits are collective ", sequence_, " of the group\n",
                     call_of(from, sender), ", ", sender.sends[to], " bytes for rank ",
                     group_->in_job(to), "\n", call_of(to, receiver), ", ", receiver.expects[from],
                     " bytes from rank ", group_->in_job(from));
  };
  check(rank, group_->rank, theirs, notice_);
  check(group_->rank, rank, notice_, theirs);
}

// Equal collectives from different lines are legal; the warning comes once per group.
void Pending::compare_lines(int rank, const npusim::Notice& theirs) {
  if (!is_symmetric(what_.type) || group_->said_lines || notice_.line[0] == '\0' ||
      theirs.line[0] == '\0' || std::string_view(notice_.line) == theirs.line) {
    return;
  }
  group_->said_lines = true;
  TORCH_WARN("simccl: the ranks of group '", group_->name,
             "' are on different lines in collective ", sequence_,
             " of the group. Unless these are branches of one step, a rank has swapped "
             "or skipped a collective, and values are mixed up. This is said once.\n",
             call_of(group_->rank, notice_), "\n", call_of(rank, theirs));
}

// "rank 0 for rank 1, rank 1 for rank 0": who waits for whom.
std::string Pending::circle_of(const std::vector<int>& seats) const {
  std::ostringstream out;
  for (std::size_t k = 0; k < seats.size(); ++k) {
    const auto rank = [&](std::size_t i) {
      const int seat = seats[i % seats.size()];
      return group_->board == group_->notices ? group_->in_job(seat) : seat;
    };
    out << (k == 0 ? "rank " : ", rank ") << rank(k) << " for rank " << rank(k + 1);
  }
  return out.str();
}

void Pending::stay_away(npusim::FaultKind fault, const std::string& line) {
  fault_ = fault;
  std::snprintf(notice_.line, sizeof notice_.line, "%s", line.c_str());
  say_fault();
}

void Pending::say_fault() const {
  say(*fault_ == npusim::FaultKind::hang ? "hangs (injected fault) in "
                                         : "failed (injected fault) in ");
}

// The comparison here sees the ranks that came earlier; latest_ready() sees the others. A rank that
// disagrees is told before it gives its bytes to the transport.
void Pending::announce(std::int64_t ready_ns, double slowdown, const std::string& line) {
  notice_.ready_ns = ready_ns;
  notice_.slowdown = static_cast<float>(slowdown);
  if (group_->notices == nullptr) return;
  notice_.count = static_cast<std::uint64_t>(what_.count);
  notice_.root = what_.root;
  notice_.operation = static_cast<std::uint8_t>(what_.type);
  notice_.type = static_cast<std::uint8_t>(what_.dtype);
  notice_.reduction = static_cast<std::uint8_t>(what_.reduction);
  notice_.device = what_.device;
  for (std::size_t i = 0; i < std::min<std::size_t>(what_.sends.size(), npusim::Notice::kCounted);
       ++i) {
    notice_.sends[i] = static_cast<std::uint64_t>(what_.sends[i]);
    notice_.expects[i] = static_cast<std::uint64_t>(what_.expects[i]);
  }
  std::snprintf(notice_.line, sizeof notice_.line, "%s", line.c_str());
  say("started ");
  {
    const std::lock_guard lock(row_->mutex);
    for (const auto& record : records_) record->start();
  }
  group_->notices->leave(row_->channel, group_->rank, sequence_, notice_);
  try {
    for (const int rank : members_) {
      if (rank == group_->rank) continue;
      if (const npusim::Notice* theirs = notice_of(rank)) compare(rank, *theirs);
    }
  } catch (...) {
    fail();
    throw;
  }
}

void Pending::moving(std::vector<Inner> works, std::vector<at::Tensor> kept,
                     std::function<void()> finish) {
  moves_.emplace();
  works_ = std::move(works);
  kept_ = std::move(kept);
  finish_ = std::move(finish);
}

bool Pending::copying(std::function<void()> copy) {
  const std::lock_guard lock(row_->mutex);
  if (settled() || row_->open.empty() || row_->open.back().get() != this) return false;
  copy_ = std::move(copy);
  copies_ = true;
  return true;
}

bool Pending::covers(const npusim::Promise& other) const noexcept {
  const auto* earlier = dynamic_cast<const Pending*>(&other);
  return earlier != nullptr && earlier->row_ == row_ && earlier->sequence_ <= sequence_ &&
         earlier->queued() == queued();  // which settle_others() of simccl.cpp asks
}

// Settling is in the order of the row: an earlier collective of it ends first. One thread is at the
// first of them; others go on when theirs has ended, which may be before that thread's.
std::int64_t Pending::settle() {
  if (!settled()) {
    std::unique_lock lock(row_->mutex);
    while (!settled() && !row_->open.empty()) {
      if (row_->settling) {
        row_->settled.wait(lock);
        continue;
      }
      row_->settling = true;
      const std::shared_ptr<Pending> first = row_->open.front();
      const auto next_turn = c10::make_scope_exit([&] {
        lock.lock();
        row_->open.pop_front();
        row_->settling = false;
        row_->settled.notify_all();
      });
      lock.unlock();
      first->run_to_end();
    }
  }
  group_->tell_hook();
  if (failure_ && !aborted_) std::rethrow_exception(failure_);
  return end_ns_;
}

// Start: when the last rank is ready, and no earlier than the end of the collective before. End:
// the model of the fabric. After a failure, everything later in the row fails for the same reason.
// An abort ends the command, as on CUDA: it has no result, and no error but that of the work.
void Pending::run_to_end() {
  try {
    if (row_->failure) std::rethrow_exception(row_->failure);
    if (fault_) never_take_part();
    say("waits for ");
    start_ns_ = std::max(latest_ready(), row_->end_ns);
    wait_for_bytes();
    if (finish_) finish_();
    std::vector<int> ranks;
    for (const int rank : members_) ranks.push_back(group_->in_job(rank));
    end_ns_ = start_ns_ + npusim::communication_ns(what_.collective, ranks, what_.bytes, slowdown_,
                                                   group_->ranks);
    npusim::note_kept(this, std::max(notice_.ready_ns, row_->end_ns), end_ns_);
    row_->end_ns = end_ns_;
    say("finished ");
  } catch (...) {
    failure_ = row_->failure = std::current_exception();
    fail();
    aborted_ = group_->aborted;
    start_ns_ = end_ns_ = std::max(notice_.ready_ns, row_->end_ns);
    if (aborted_) TORCH_WARN("simccl: ", title(), " was aborted: its results are undefined");
  }
  works_.clear();
  kept_.clear();
  finish_ = nullptr;
  moves_.reset();
  {
    const std::lock_guard lock(row_->mutex);
    if (copy_ && failure_ == nullptr) copy_();
    copy_ = nullptr;
    done_.store(true, std::memory_order_release);
    for (const auto& record : records_) record->end(failure_ == nullptr, duration_ms());
    records_.clear();
  }
  const std::lock_guard lock(group_->mutex);
  const std::chrono::duration<float> active(static_cast<float>(duration_ms() / 1e3));
  if (group_->hook) {
    group_->ended.push_back(std::make_shared<c10d::WorkInfo>(what_.type, sequence_ + 1, began_,
                                                             WallClock::now(), active));
  }
}

void Pending::report_to(std::shared_ptr<FlightEntry> record) {
  const std::lock_guard lock(row_->mutex);
  if (!settled()) return records_.push_back(std::move(record));
  record->end(failure_ == nullptr, duration_ms());
}

// A rank that hangs finds out as the others do: when its time is up.
void Pending::never_take_part() {
  say_fault();  // what came before has said something else since
  TORCH_CHECK_WITH(DistBackendError, *fault_ == npusim::FaultKind::hang, "simccl: ", title(),
                   ": did not start (injected ", npusim::fault_kind_name(*fault_), " fault)");
  if (group_->notices != nullptr) {
    group_->notices->wait([&] { return group_->aborted.load(); }, limit_);
  }
  time_out();
}

// Waits in wall-clock time until the notices of all members are there, and returns the latest
// virtual time of readiness. Gives up, with the reason, if a member has left or died, if ranks wait
// for each other in a circle, if the transport has failed, or at the time limit.
std::int64_t Pending::latest_ready() {
  if (group_->notices == nullptr) {
    slowdown_ = static_cast<double>(notice_.slowdown);
    return notice_.ready_ns;
  }
  int gone = -1;
  bool broken = false;
  int looks = 0;
  const bool in_threads = group_->notices->same_process(members_.front(), members_.back());
  std::optional<npusim::CollectiveBoard::Waiter> waiter;
  std::vector<int> circle;
  const auto all_here = [&] {
    std::vector<int> missing;  // by their seats
    for (const int rank : members_) {
      if (notice_of(rank) != nullptr) continue;
      const bool left = group_->notices->gone(rank) != nullptr;
      if (left && notice_of(rank) != nullptr) continue;  // it has left its notice, then the group
      missing.push_back(group_->on_board(rank));
      if (left && gone < 0) gone = rank;
    }
    if (missing.empty() || group_->aborted) return true;
    // Only collectives tell without being waited for.
    broken = !is_transfer(what_.type) && std::any_of(works_.begin(), works_.end(), [](auto& work) {
      return work->isCompleted() && work->exception() != nullptr;
    });
    if (++looks == 2 && acts_alone(in_threads)) {  // most waits are over by then
      waiter.emplace(group_->board, group_->on_board(group_->rank));
    }
    if (waiter) circle = waiter->look(missing);
    return broken || gone >= 0 || !circle.empty();
  };
  if (!group_->notices->wait(all_here, limit_)) time_out();
  TORCH_CHECK_WITH(DistBackendError, !group_->aborted, "simccl: ", title(), " was aborted");
  TORCH_CHECK_WITH(DistBackendError, circle.empty(), "simccl: ", title(),
                   ": the ranks wait for each other, and none can go on: ", circle_of(circle), "\n",
                   table());
  if (broken) wait_for_bytes();  // says what is wrong
  if (gone >= 0) {
    TORCH_CHECK_WITH(DistBackendError, false, "simccl: ", title(), ": rank ", group_->in_job(gone),
                     " ", group_->notices->gone(gone), " before it took part\n", table());
  }
  std::int64_t latest_ns = notice_.ready_ns;
  for (const int rank : members_) {
    const npusim::Notice& theirs = *notice_of(rank);
    compare(rank, theirs);
    compare_lines(rank, theirs);
    latest_ns = std::max(latest_ns, theirs.ready_ns);
    slowdown_ = std::max(slowdown_, static_cast<double>(theirs.slowdown));
  }
  return latest_ns;
}

// Waits in wall-clock time, with what remains of the limit, and at least a millisecond.
void Pending::wait_for_bytes() {
  for (const Inner& work : works_) {
    const auto left = std::chrono::duration_cast<Milliseconds>(limit_ - WallClock::now());
    try {
      work->wait(std::max(left, Milliseconds(1)));
    } catch (const std::exception&) {
      if (WallClock::now() >= limit_) time_out();
      // The transport's own words are about connections of which a program knows nothing.
      TORCH_CHECK_WITH(DistBackendError, false, "simccl: ", title(),
                       ": another rank has ended, or is in another call\n", table());
    }
  }
}

std::string Pending::title() const {
  std::ostringstream out;
  out << operation_name(what_.type) << " " << sequence_ << " of group '" << group_->name << "'";
  if (what_.peer >= 0) {
    out << (what_.type == c10d::OpType::SEND ? " to rank " : " from rank ")
        << group_->in_job(what_.peer);
  }
  if (notice_.line[0] != '\0') out << " at " << notice_.line;
  return out.str();
}

// For error texts: the last state that each rank has published.
std::string Pending::table() const {
  if (group_->notices == nullptr) return "the other ranks are like this one";
  std::ostringstream out;
  out << "what the ranks are in:";
  for (int member = 0; member < static_cast<int>(group_->ranks.size()); ++member) {
    const std::string said = group_->board->said(group_->on_board(member));
    out << "\n  rank " << group_->in_job(member) << ": "
        << (said.empty() ? "no collective so far" : said);
    if (const char* gone = group_->notices->gone(member)) out << "; it " << gone;
  }
  return out.str();
}

void Pending::say(const char* state) const {
  if (group_->notices == nullptr) return;
  group_->board->say(group_->on_board(group_->rank), state + title());
}

void Pending::time_out() const {
  const auto ran = std::chrono::duration_cast<Milliseconds>(WallClock::now() - began_).count();
  TORCH_CHECK_WITH(DistBackendError, false, "[Rank ", group_->in_job(group_->rank),
                   "] Watchdog caught collective operation timeout: WorkSimCCL(SeqNum=", sequence_,
                   ", OpType=", c10d::opTypeToString(what_.type), ", NumelIn=", what_.numel_in,
                   ", NumelOut=", what_.numel_out, ", Timeout(ms)=", timeout_.count(), ") ran for ",
                   ran, " milliseconds before timing out.\n", title(), "\n", table());
}

// The transport may write to the tensors for ever: they and it are leaked, and it is not asked
// again.
void Pending::fail() {
  group_->end("was aborted after a failure; destroy_process_group() and initialize again");
  keep_forever(group_->transport, works_, kept_);
  if (!group_->aborted) tell_failure(group_->in_job(group_->rank));
}

}  // namespace torch_npusim::distributed
