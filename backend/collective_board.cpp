// SPDX-License-Identifier: BSD-3-Clause
// The shared memory is a memfd that the other processes open through /proc: nothing is left behind,
// however the processes end.
//
// The trap in wait(): a notice that arrives between the test and the sleep must not be missed. So
// the bell's count is read before the test, and the futex sleeps only while the count is still that
// one. `waiting` only spares the system call when no rank sleeps: an increment that ring() misses
// comes before a FUTEX_WAIT that then finds the new count.
#include "backend/collective_board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/error.h"

namespace npusim {

namespace {

constexpr std::size_t kTextBytes = 240;
constexpr int kMaskBits = 64;
constexpr int kWaiters = 512;  // ranks beyond are not looked at for circles

long futex(std::atomic<std::uint32_t>* word, int what, std::uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), what, value, limit, nullptr, 0);
}

}  // namespace

struct CollectiveBoard::Seat {
  std::atomic<std::int32_t> process;   // 0: nobody yet; negative: it has left
  std::atomic<std::uint32_t> version;  // odd while the text is being written
  char text[kTextBytes];

  // For Waiter. A wait has a number, which `wait` holds as long as it lasts.
  std::atomic<std::uint32_t> waits, wait, looked;
  std::atomic<std::uint64_t> missing[kWaiters / kMaskBits];  // a bit per rank
  std::atomic<std::int32_t> next;                            // in the circle of the wait `doomed`
  std::atomic<std::uint32_t> doomed;

  bool waits_for(int rank) const noexcept {
    return (missing[rank / kMaskBits].load() >> (rank % kMaskBits) & 1U) != 0;
  }
};

struct CollectiveBoard::Header {
  std::int32_t ranks;
  std::atomic<std::uint32_t> bell;  // counts the notices that were left
  std::atomic<std::uint32_t> waiting;
  Seat seats[1];  // one per rank
};

struct CollectiveBoard::Slot {
  std::atomic<std::uint64_t> stamp;  // the notice's sequence + 1
  Notice notice;
};

namespace {
std::size_t rounded(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
}  // namespace

std::size_t CollectiveBoard::bytes(int ranks) noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  return rounded(sizeof(Header) + n * sizeof(Seat)) +
         rounded((n + 2 * n * n) * kKept * sizeof(Slot));
}

std::shared_ptr<CollectiveBoard> CollectiveBoard::make(int ranks) {
  const int file = memfd_create("npusim_collective_board", MFD_CLOEXEC);
  NPUSIM_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes(ranks))) == 0,
               "memory for the notices of ", ranks, " ranks cannot be had: ", std::strerror(errno));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return std::shared_ptr<CollectiveBoard>(
      new CollectiveBoard(file, ranks, detail::join(host, ":/proc/", getpid(), "/fd/", file)));
}

std::shared_ptr<CollectiveBoard> CollectiveBoard::join(const std::string& address, int ranks) {
  const std::size_t colon = address.find(':');
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  NPUSIM_CHECK(colon != std::string::npos && address.compare(0, colon, host) == 0,
               "the ranks of a group must be processes of one host; the first is on `",
               address.substr(0, colon), "`, this one on `", host, "`");
  const int file = open(address.c_str() + colon + 1, O_RDWR | O_CLOEXEC);
  NPUSIM_CHECK(file >= 0 || errno != ENOENT,
               "the first rank of the group has ended, or has left "
               "it, before this rank joined (",
               address.substr(colon + 1), " is no longer there)");
  NPUSIM_CHECK(file >= 0, "the memory that the group's first rank shares cannot be opened (",
               address.substr(colon + 1), ": ", std::strerror(errno),
               "); the ranks of a group must be processes of one user on one host");
  return std::shared_ptr<CollectiveBoard>(new CollectiveBoard(file, ranks, address));
}

CollectiveBoard::CollectiveBoard(int file, int ranks, std::string address)
    : file_(file), ranks_(ranks), address_(std::move(address)) {
  void* memory =
      mmap(nullptr, bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) {
    close(file);
    throw InvalidArgument(
        detail::join("the notices of ", ranks, " ranks cannot be mapped: ", std::strerror(errno)));
  }
  header_ = static_cast<Header*>(memory);
  header_->ranks = ranks;
  const auto n = static_cast<std::size_t>(ranks);
  slots_ = reinterpret_cast<Slot*>(static_cast<char*>(memory) +
                                   rounded(sizeof(Header) + n * sizeof(Seat)));
}

