// SPDX-License-Identifier: BSD-3-Clause
// Agreement first, bytes second: a rank that means something else never lets gloo move a byte.
#include "csrc/distributed/pending.h"

#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "backend/observer.h"

namespace torch_npusim::distributed {

namespace {

constinit std::atomic<LineSource> g_line_source{nullptr};

// What gloo may still be writing to, and gloo itself, whose destructor would wait for it.
void keep_forever(c10::intrusive_ptr<c10d::Backend> gloo, std::vector<Inner> works,
                  std::vector<at::Tensor> kept) {
  struct Stuck {
    c10::intrusive_ptr<c10d::Backend> gloo;
    std::vector<Inner> works;
    std::vector<at::Tensor> kept;
  };
  new Stuck{std::move(gloo), std::move(works), std::move(kept)};
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

}  // namespace

// gloo's destructor joins threads that may want the GIL, for what a work has of its thread's state;
// the last owner is often Python, or the reducer of DDP, which keeps the GIL (pytorch/pytorch
// 56297).
Group::~Group() {
  const auto drop = [](void* group) { static_cast<Group*>(group)->gloo.reset(); };
  npusim::detail::without_locks(drop, this);
}

void set_line_source(LineSource source) noexcept { g_line_source.store(source); }
std::string current_line() {
  const LineSource source = g_line_source.load();
  return source == nullptr ? "" : source();
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

const npusim::Word* Pending::word_of(int rank) const {
  return group_->words->word(row_->channel, rank, sequence_);
}

std::string Pending::call_of(int rank, const npusim::Word& word) const {
  const auto type = static_cast<c10d::OpType>(word.operation);
  std::ostringstream out;
  out << "  rank " << group_->in_job(rank) << ": " << operation_name(type);
  if (type != c10d::OpType::BARRIER) {
    out << "(" << element_type(word.type);
    if (word.count != 0) out << "[" << word.count << "]";
    if (*reduction_name(word.reduction) != '\0') out << ", " << reduction_name(word.reduction);
    if (word.root >= 0) out << ", root " << word.root;
    out << ")";
  }
  if (word.line[0] != '\0') out << " at " << word.line;
  return out.str();
}

void Pending::compare(int rank, const npusim::Word& theirs) const {
  const auto type = static_cast<c10d::OpType>(theirs.operation);
  const bool same_operation = is_transfer(what_.type) || theirs.operation == word_.operation;
  const bool same = same_operation && theirs.type == word_.type && theirs.count == word_.count &&
                    theirs.root == word_.root && theirs.reduction == word_.reduction;
  if (same) return;
  const char* what = !same_operation               ? "different operations"
                     : theirs.type != word_.type   ? "different types"
                     : theirs.count != word_.count ? "different numbers of elements"
                     : theirs.root != word_.root   ? "different roots"
                                                   : "different reductions";
  const int first = std::min(rank, group_->rank);
  const auto& first_word = first == rank ? theirs : word_;
  const auto& second_word = first == rank ? word_ : theirs;
  TORCH_CHECK_WITH(DistBackendError, false, "simccl: the ranks of group '", group_->name,
                   "' disagree: ", what, " are ", is_transfer(type) ? "transfer " : "collective ",
                   sequence_, " of the group\n", call_of(first, first_word), "\n",
                   call_of(std::max(rank, group_->rank), second_word));
}

void Pending::stay_away(npusim::FaultKind fault, const std::string& line) {
  fault_ = fault;
  std::snprintf(word_.line, sizeof word_.line, "%s", line.c_str());
  say_fault();
}

void Pending::say_fault() const {
  say(*fault_ == npusim::FaultKind::hang ? "hangs (injected fault) in "
                                         : "failed (injected fault) in ");
}

void Pending::announce(std::int64_t ready_ns, double slowdown, const std::string& line) {
  word_.ready_ns = ready_ns;
  word_.slowdown = static_cast<float>(slowdown);
  if (group_->words == nullptr) return;
  word_.count = static_cast<std::uint64_t>(what_.count);
  word_.root = what_.root;
  word_.operation = static_cast<std::uint8_t>(what_.type);
  word_.type = static_cast<std::uint8_t>(what_.dtype);
  word_.reduction = static_cast<std::uint8_t>(what_.reduction);
  std::snprintf(word_.line, sizeof word_.line, "%s", line.c_str());
  say("started ");
  group_->words->leave(row_->channel, group_->rank, sequence_, word_);
  try {
    for (const int rank : members_) {
      if (rank == group_->rank) continue;
      if (const npusim::Word* theirs = word_of(rank)) compare(rank, *theirs);
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

std::int64_t Pending::settle() {
  if (!settled()) {
    const std::lock_guard turn(row_->settling);
    for (;;) {
      std::shared_ptr<Pending> first;
      {
        const std::lock_guard lock(row_->mutex);
        if (settled() || row_->open.empty()) break;
        first = row_->open.front();
      }
      first->run_to_end();
      const std::lock_guard lock(row_->mutex);
      row_->open.pop_front();
    }
  }
  if (failure_) std::rethrow_exception(failure_);
  return end_ns_;
}

void Pending::run_to_end() {
  try {
    if (row_->failure) std::rethrow_exception(row_->failure);
    if (fault_) never_take_part();
    say("waits for ");
    const std::int64_t start_ns = std::max(latest_ready(), row_->end_ns);
    wait_for_bytes();
    if (finish_) finish_();
    std::vector<int> ranks;
    for (const int rank : members_) ranks.push_back(group_->in_job(rank));
    end_ns_ = start_ns + npusim::communication_ns(what_.collective, ranks, what_.bytes, slowdown_);
    npusim::note_kept(this, std::max(word_.ready_ns, row_->end_ns), end_ns_);
    row_->end_ns = end_ns_;
    say("finished ");
  } catch (...) {
    failure_ = row_->failure = std::current_exception();
    fail();
  }
  works_.clear();
  kept_.clear();
  finish_ = nullptr;
  moves_.reset();
  done_.store(true, std::memory_order_release);
}

// A rank that hangs finds out as the others do: when its time is up.
void Pending::never_take_part() {
  say_fault();  // what came before has said something else since
  TORCH_CHECK_WITH(DistBackendError, *fault_ == npusim::FaultKind::hang, "simccl: ", title(),
                   ": did not start (injected ", npusim::fault_kind_name(*fault_), " fault)");
  if (group_->words != nullptr) group_->words->wait([] { return false; }, limit_);
  time_out();
}

std::int64_t Pending::latest_ready() {
  if (group_->words == nullptr) {
    slowdown_ = static_cast<double>(word_.slowdown);
    return word_.ready_ns;
  }
  int gone = -1;
  bool broken = false;
  const auto all_here = [&] {
    bool all = true;
    for (const int rank : members_) {
      if (word_of(rank) != nullptr) continue;
      const bool left = group_->words->gone(rank) != nullptr;
      if (left && word_of(rank) != nullptr) continue;  // it has left word, then the group
      all = false;
      if (left && gone < 0) gone = rank;
    }
    if (all) return true;
    // Only collectives tell without being waited for.
    broken = !is_transfer(what_.type) && std::any_of(works_.begin(), works_.end(), [](auto& work) {
      return work->isCompleted() && work->exception() != nullptr;
    });
    return broken || gone >= 0;
  };
  if (!group_->words->wait(all_here, limit_)) time_out();
  if (broken) wait_for_bytes();  // says what is wrong
  if (gone >= 0) {
    TORCH_CHECK_WITH(DistBackendError, false, "simccl: ", title(), ": rank ", group_->in_job(gone),
                     " ", group_->words->gone(gone), " before it took part\n", table());
  }
  std::int64_t latest_ns = word_.ready_ns;
  for (const int rank : members_) {
    const npusim::Word& theirs = *word_of(rank);
    compare(rank, theirs);
    latest_ns = std::max(latest_ns, theirs.ready_ns);
    slowdown_ = std::max(slowdown_, static_cast<double>(theirs.slowdown));
  }
  return latest_ns;
}

void Pending::wait_for_bytes() {
  for (const Inner& work : works_) {
    const auto left = std::chrono::duration_cast<Milliseconds>(limit_ - WallClock::now());
    try {
      work->wait(std::max(left, Milliseconds(1)));
    } catch (const std::exception& error) {
      if (WallClock::now() >= limit_) time_out();
      std::string reason = error.what();
      reason.resize(std::min(reason.find('\n'), reason.size()));
      TORCH_CHECK_WITH(DistBackendError, false, "simccl: ", title(), ": ", reason, "\n", table());
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
  if (word_.line[0] != '\0') out << " at " << word_.line;
  return out.str();
}

std::string Pending::table() const {
  if (group_->words == nullptr) return "the other ranks are like this one";
  std::ostringstream out;
  out << "what the ranks are in:";
  for (int member = 0; member < static_cast<int>(group_->ranks.size()); ++member) {
    const std::string said = group_->board->said(group_->on_board(member));
    out << "\n  rank " << group_->in_job(member) << ": "
        << (said.empty() ? "no collective so far" : said);
    if (const char* gone = group_->words->gone(member)) out << "; it " << gone;
  }
  return out.str();
}

void Pending::say(const char* state) const {
  if (group_->words == nullptr) return;
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

void Pending::fail() {
  const std::lock_guard lock(group_->mutex);
  group_->failed = true;
  keep_forever(group_->gloo, works_, kept_);
}

}  // namespace torch_npusim::distributed
