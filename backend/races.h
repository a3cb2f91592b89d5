// SPDX-License-Identifier: BSD-3-Clause
// RaceDetector finds two unordered accesses to one byte, at least one of them a write (rules
// V4-V9). It uses order, never time: a race is found at its first run, with right or wrong values.
//
//   party    a stream, or the host (number 0); its vector clock has, per party, the last epoch of
//            that party which is known to be over
//   record, block, wait    merge one party's clock into another's
//   an access              races with each earlier conflicting access that its party does not know
//
//     s1: write x (epoch 1)   record e              e carries {s1: 1}
//     s2:                              block e      s2's clock becomes {s1: 1, ...}
//     s2: read x              knows {s1: 1} -> ordered; without the block -> Missing::wait_stream
//
// Invariant: it reports no pair that some order separates; what it forgets for lack of room it does
// not report either. Memory is bounded by the live allocations and the constants below. Observers
// are called one at a time; take_races() and forget() may come from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backend/observer.h"

namespace npusim {

// The call that is missing between the two accesses of a race.
enum class Missing : std::uint8_t {
  wait_stream,    // the second stream waits for the first
  record_stream,  // the allocator is told before the memory is freed
  synchronize,    // the host waits before it reads
  event,          // the host waits before it refills what a command still reads
};

// One side of a race.
struct RacingAccess {
  std::string name;  // of the command, or of what the host did
  int device = -1;   // -1: the host
  StreamId stream = 0;
  bool written = false;
  std::string type;  // of the operand's elements; empty: plain bytes
  std::vector<std::int64_t> sizes;
  Site site = 0;
  std::uint64_t sequence = 0;
};

struct Race {
  Missing missing = Missing::wait_stream;
  RacingAccess first, second;
  // The allocation that both touch; with Missing::record_stream the one that was freed.
  std::size_t allocation_bytes = 0;
  int allocation_device = -1;  // -1: pinned memory
  StreamId allocation_stream = 0;
  Site allocation_site = 0;
  Site free_site = 0;      // with Missing::record_stream
  bool same_place = true;  // false: the second access is to memory from the same stream's blocks
};

class RaceDetector : public Observer {
 public:
  RaceDetector();

  void on_command(const CommandRecord& record, std::span<const Operand> operands) noexcept override;
  void on_host_access(const HostAccessRecord& record,
                      std::span<const Operand> operands) noexcept override;
  void on_order(const OrderRecord& record) noexcept override;
  void on_memory(const MemoryRecord& record) noexcept override;
  bool wants_site_of_free(Address address) noexcept override;

  // has_races() is whether take_races() would return any. Lock-free.
  bool has_races() const noexcept { return waiting_.load(std::memory_order_acquire) != 0; }

  // take_races() returns what was found since the last call, in order. Each race is found once: the
  // two sites, what they did and what is missing tell races apart.
  std::vector<Race> take_races();

  // report_again() makes a race that was found before one that is not, as in another test.
  void report_again();

  // forget() drops everything that was seen, live allocations included.
  void forget();

  static constexpr std::size_t kMostAccesses = 256;  // remembered per allocation
  static constexpr std::size_t kMostGhosts = 64;     // remembered per stream and pool
  static constexpr std::size_t kMostRaces = 1000;    // reported per forget() or report_again()
  static constexpr std::size_t kMostLayouts = 1 << 16;

 protected:
  ~RaceDetector() = default;

 private:
  using Party = std::uint32_t;  // 0 is the host
  using Clock = std::vector<std::uint64_t>;

