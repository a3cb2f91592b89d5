// SPDX-License-Identifier: BSD-3-Clause
// Trace: events, checked once and compiled, to be replayed any number of times. Ids become slots:
// small numbers that are used again once free, so a replay finds a block with one access. The other
// columns are not copied.
// Immutable: any number of threads may replay one trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lab/engine/event.h"

namespace npusim::lab {

class Trace {
 public:
  struct Event {
    std::uint64_t bytes = 0;
    std::uint32_t slot = 0;
    std::uint32_t stream = 0;
    std::uint32_t pool = 0;
    Op op = Op::mark;
  };

  // Throws InvalidArgument naming the event and what is wrong with it: a free of an id that is not
  // live, a second malloc of a live id, a request of 0 bytes, a pool after its last user. The
  // columns must stay as they are for as long as the trace does; `owner` is kept until then.
  explicit Trace(const EventColumns& columns, std::shared_ptr<const void> owner = nullptr);

  std::size_t size() const noexcept { return op_.size(); }
  Op op(std::size_t event) const { return op_[event]; }
  std::uint32_t slot(std::size_t event) const { return slot_[event]; }
  Event event(std::size_t event) const {
    return {bytes_[event], slot_[event], stream_[event], pool_[event], op_[event]};
  }
  std::size_t slots() const noexcept { return slots_; }
  std::size_t mallocs() const noexcept { return malloc_event_.size(); }
  const std::vector<std::uint32_t>& implicit_pools() const noexcept { return implicit_pools_; }
  std::span<const std::uint64_t> time_ns() const noexcept { return time_ns_; }

  // Per malloc, in order: its event, that of its free (or free_requested), that of its completion;
  // size() where there is none. The last two are equal for a plain free.
  const std::vector<std::uint32_t>& malloc_event() const noexcept { return malloc_event_; }
  const std::vector<std::uint32_t>& free_event() const noexcept { return free_event_; }
  const std::vector<std::uint32_t>& completed_event() const noexcept { return completed_event_; }
  const std::vector<std::uint64_t>& malloc_bytes() const noexcept { return malloc_bytes_; }
  const std::vector<std::uint32_t>& malloc_stack() const noexcept { return malloc_stack_; }

  // The most requested bytes in use at once, pending ones included, and where that was first so.
  std::uint64_t max_live_bytes() const noexcept { return max_live_bytes_; }
  std::int64_t max_live_event() const noexcept { return max_live_event_; }

 private:
  class Compiler;

  // A column of the caller's; an empty one has a 0 for every event.
  template <class T>
  class Column {
   public:
    explicit Column(std::span<const T> values)
        : first_(values.empty() ? &kZero : values.data()), step_(values.empty() ? 0 : 1) {}
    T operator[](std::size_t event) const { return first_[step_ * event]; }

   private:
    static constexpr T kZero = 0;
    const T* first_;
    std::size_t step_;
  };

  std::shared_ptr<const void> owner_;
  Column<std::uint64_t> bytes_;
  Column<std::uint32_t> stream_, pool_;
  std::span<const std::uint64_t> time_ns_;
  std::vector<Op> op_;
  std::vector<std::uint32_t> slot_;
  std::size_t slots_ = 0;
  std::vector<std::uint32_t> implicit_pools_;
  std::vector<std::uint32_t> malloc_event_, free_event_, completed_event_;
  std::vector<std::uint64_t> malloc_bytes_;
  std::vector<std::uint32_t> malloc_stack_;
  std::uint64_t max_live_bytes_ = 0;
  std::int64_t max_live_event_ = -1;
};

}  // namespace npusim::lab
