// SPDX-License-Identifier: BSD-3-Clause
// ReplayDevice: the device of a replay, only arithmetic. It gives out addresses, counts what is
// lent, and writes down every call with the event that caused it. Single-threaded: no locks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "allocator/placement/placement_device.h"
#include "lab/engine/names.h"
#include "lab/engine/trace.h"

namespace npusim::lab {

// One call to the device; op is one of Op::segment_*.
struct DeviceCall {
  std::int64_t event = 0;
  Op op = Op::segment_alloc;
  Address address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t stream = 0;
  std::uint32_t pool = 0;
};

struct DeviceOptions {
  std::uint64_t capacity_bytes = std::uint64_t{1} << 50;
  std::uint64_t scatter_seed = 0;            // 0: addresses ascend; else they jump about
  std::span<const std::uint64_t> addresses;  // of the k-th segment; the device's own where it is 0,
                                             // taken, or the list ends
};

class ReplayDevice final : public PlacementDevice {
 public:
  // A lent segment, and how manyth it was.
  struct Lent {
    std::uint64_t bytes = 0;
    std::int64_t order = 0;
    std::uint32_t stream = 0;
    std::uint32_t pool = 0;
  };

  ReplayDevice(const Trace& trace, const DeviceOptions& options);

  // go_to() says which event is being replayed.
  void go_to(std::int64_t event) noexcept { event_ = event; }
  std::int64_t event() const noexcept { return event_; }

  std::uint64_t reserved_bytes() const noexcept override { return reserved_; }
  std::uint64_t capacity_bytes() const noexcept override { return options_.capacity_bytes; }
  const std::vector<DeviceCall>& calls() const noexcept { return calls_; }
  const std::map<Address, std::size_t>& lent() const noexcept override { return lent_; }

  // Bytes that were put behind other addresses, and taken from there: what stitching costs.
  std::uint64_t stitched_bytes() const noexcept { return stitched_bytes_; }
  std::uint64_t unstitched_bytes() const noexcept { return unstitched_bytes_; }

  // The integrals of reserved bytes up to the current event, over events and over time.
  double byte_events();
  double byte_ns();

  // limit() is the fraction of the capacity that may be reserved from now on.
  void limit(double fraction);

  // adopt() counts a segment as lent before the trace began; of a range that grows by pages only
  // its runs are. Throws InvalidArgument where it overlaps another one or exceeds the capacity.
  using Run = std::pair<Address, std::uint64_t>;  // bytes
  void adopt(Address address, std::uint64_t bytes, const Lent& owner);
  void adopt_range(Address address, std::uint64_t bytes, const Lent& owner,
                   std::span<const Run> runs);

  SegmentResult acquire_segment(std::size_t bytes) override;
  void release_segment(Address address, std::size_t bytes) noexcept override;
  bool can_map() const noexcept override { return true; }
  SegmentResult reserve_range(std::size_t bytes) override;
  void release_range(Address address, std::size_t bytes) noexcept override;
  SegmentResult map(Address address, std::size_t bytes) override;
  void unmap(Address address, std::size_t bytes) noexcept override;
  Ticket mark(StreamId) override { return 0; }
  bool done(Ticket) const noexcept override { return true; }
  void wait(Ticket) override {}
  void synchronize() override {}
  MemoryInfo memory_info() const override;

  Address stitch(std::span<const Piece> pieces) override;
  void unstitch(Address address) override;
  std::span<const Piece> pieces_of(Address address, std::uint64_t bytes) override;
  void refuse(std::string what) override { refused_.push_back(std::move(what)); }
  std::vector<std::string> take_refused() { return std::exchange(refused_, {}); }
  std::string when() const override { return "event " + std::to_string(event_) + ": "; }

  // segment_at() is the lent segment an address lies in; null where there is none.
  const std::pair<const Address, Lent>* segment_at(Address address);

 private:
  bool is_free(Address address, std::uint64_t bytes) const;
  bool has_room(std::uint64_t bytes) const;
  Address place(std::uint64_t bytes, std::uint64_t gap = 0);  // which only the device keeps
  void own(Address address, std::uint64_t bytes, const Lent& owner, std::uint64_t memory);
  void account(std::int64_t change, Op op, Address address, std::uint64_t bytes);
  void lend(Address address, std::uint64_t bytes);
  void take_back(Address address, std::uint64_t bytes);
  void integrate() noexcept;

  const Trace& trace_;
  const DeviceOptions options_;
  std::int64_t event_ = 0;
  Address next_ = Address{1} << 40;
  std::uint64_t placed_ = 0;
  std::map<Address, std::uint64_t> taken_;  // whole segments and ranges
  std::map<Address, std::size_t> lent_;     // segments, and runs of mapped pages
  std::map<Address, Lent> owners_;          // of segments and ranges
  const std::pair<const Address, Lent>* last_ = nullptr;
  std::map<Address, std::vector<Piece>> stitched_;
  std::vector<Piece> pieces_;
  std::vector<std::string> refused_;
  std::uint64_t reserved_ = 0;
  std::uint64_t allowed_ = 0;
  std::uint64_t stitched_bytes_ = 0, unstitched_bytes_ = 0;
  std::vector<DeviceCall> calls_;
  std::int64_t integrated_to_ = 0;
  double byte_events_ = 0, byte_ns_ = 0;
};

}  // namespace npusim::lab
