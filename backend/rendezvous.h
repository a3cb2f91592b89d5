// SPDX-License-Identifier: BSD-3-Clause
// Where the ranks of one group leave word of what they are about to do together: memory that all
// their processes share. Every rank reads the same words, so all agree when a collective starts
// and whether it is the same one for all (rules D2, D4).
// Invariant: a word is written once, before its stamp, and kept until everyone has read it: nobody
// is further ahead than kAhead words of what he has settled.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace npusim {

// What a rank says of one collective, or of one side of a transfer between two ranks.
struct Word {
  std::int64_t ready_ns = 0;  // its virtual time: it could start now
  std::uint64_t count = 0;    // elements of its operand, where ranks must agree on that
  std::int32_t root = -1;     // rank in the group, -1: there is none
  float slowdown = 1;         // this rank's links have that much less bandwidth than usual
  std::uint8_t operation = 0, type = 0, reduction = 0;  // numbers of the layer above
  char line[157] = {};                                  // of the program: its file and number
};

class Rendezvous {
 public:
  // A line of words: those of the collectives, or of the transfers from one rank to another.
  struct Channel {
    int from = -1, to = -1;  // -1: collectives
  };
  static constexpr std::uint64_t kKept = 256;
  static constexpr std::uint64_t kAhead = kKept / 2;

  // make() is what one rank calls; address() is what the others then join() by. Both throw
  // InvalidArgument, join() also where the first rank is not a process of this host.
  static std::shared_ptr<Rendezvous> make(int ranks);
  static std::shared_ptr<Rendezvous> join(const std::string& address, int ranks);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const std::string& address() const noexcept { return address_; }

  // leave() writes word number `sequence` (from 0 on, in order) of a rank in a channel; in one
  // between two ranks, of the sender or of the receiver.
  void leave(Channel channel, int rank, std::uint64_t sequence, const Word& word);

  // word() is that word, nullptr as long as it is not written.
  const Word* word(Channel channel, int rank, std::uint64_t sequence) const noexcept;

  // wait() returns once `ready()` is true, or says false at the deadline. `ready` is asked whenever
  // somebody has left a word, and at least ten times a second.
  bool wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline);

  // What a rank is in, for the table that a timeout shows: a few words of text.
  void say(int rank, const std::string& text) noexcept;
  std::string said(int rank) const;

  // A rank enters, takes part, and may leave; gone() is why it will never take part again, or
  // nullptr.
  void enter(int rank) noexcept;
  void leave(int rank) noexcept;
  const char* gone(int rank) const noexcept;

 private:
  struct Header;
  struct Slot;
  Rendezvous(int file, int ranks, std::string address);
  Slot& slot(Channel channel, int rank, std::uint64_t sequence) const noexcept;
  void ring() noexcept;
  static std::size_t bytes(int ranks) noexcept;

  const int file_;
  const int ranks_;
  const std::string address_;
  Header* header_ = nullptr;
  Slot* slots_ = nullptr;
};

}  // namespace npusim
