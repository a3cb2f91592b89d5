// SPDX-License-Identifier: BSD-3-Clause
// The port: everything the allocator knows of the world. It asks for segments of address space, for
// marks in streams, and for nothing else; it never dereferences an address.
// Every call arrives with the lock of one CachingAllocator held, so an implementation must not call
// back into that allocator and must not take a lock under which others call it (Python's included).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace npusim::alloc {

using Address = std::uint64_t;    // in device address space; 0 is never a valid address
using StreamId = std::int64_t;    // 0 is the default stream
using Ticket = std::int64_t;      // a mark in a stream: "all work queued so far"
using ContextId = std::uint64_t;  // a call stack that the caller has interned; 0 is none

struct SegmentResult {
  enum class Status : std::uint8_t {
    ok,           // address is valid
    device_full,  // the simulated device has no room
    ram_full,     // the device has room, the machine under it has not
    injected,     // a test asked for this failure
  };
  Address address = 0;
  Status status = Status::ok;
  std::string reason;  // for people; may be empty
};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

class Provider {
 public:
  virtual ~Provider() = default;

  // acquire_segment() reserves `bytes` (a multiple of the quantum) on a boundary of at least the
  // quantum. Running out is a status, not an exception.
  virtual SegmentResult acquire_segment(std::size_t bytes) = 0;
  virtual void release_segment(Address address, std::size_t bytes) noexcept = 0;

  // Memory by the page, for expandable segments; a provider that has none leaves these five alone.
  // reserve_range() gives addresses without memory, map() puts memory behind a part of them, all of
  // it or none. unmap() may be given any part that is mapped, over several map() calls.
  virtual bool can_map() const noexcept { return false; }
  virtual SegmentResult reserve_range(std::size_t /*bytes*/) { return cannot_map(); }
  virtual void release_range(Address /*address*/, std::size_t /*bytes*/) noexcept {}
  virtual SegmentResult map(Address /*address*/, std::size_t /*bytes*/) { return cannot_map(); }
  virtual void unmap(Address /*address*/, std::size_t /*bytes*/) noexcept {}

  // mark() names the work queued on the stream so far. done() costs no virtual time; wait() returns
  // once the work is done, moving the clock where there is one.
  virtual Ticket mark(StreamId stream) = 0;
  virtual bool done(Ticket ticket) const noexcept = 0;
  virtual void wait(Ticket ticket) = 0;

  // synchronize() waits for the whole device. It precedes every batch of releases; a batch of
  // unmaps is preceded by mark() and wait() on the streams of its blocks.
  virtual void synchronize() = 0;

  virtual MemoryInfo memory_info() const = 0;

  // now_ns() stamps history entries, in virtual time.
  virtual std::int64_t now_ns() const noexcept { return 0; }

 private:
  static SegmentResult cannot_map() {
    return {0, SegmentResult::Status::device_full, "the device cannot map pages"};
  }
};

}  // namespace npusim::alloc