  struct Layout {
    const char* type = nullptr;
    std::uint32_t element_bytes = 0;
    std::vector<std::int64_t> sizes, strides;
  };
  struct Access {
    Address begin, end;
    std::uint64_t epoch;
    std::uint64_t sequence;
    const char* name;
    Site site;
    Party party;
    std::uint32_t layout;
    bool written;
    bool dense;  // every byte from begin to end is touched
  };
  // An access of another stream to a block that was freed before this access was known to be over:
  // the missing record_stream(). It haunts the blocks that the owner's stream gets next.
  struct Ghost {
    Access access;
    Address block;
    std::size_t bytes;
    Site site;
    Site free_site;
  };
  struct Block {
    Address address = 0;
    std::size_t bytes = 0;
    Party owner = 0;  // the host: pinned memory
    std::uint64_t pool = 0;
    Site site = 0;
    std::vector<Access> accesses;
    std::vector<Party> users;  // by record_stream()
    std::vector<Ghost> ghosts;
  };
  struct Place {
    int device = -1;
    StreamId stream = 0;
  };
  using Blocks = std::unordered_map<Address, Block>;
  // Direct-mapped caches of the last look-ups: most end here.
  struct KnownLayout {
    std::uint64_t hash = 0;
    std::uint32_t id = 0;
  };
  struct KnownStream {
    const Stream* stream = nullptr;
    Party party = 0;
  };

  Party party_of(const Stream& stream);
  bool knows(Party party, const Access& access) const noexcept {
    const Clock& clock = clocks_[party];
    return access.party == party || clock[access.party] >= access.epoch;
  }
  void learn(Party party, const Clock& other);
  // The epoch of the party's next access: a new one if others may know the last.
  std::uint64_t epoch_of_access(Party party);
  Party launch(const Stream& stream);

  std::uint32_t layout_of(const Operand& operand);
  Access access_of(const Operand& operand, Party party, const char* name, Site site,
                   std::uint64_t sequence);
  bool is_layout(std::uint32_t id, const Operand& operand) const noexcept;
  Block* block_at(Address allocation, Address first) noexcept;
  Block*& recent_block(Address address) noexcept {
    return recent_blocks_[(address >> 5) * 0x9E3779B97F4A7C15ULL >> 54];
  }
  void touch(Block& block, const Access& access);
  void meet_ghosts(Block& block, const Access& access);
  void remember(Block& block, const Access& access);
  bool overlap(const Access& one, const Access& other) const;
  void collect_runs(const Access& access, std::vector<std::pair<Address, Address>>& runs) const;

  void add_block(const MemoryRecord& record);
  void drop_block(const MemoryRecord& record);
  bool leaves_ghost(const Block& block, const Access& access) const noexcept;
  static bool is_last_of_its_party(const Block& block, const Access& access) noexcept;
  std::vector<Ghost>& ghosts_of(Party owner, std::uint64_t pool);

  void report(Missing missing, const Access& first, const Access& second, const Block& block,
              const Ghost* ghost);
  RacingAccess describe(const Access& access) const;

  mutable std::mutex mutex_;   // guards the rest: take_races() and forget() come from anywhere
  std::vector<Place> places_;  // of the parties
  std::vector<Clock> clocks_;  // as long as there are parties
  std::vector<std::uint64_t> host_seen_;  // the host_version_ that a party has learnt
  std::vector<bool> published_;           // whether others may know the party's epoch
  std::uint64_t host_version_ = 1;        // counts the changes of the host's clock
  std::unordered_map<std::uint64_t, Party> party_ids_;
  std::unordered_map<const Event*, Clock> marks_;
  Blocks blocks_;
  std::vector<Blocks::node_type> spare_;  // of freed blocks, so that new ones allocate nothing
  std::map<std::pair<Party, std::uint64_t>, std::vector<Ghost>> ghosts_;  // by owner and pool
  std::vector<Layout> layouts_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> layout_ids_;
  std::array<Block*, 1024> recent_blocks_{};
  std::array<KnownLayout, 256> recent_layouts_{};
  KnownStream recent_stream_;
  std::vector<Race> races_;
  std::unordered_set<std::uint64_t> reported_;
  std::atomic<std::size_t> waiting_{0};
};

}  // namespace npusim
