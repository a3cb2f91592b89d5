// SPDX-License-Identifier: BSD-3-Clause
// CallMemory: the memory that a CPU kernel allocates while it runs for the device. A result is a
// device block under its host address from the start, so that nothing is copied; the rest is the
// host's, as a device would not have it (rule M13). Large host memory is kept for the next calls:
// fresh pages cost more than the kernels' work on them.
// Invariant: outside of a CallMemory every CPU allocation goes to the allocator that torch had
// before.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include "allocator/allocator.h"

namespace torch_npusim {

// scratch_allocator_of() allocates device blocks under their host addresses (used by the twins of
// storages, which a kernel may resize).
c10::Allocator* scratch_allocator_of(c10::DeviceIndex device);

// scratch_block_of() returns the device block behind a host pointer from here, else nullptr.
npusim::alloc::Block* scratch_block_of(const c10::DataPtr& data) noexcept;

// CallMemory: while it lives, CPU allocations of this thread belong to one call of a kernel. Nobody
// says before which of them become results, but a kernel that is called alike allocates alike. So
// a first call has host memory, and its results are copied to the device; later ones find them
// there. Calls are alike if their signatures and the sizes of their allocations so far are.
class CallMemory {
 public:
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

 protected:
  // One that is not `open` leaves allocations as they are.
  CallMemory(c10::DeviceIndex device, bool open) noexcept;
  ~CallMemory();

  // signature() tells the operator and its operands; asked at the first allocation.
  virtual std::uint64_t signature() const = 0;

  // claim() notes that the storage at this host address is a result, and returns whether this call
  // allocated it. Results are claimed in the order in which a dry run makes them.
  bool claim(const void* host) noexcept;

  // learn() ends a call that has returned and whose results are claimed.
  void learn();

 private:
  friend struct CallAllocations;
  struct Allocation {
    const void* host;
    std::uint64_t key;
    bool* known;                  // whether it becomes a result; nullptr: no call was like this
    npusim::alloc::Block* block;  // nullptr: host memory, or given back
    std::uint32_t claimed = 0;    // from 1 on, in the order of claims
  };

  c10::SmallVector<Allocation, 4> allocations_;
  std::uint64_t key_ = 0;
  std::uint32_t claims_ = 0;
  c10::DeviceIndex device_;
  bool open_;
  CallMemory* outer_ = nullptr;
};

// Temporaries: CPU allocations of a kernel whose results are made already are all the host's.
class Temporaries final : private CallMemory {
 public:
  Temporaries() noexcept;
  ~Temporaries() = default;
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;

 private:
  std::uint64_t signature() const override { return 0; }
};

// HostMemoryScope suspends that: allocations of this thread are ordinary host memory again.
class HostMemoryScope {
 public:
  HostMemoryScope() noexcept;
  ~HostMemoryScope();
  HostMemoryScope(const HostMemoryScope&) = delete;
  HostMemoryScope& operator=(const HostMemoryScope&) = delete;

 private:
  CallMemory* outer_;
};

// register_scratch_allocator() puts the forwarding allocator in front of torch's CPU allocator.
void register_scratch_allocator();

}  // namespace torch_npusim
