// SPDX-License-Identifier: BSD-3-Clause
// Addresses, accounts and stitches of ReplayDevice.
#include "lab/engine/replay_device.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <sstream>

#include "allocator/config.h"
#include "allocator/error.h"
#include "lab/engine/names.h"

namespace npusim::lab {
namespace {

constexpr Address kAlignment = 2 * kMiB;

template <class Map>
auto entry_at(Map& map, Address address) {
  auto it = map.upper_bound(address);
  return it == map.begin() ? map.end() : std::prev(it);
}

}  // namespace

ReplayDevice::ReplayDevice(const Trace& trace, const DeviceOptions& options)
    : trace_(trace), options_(options), allowed_(options.capacity_bytes) {
  for (const Address address : options.addresses) {
    if (address < Address{1} << 63)
      next_ = std::max(next_, (address | ((Address{1} << 40) - 1)) + 1);
  }
}

bool ReplayDevice::is_free(Address address, std::uint64_t bytes) const {
  const auto next = taken_.lower_bound(address);
  if (next != taken_.end() && bytes > next->first - address) return false;
  return next == taken_.begin() || std::prev(next)->second <= address - std::prev(next)->first;
}

bool ReplayDevice::has_room(std::uint64_t bytes) const {
  return reserved_ <= allowed_ && bytes <= allowed_ - reserved_;
}

void ReplayDevice::limit(double fraction) {
  allowed_ = std::min<std::uint64_t>(options_.capacity_bytes,
                                     fraction_limit(fraction, options_.capacity_bytes));
}

// A scattered device has 2^13 - 1 windows of 2^51 bytes, visited in a jumble.
Address ReplayDevice::place(std::uint64_t bytes, std::uint64_t gap) {
  const std::uint64_t number = placed_++;
  if (number < options_.addresses.size()) {
    const Address wanted = options_.addresses[number];
    if (wanted != 0 && is_free(wanted, bytes)) return wanted;
  }
  bytes += gap;
  if (options_.scatter_seed != 0) {
    constexpr std::uint64_t windows = (std::uint64_t{1} << 13) - 1;
    std::uint64_t window = (number + 1) * (2 * options_.scatter_seed + 1) % windows;
    while (!is_free((window + 1) << 51, bytes)) window = (window + 1) % windows;
    return (window + 1) << 51;
  }
  const Address address = next_;
  next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return address;
}

void ReplayDevice::integrate() noexcept {
  const auto events = static_cast<double>(event_ - integrated_to_);
  byte_events_ += static_cast<double>(reserved_) * events;
  const std::span<const std::uint64_t> times = trace_.time_ns();
  if (!times.empty() && event_ > integrated_to_) {
    const auto end = std::min(static_cast<std::size_t>(event_), times.size() - 1);
    const std::uint64_t from = times[static_cast<std::size_t>(integrated_to_)];
    if (times[end] > from) {
      byte_ns_ += static_cast<double>(reserved_) * static_cast<double>(times[end] - from);
    }
  }
  integrated_to_ = event_;
}

double ReplayDevice::byte_events() {
  integrate();
  return byte_events_;
}

double ReplayDevice::byte_ns() {
  integrate();
  return byte_ns_;
}

void ReplayDevice::account(std::int64_t change, Op op, Address address, std::uint64_t bytes) {
  integrate();
  reserved_ += static_cast<std::uint64_t>(change);
  const auto* owner = segment_at(address);
  calls_.push_back({event_, op, address, bytes, owner->second.stream, owner->second.pool});
}

SegmentResult ReplayDevice::acquire_segment(std::size_t bytes) {
  if (!has_room(bytes)) {
    return {0, SegmentResult::Status::device_full, {}};
  }
  const Address address = place(bytes);
  lend(address, bytes);
  lent_[address] = bytes;
  account(static_cast<std::int64_t>(bytes), Op::segment_alloc, address, bytes);
  return {address, SegmentResult::Status::ok, {}};
}

void ReplayDevice::own(Address address, std::uint64_t bytes, const Lent& owner,
                       std::uint64_t memory) {
  if (address == 0 || !is_free(address, bytes) || memory > options_.capacity_bytes - reserved_) {
    throw InvalidArgument("replay: the initial segment of " + std::to_string(bytes) + " bytes at " +
                          std::to_string(address) +
                          " overlaps another one, or is more than the device has");
  }
  ++placed_;
  constexpr Address kWindow = Address{1} << 40;
  if (address < Address{1} << 63)
    next_ = std::max(next_, (address + bytes) / kWindow * kWindow + kWindow);
  taken_[address] = bytes;
  owners_[address] = owner;
}

void ReplayDevice::adopt(Address address, std::uint64_t bytes, const Lent& owner) {
  own(address, bytes, owner, bytes);
  lent_[address] = bytes;
  account(static_cast<std::int64_t>(bytes), Op::segment_alloc, address, bytes);
}

void ReplayDevice::adopt_range(Address address, std::uint64_t bytes, const Lent& owner,
                               std::span<const Run> runs) {
  std::uint64_t memory = 0;
  for (const auto& [begin, length] : runs) memory += length;
  own(address, bytes, owner, memory);
  for (const auto& [begin, length] : runs) {
    lent_[begin] = length;
    account(static_cast<std::int64_t>(length), Op::segment_map, begin, length);
  }
}

// lend() notes whom new addresses belong to: the stream and pool of the event.
void ReplayDevice::lend(Address address, std::uint64_t bytes) {
  taken_[address] = bytes;
  const auto at = static_cast<std::size_t>(event_);
  const Trace::Event event = at < trace_.size() ? trace_.event(at) : Trace::Event{};
  owners_[address] = {bytes, static_cast<std::int64_t>(placed_) - 1, event.stream, event.pool};
  last_ = nullptr;
}

void ReplayDevice::take_back(Address address, std::uint64_t bytes) {
  const auto it = taken_.find(address);
  if (it == taken_.end() || it->second != bytes) std::terminate();  // never lent
  taken_.erase(it);
  owners_.erase(address);
  last_ = nullptr;
}

void ReplayDevice::release_segment(Address address, std::size_t bytes) noexcept {
  account(-static_cast<std::int64_t>(bytes), Op::segment_free, address, bytes);
  take_back(address, bytes);
  lent_.erase(address);
}

SegmentResult ReplayDevice::reserve_range(std::size_t bytes) {
  const Address address = place(bytes, kAlignment);  // a gap keeps mapped runs apart
  lend(address, bytes);
  return {address, SegmentResult::Status::ok, {}};
}

void ReplayDevice::release_range(Address address, std::size_t bytes) noexcept {
  take_back(address, bytes);
}

SegmentResult ReplayDevice::map(Address address, std::size_t bytes) {
  if (!has_room(bytes)) {
    return {0, SegmentResult::Status::device_full, {}};
  }
  // Runs of one range that touch become one.
  const auto* range = segment_at(address);
  Address begin = address, end = address + bytes;
  const auto next = lent_.find(end);
  if (next != lent_.end() && end < range->first + range->second.bytes) {
    end += next->second;
    lent_.erase(next);
  }
  const auto before = entry_at(lent_, address);
  if (before != lent_.end() && before->first >= range->first &&
      before->first + before->second == address) {
    begin = before->first;
  }
  lent_[begin] = end - begin;
  account(static_cast<std::int64_t>(bytes), Op::segment_map, address, bytes);
  return {address, SegmentResult::Status::ok, {}};
}

void ReplayDevice::unmap(Address address, std::size_t bytes) noexcept {
  const auto it = entry_at(lent_, address);
  const Address begin = it->first, end = begin + it->second;
  lent_.erase(it);
  if (begin < address) lent_[begin] = address - begin;
  if (address + bytes < end) lent_[address + bytes] = end - address - bytes;
  account(-static_cast<std::int64_t>(bytes), Op::segment_unmap, address, bytes);
}

MemoryInfo ReplayDevice::memory_info() const {
  return {options_.capacity_bytes - reserved_, options_.capacity_bytes};
}

Address ReplayDevice::stitch(std::span<const Piece> pieces) {
  std::uint64_t total = 0;
  for (const auto& [address, bytes] : pieces) {
    const auto it = entry_at(lent_, address);
    if (bytes == 0 || it == lent_.end() || address - it->first > it->second ||
        bytes > it->second - (address - it->first)) {
      std::ostringstream text;
      text << "stitch: " << bytes << " bytes at " << address << " are not in memory that is lent";
      throw InvalidArgument(text.str());
    }
    total += bytes;
  }
  if (total == 0) throw InvalidArgument("stitch: no pieces; expected at least one");
  const Address address = next_;
  next_ += (total + 2 * kAlignment - 1) / kAlignment * kAlignment;
  stitched_[address].assign(pieces.begin(), pieces.end());
  stitched_bytes_ += total;
  return address;
}

void ReplayDevice::unstitch(Address address) {
  const auto it = stitched_.find(address);
  if (it == stitched_.end()) {
    throw InvalidArgument("unstitch: " + std::to_string(address) + " was not made by stitch");
  }
  for (const auto& [at, bytes] : it->second) unstitched_bytes_ += bytes;
  stitched_.erase(it);
}

std::span<const ReplayDevice::Piece> ReplayDevice::pieces_of(Address address, std::uint64_t bytes) {
  pieces_.clear();
  auto lent = entry_at(lent_, address);
  if (lent != lent_.end() && address - lent->first < lent->second) {
    // Segments that touch may serve one request.
    for (Address end = address + bytes; address < end; ++lent) {
      if (lent == lent_.end() || lent->first > address) return pieces_ = {};
      const Address part_end = std::min(end, lent->first + lent->second);
      pieces_.emplace_back(address, part_end - address);
      address = part_end;
    }
    return pieces_;
  }
  const auto stitched = entry_at(stitched_, address);
  if (stitched == stitched_.end()) return pieces_;
  std::uint64_t skip = address - stitched->first;
  for (const auto& [at, length] : stitched->second) {
    if (bytes == 0) break;
    const std::uint64_t skipped = std::min(skip, length);
    skip -= skipped;
    const std::uint64_t part = std::min(bytes, length - skipped);
    if (part > 0) pieces_.emplace_back(at + skipped, part);
    bytes -= part;
  }
  if (bytes > 0) pieces_.clear();
  return pieces_;
}

const std::pair<const Address, ReplayDevice::Lent>* ReplayDevice::segment_at(Address address) {
  if (last_ && address - last_->first < last_->second.bytes) return last_;
  const auto it = entry_at(owners_, address);
  if (it == owners_.end() || address - it->first >= it->second.bytes) return nullptr;
  last_ = &*it;
  return last_;
}

}  // namespace npusim::lab