CollectiveBoard::~CollectiveBoard() {
  munmap(header_, bytes(ranks_));
  close(file_);
}

CollectiveBoard::Slot& CollectiveBoard::slot(Channel channel, int rank,
                                             std::uint64_t sequence) const noexcept {
  const auto n = static_cast<std::size_t>(ranks_);
  std::size_t line = static_cast<std::size_t>(rank);
  if (channel.from >= 0) {
    const auto from = static_cast<std::size_t>(channel.from);
    const auto to = static_cast<std::size_t>(channel.to);
    line = n + 2 * (from * n + to) + (rank == channel.from ? 0 : 1);
  }
  return slots_[line * kKept + sequence % kKept];
}

void CollectiveBoard::leave(Channel channel, int rank, std::uint64_t sequence,
                            const Notice& notice) {
  Slot& mine = slot(channel, rank, sequence);
  mine.notice = notice;
  mine.stamp.store(sequence + 1);
  ring();
}

void CollectiveBoard::ring() noexcept {
  header_->bell.fetch_add(1);
  if (header_->waiting.load() != 0) futex(&header_->bell, FUTEX_WAKE, INT_MAX, nullptr);
}

const Notice* CollectiveBoard::notice(Channel channel, int rank,
                                      std::uint64_t sequence) const noexcept {
  const Slot& theirs = slot(channel, rank, sequence);
  return theirs.stamp.load() == sequence + 1 ? &theirs.notice : nullptr;
}

bool CollectiveBoard::wait(const std::function<bool()>& ready,
                           std::chrono::steady_clock::time_point deadline) {
  using std::chrono::nanoseconds;
  for (;;) {
    const std::uint32_t heard = header_->bell.load();
    if (ready()) return true;
    const auto left =
        std::chrono::duration_cast<nanoseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    const long ns = static_cast<long>(std::min<std::int64_t>(left.count(), 100'000'000));
    const timespec limit{0, ns};
    header_->waiting.fetch_add(1);
    futex(&header_->bell, FUTEX_WAIT, heard, &limit);
    header_->waiting.fetch_sub(1);
  }
}

// The seat holds the process number, so that other ranks can ask the kernel whether it lives.
void CollectiveBoard::enter(int rank) noexcept {
  header_->seats[rank].process.store(static_cast<std::int32_t>(getpid()));
}

void CollectiveBoard::leave(int rank) noexcept {
  std::atomic<std::int32_t>& process = header_->seats[rank].process;
  process.store(-std::abs(process.load()));  // others may still compare with it
  ring();
}

// kill(process, 0) sends nothing: it only asks whether the process exists.
const char* CollectiveBoard::gone(int rank) const noexcept {
  const int process = header_->seats[rank].process.load();
  if (process < 0) return "has left the group";
  return process == 0 || kill(process, 0) == 0 || errno != ESRCH ? nullptr : "has ended";
}

bool CollectiveBoard::same_process(int rank, int other) const noexcept {
  const auto process_of = [&](int seat) { return std::abs(header_->seats[seat].process.load()); };
  return process_of(rank) == process_of(other);
}

// A text is a seqlock: one writer, readers that try again while the version is odd or has changed.
void CollectiveBoard::say(int rank, const std::string& text) noexcept {
  Seat& seat = header_->seats[rank];
  seat.version.fetch_add(1);
  const std::size_t length = std::min(text.size(), kTextBytes - 1);
  std::memcpy(seat.text, text.data(), length);
  seat.text[length] = '\0';
  seat.version.fetch_add(1);
}

std::string CollectiveBoard::said(int rank) const {
  const Seat& seat = header_->seats[rank];
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint32_t before = seat.version.load();
    std::string text(seat.text, strnlen(seat.text, kTextBytes));
    if (before % 2 == 0 && seat.version.load() == before) return text;
  }
  return "";
}

