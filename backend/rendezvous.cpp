// SPDX-License-Identifier: BSD-3-Clause
// The shared memory is a memfd that the others open through /proc: nothing is left behind, however
// the processes end.
#include "backend/rendezvous.h"

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
#include <cstring>

#include "backend/error.h"

namespace npusim {

namespace {

constexpr std::size_t kTextBytes = 240;
constexpr std::int32_t kLeft = -1;

struct Seat {
  std::atomic<std::int32_t> process;   // 0: nobody yet; kLeft
  std::atomic<std::uint32_t> version;  // odd while the text is being written
  char text[kTextBytes];
};

long futex(std::atomic<std::uint32_t>* word, int what, std::uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), what, value, limit, nullptr, 0);
}

}  // namespace

struct Rendezvous::Header {
  std::int32_t ranks;
  std::atomic<std::uint32_t> bell;  // counts the words that were left
  std::atomic<std::uint32_t> waiting;
  Seat seats[1];  // one per rank
};

struct Rendezvous::Slot {
  std::atomic<std::uint64_t> stamp;  // the word's sequence + 1
  Word word;
};

namespace {
std::size_t rounded(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
}  // namespace

std::size_t Rendezvous::bytes(int ranks) noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  return rounded(sizeof(Header) + n * sizeof(Seat)) +
         rounded((n + 2 * n * n) * kKept * sizeof(Slot));
}

std::shared_ptr<Rendezvous> Rendezvous::make(int ranks) {
  const int file = memfd_create("npusim_rendezvous", MFD_CLOEXEC);
  NPUSIM_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes(ranks))) == 0,
               "memory for the words of ", ranks, " ranks cannot be had: ", std::strerror(errno));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return std::shared_ptr<Rendezvous>(
      new Rendezvous(file, ranks, detail::join(host, ":/proc/", getpid(), "/fd/", file)));
}

std::shared_ptr<Rendezvous> Rendezvous::join(const std::string& address, int ranks) {
  const std::size_t colon = address.find(':');
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  NPUSIM_CHECK(colon != std::string::npos && address.compare(0, colon, host) == 0,
               "the ranks of a group must be processes of one host; the first is on `",
               address.substr(0, colon), "`, this one on `", host, "`");
  const int file = open(address.c_str() + colon + 1, O_RDWR | O_CLOEXEC);
  NPUSIM_CHECK(file >= 0, "the memory that the group's first rank shares cannot be opened (",
               address.substr(colon + 1), ": ", std::strerror(errno),
               "); the ranks of a group must be processes of one user on one host");
  return std::shared_ptr<Rendezvous>(new Rendezvous(file, ranks, address));
}

Rendezvous::Rendezvous(int file, int ranks, std::string address)
    : file_(file), ranks_(ranks), address_(std::move(address)) {
  void* memory =
      mmap(nullptr, bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) {
    close(file);
    throw InvalidArgument(
        detail::join("the words of ", ranks, " ranks cannot be mapped: ", std::strerror(errno)));
  }
  header_ = static_cast<Header*>(memory);
  header_->ranks = ranks;
  const auto n = static_cast<std::size_t>(ranks);
  slots_ = reinterpret_cast<Slot*>(static_cast<char*>(memory) +
                                   rounded(sizeof(Header) + n * sizeof(Seat)));
}

Rendezvous::~Rendezvous() {
  munmap(header_, bytes(ranks_));
  close(file_);
}

Rendezvous::Slot& Rendezvous::slot(Channel channel, int rank,
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

void Rendezvous::leave(Channel channel, int rank, std::uint64_t sequence, const Word& word) {
  Slot& mine = slot(channel, rank, sequence);
  mine.word = word;
  mine.stamp.store(sequence + 1);
  ring();
}

void Rendezvous::ring() noexcept {
  header_->bell.fetch_add(1);
  if (header_->waiting.load() != 0) futex(&header_->bell, FUTEX_WAKE, INT_MAX, nullptr);
}

const Word* Rendezvous::word(Channel channel, int rank, std::uint64_t sequence) const noexcept {
  const Slot& theirs = slot(channel, rank, sequence);
  return theirs.stamp.load() == sequence + 1 ? &theirs.word : nullptr;
}

bool Rendezvous::wait(const std::function<bool()>& ready,
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

void Rendezvous::enter(int rank) noexcept {
  header_->seats[rank].process.store(static_cast<std::int32_t>(getpid()));
}

void Rendezvous::leave(int rank) noexcept {
  header_->seats[rank].process.store(kLeft);
  ring();
}

const char* Rendezvous::gone(int rank) const noexcept {
  const int process = header_->seats[rank].process.load();
  if (process == kLeft) return "has left the group";
  return process == 0 || kill(process, 0) == 0 || errno != ESRCH ? nullptr : "has ended";
}

void Rendezvous::say(int rank, const std::string& text) noexcept {
  Seat& seat = header_->seats[rank];
  seat.version.fetch_add(1);
  const std::size_t length = std::min(text.size(), kTextBytes - 1);
  std::memcpy(seat.text, text.data(), length);
  seat.text[length] = '\0';
  seat.version.fetch_add(1);
}

std::string Rendezvous::said(int rank) const {
  const Seat& seat = header_->seats[rank];
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint32_t before = seat.version.load();
    std::string text(seat.text, strnlen(seat.text, kTextBytes));
    if (before % 2 == 0 && seat.version.load() == before) return text;
  }
  return "";
}

}  // namespace npusim
