// SPDX-License-Identifier: BSD-3-Clause
// CollectiveBoard: memory shared by the processes of one group, in which each rank leaves a Notice
// of every collective that it enters. All ranks read the same notices, so all agree when a
// collective starts and whether it is the same one for all (rules D2, D4).
//
//   collectives, rank 0   | notice 0 | notice 1 | ...  kKept slots, then around again
//   collectives, rank 1   | notice 0 | ...
//   transfers 0 -> 1      | the sender's notices |  | the receiver's notices |
//
// Invariant: a notice is written before its stamp and never changed while a rank may read it: no
// rank is more than kAhead notices ahead of the last one that it has settled (the caller ensures
// that). All functions are thread-safe; per rank and channel one thread at a time leaves notices.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace npusim {

// A rank's side of one collective, or of one transfer between two ranks.
struct Notice {
  std::int64_t ready_ns = 0;  // its virtual time: it could start now
  std::uint64_t count = 0;    // elements of its operand, where ranks must agree on that
  std::int32_t root = -1;     // rank in the group, -1: there is none
  float slowdown = 1;         // this rank's links have that much less bandwidth than usual
  std::uint8_t operation = 0, type = 0, reduction = 0;  // numbers of the layer above
  std::int32_t device = -1;                             // as configured, -1: none
  char line[153] = {};                                  // of the program: its file and number
  // Of an exchange with each rank, the first kCounted of them: bytes for it, and from it.
  static constexpr int kCounted = 32;
  std::uint64_t sends[kCounted] = {}, expects[kCounted] = {};
};

class CollectiveBoard {
 public:
  // A sequence of notices: those of the collectives, or of the transfers from one rank to another.
  struct Channel {
    int from = -1, to = -1;  // -1: collectives
  };
  static constexpr std::uint64_t kKept = 256;
  static constexpr std::uint64_t kAhead = kKept / 2;

  // make() creates the memory, on one rank; the others join() its address(). Both throw
  // InvalidArgument; join() also if the first rank is a process of another host or user. The memory
  // lives as long as one process has it mapped.
  static std::shared_ptr<CollectiveBoard> make(int ranks);
  static std::shared_ptr<CollectiveBoard> join(const std::string& address, int ranks);
  ~CollectiveBoard();
  CollectiveBoard(const CollectiveBoard&) = delete;
  CollectiveBoard& operator=(const CollectiveBoard&) = delete;

  const std::string& address() const noexcept { return address_; }

  // leave() writes notice number `sequence` (from 0 on, in order) of a rank in a channel; in one
  // between two ranks, of the sender or of the receiver.
  void leave(Channel channel, int rank, std::uint64_t sequence, const Notice& notice);

  // notice() is that notice, nullptr as long as it is not written.
  const Notice* notice(Channel channel, int rank, std::uint64_t sequence) const noexcept;

  // wait() returns true once `ready()` is true, false at the deadline (wall-clock time). It calls
  // `ready` when a rank has left a notice, and at least ten times a second, to detect dead
  // processes.
  bool wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline);

  // say() states which call a rank is in, for the table that a timeout shows; said()
  // reads it. Longer text is cut.
  void say(int rank, const std::string& text) noexcept;
  std::string said(int rank) const;

  // A rank enters, takes part, and may leave; gone() is why it will never take part again, or
  // nullptr.
  void enter(int rank) noexcept;
  void leave(int rank) noexcept;
  const char* gone(int rank) const noexcept;

  // same_process() is whether two ranks are threads of one process, or were until one left.
  bool same_process(int rank, int other) const noexcept;

  class Waiter;

 private:
  struct Header;
  struct Seat;
  struct Slot;
  CollectiveBoard(int file, int ranks, std::string address);
  Slot& slot(Channel channel, int rank, std::uint64_t sequence) const noexcept;
  void ring() noexcept;
  static std::size_t bytes(int ranks) noexcept;

  const int file_;
  const int ranks_;
  const std::string address_;
  Header* header_ = nullptr;
  Slot* slots_ = nullptr;
};

// Waiter: a rank that does nothing until others have come, for as long as the object lives. Ranks
// that wait for each other in a circle find it here.
// Contract: no other thread of the program acts for the rank meanwhile.
class CollectiveBoard::Waiter {
 public:
  Waiter(std::shared_ptr<CollectiveBoard> board, int rank);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // look() says for which ranks this one still waits. Returns a circle of ranks, this one first,
  // each of which waits for the next and has looked since all of them wait; else nothing. Every
  // rank of a circle is told of it, also if another has gone on by then.
  std::vector<int> look(const std::vector<int>& missing);

 private:
  struct Sight {
    int rank;
    std::uint32_t wait, looked;
  };
  std::vector<int> shortest_circle() const;
  bool all_looked_again(const std::vector<int>& circle);

  const std::shared_ptr<CollectiveBoard> board_;
  const int rank_;
  std::uint32_t wait_ = 0;     // number of this wait of the rank; 0: another thread waits for it
  std::vector<Sight> sights_;  // of the circle that was seen, when it was seen first
};

}  // namespace npusim