// Every wait of a rank has a number. A rank of which another thread waits already does not take
// part in the search for circles: its seat describes that other wait.
CollectiveBoard::Waiter::Waiter(std::shared_ptr<CollectiveBoard> board, int rank)
    : board_(std::move(board)), rank_(rank) {
  if (board_->ranks_ > kWaiters) return;
  Seat& mine = board_->header_->seats[rank_];
  const std::uint32_t number = mine.waits.fetch_add(1) + 1;
  for (auto& mask : mine.missing) mask.store(0);
  std::uint32_t free = 0;
  if (mine.wait.compare_exchange_strong(free, number)) wait_ = number;
}

CollectiveBoard::Waiter::~Waiter() {
  if (wait_ != 0) board_->header_->seats[rank_].wait.store(0);
}

// Publishes for whom this rank waits, then searches a circle through all published waits. The rank
// that is sure of a circle dooms all of its waits; each rank of it reads its own doom at its next
// look, also if another one has been released by its error already.
std::vector<int> CollectiveBoard::Waiter::look(const std::vector<int>& missing) {
  if (wait_ == 0) return {};
  Seat* seats = board_->header_->seats;
  Seat& mine = seats[rank_];
  std::uint64_t masks[kWaiters / kMaskBits] = {};
  for (const int rank : missing) masks[rank / kMaskBits] |= std::uint64_t{1} << rank % kMaskBits;
  for (std::size_t k = 0; k < std::size(masks); ++k) mine.missing[k].store(masks[k]);
  mine.looked.fetch_add(1);

  if (mine.doomed.load() == wait_) {
    std::vector<int> circle = {rank_};
    for (int rank = mine.next.load();
         rank != rank_ && circle.size() < static_cast<std::size_t>(board_->ranks_);
         rank = seats[rank].next.load()) {
      circle.push_back(rank);
    }
    return circle;
  }
  std::vector<int> circle = shortest_circle();
  if (circle.empty() || !all_looked_again(circle)) return {};
  for (std::size_t k = 0; k < circle.size(); ++k) {
    seats[circle[k]].next.store(circle[(k + 1) % circle.size()]);
  }
  for (const Sight& sight : sights_) seats[sight.rank].doomed.store(sight.wait);
  return circle;
}

// Breadth first from this rank: the first path back to it is the shortest.
std::vector<int> CollectiveBoard::Waiter::shortest_circle() const {
  const Seat* seats = board_->header_->seats;
  std::vector<int> before(static_cast<std::size_t>(board_->ranks_), -1);
  std::vector<int> reached = {rank_};  // in the order of their distance
  for (std::size_t k = 0; k < reached.size(); ++k) {
    const int rank = reached[k];
    if (seats[rank].wait.load() == 0) continue;
    for (int next = 0; next < board_->ranks_; ++next) {
      if (!seats[rank].waits_for(next) || before[static_cast<std::size_t>(next)] >= 0) continue;
      before[static_cast<std::size_t>(next)] = rank;
      if (next != rank_) {
        reached.push_back(next);
        continue;
      }
      std::vector<int> circle = {rank_};
      for (int one = rank; one != rank_; one = before[static_cast<std::size_t>(one)]) {
        circle.insert(circle.begin() + 1, one);
      }
      return circle;
    }
  }
  return {};
}

// A rank may have looked last before another of the circle left the notice that it waits for. One
// that has looked twice since has looked once from beginning to end.
bool CollectiveBoard::Waiter::all_looked_again(const std::vector<int>& circle) {
  const Seat* seats = board_->header_->seats;
  const bool known = std::equal(circle.begin(), circle.end(), sights_.begin(), sights_.end(),
                                [&](int rank, const Sight& seen) {
                                  return rank == seen.rank && seats[rank].wait.load() == seen.wait;
                                });
  if (!known) {
    sights_.clear();
    for (const int rank : circle) {
      sights_.push_back({rank, seats[rank].wait.load(), seats[rank].looked.load()});
    }
    return false;
  }
  return std::all_of(sights_.begin(), sights_.end(), [&](const Sight& seen) {
    return seen.wait != 0 && seats[seen.rank].looked.load() - seen.looked >= 2;
  });
}

}  // namespace npusim
