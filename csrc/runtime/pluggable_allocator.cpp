// SPDX-License-Identifier: BSD-3-Clause
// What users' allocation functions take memory from, and the check of what they return.
#include "csrc/runtime/pluggable_allocator.h"

#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "backend/backend.h"
#include "backend/observer.h"
#include "csrc/runtime/device_provider.h"
#include "torch_npusim/include/torch_npusim/memory.h"

namespace torch_npusim {

namespace {

// Memory given out by npusim_malloc().
struct RawMemory {
  struct Piece {
    std::size_t bytes;
    int device;
  };
  std::mutex mutex;  // guards `pieces`; nothing else is called with it held
  std::map<npusim::Address, Piece> pieces;
};

RawMemory& raw_memory() {
  static auto* memory = new RawMemory;  // never destroyed: frees arrive while the process exits
  return *memory;
}

bool is_raw_memory(npusim::Address address, std::size_t bytes, int device) {
  RawMemory& raw = raw_memory();
  const std::lock_guard lock(raw.mutex);
  const auto after = raw.pieces.upper_bound(address);
  if (after == raw.pieces.begin()) return false;
  const auto& [start, piece] = *std::prev(after);
  const std::size_t offset = address - start;
  return piece.device == device && offset <= piece.bytes && bytes <= piece.bytes - offset;
}

class FunctionProvider final : public DeviceProvider {
 public:
  FunctionProvider(const PluggableFunctions& functions, int device)
      : DeviceProvider(device), functions_(functions) {}

  npusim::alloc::SegmentResult acquire_segment(std::size_t bytes) override {
    using Status = npusim::alloc::SegmentResult::Status;
    void* memory = functions_.alloc(static_cast<std::int64_t>(bytes), device(), stream());
    if (memory == nullptr) return {0, Status::device_full, "the pluggable allocator has no memory"};
    const auto address = reinterpret_cast<npusim::alloc::Address>(memory);
    if (is_raw_memory(address, bytes, device())) return {address, Status::ok, {}};
    throw npusim::alloc::InvalidArgument(
        "pluggable allocator: its function returned " + std::to_string(address) + " for " +
        std::to_string(bytes) + " bytes of device " + std::to_string(device()) +
        ", which are not memory of that device; get it from npusim_malloc()");
  }
  void release_segment(npusim::alloc::Address address, std::size_t bytes) noexcept override {
    functions_.free(reinterpret_cast<void*>(address), static_cast<std::int64_t>(bytes), device(),
                    stream());
  }
  bool can_map() const noexcept override { return false; }

 private:
  std::int64_t stream() const noexcept { return npusim::current_stream(device()).id(); }

  PluggableFunctions functions_;
};

}  // namespace

npusim::alloc::Provider& pluggable_provider(const PluggableFunctions& functions,
                                            c10::DeviceIndex device) {
  using Key = std::tuple<void*, void*, int>;
  static auto* mutex = new std::mutex;
  static auto* providers = new std::map<Key, std::unique_ptr<FunctionProvider>>;  // leaked, as said
  const std::lock_guard lock(*mutex);
  auto& provider = (*providers)[{reinterpret_cast<void*>(functions.alloc),
                                 reinterpret_cast<void*>(functions.free), device}];
  if (!provider) provider = std::make_unique<FunctionProvider>(functions, device);
  return *provider;
}

}  // namespace torch_npusim

#define NPUSIM_EXPORT __attribute__((visibility("default")))

extern "C" NPUSIM_EXPORT void* npusim_malloc(std::int64_t bytes, int device) {
  if (bytes <= 0) return nullptr;
  try {
    const auto size = static_cast<std::size_t>(bytes);
    const npusim::SegmentResult result = npusim::acquire_segment(device, size);
    if (result.status != npusim::SegmentResult::Status::ok) return nullptr;
    torch_npusim::RawMemory& raw = torch_npusim::raw_memory();
    const std::lock_guard lock(raw.mutex);
    raw.pieces[result.address] = {size, device};
    return reinterpret_cast<void*>(result.address);
  } catch (const std::exception& error) {  // C callers: nothing may pass
    std::fprintf(stderr, "npusim_malloc(%lld, %d): %s\n", static_cast<long long>(bytes), device,
                 error.what());
    return nullptr;
  }
}

extern "C" NPUSIM_EXPORT void npusim_free(void* address) {
  if (address == nullptr || npusim::in_bad_fork()) return;
  torch_npusim::RawMemory::Piece piece{};
  {
    torch_npusim::RawMemory& raw = torch_npusim::raw_memory();
    const std::lock_guard lock(raw.mutex);
    const auto found = raw.pieces.find(reinterpret_cast<npusim::Address>(address));
    if (found == raw.pieces.end()) {
      std::fprintf(stderr, "npusim_free(%p): not an address that npusim_malloc() returned\n",
                   address);
      return;
    }
    piece = found->second;
    raw.pieces.erase(found);
  }
  try {
    npusim::wait_until_ns(npusim::device_done_at_ns(piece.device));
    npusim::note_order(npusim::OrderKind::allocator_wait, piece.device, nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "npusim_free(%p): %s\n", address, error.what());
  }
  npusim::release_segment(piece.device, reinterpret_cast<npusim::Address>(address), piece.bytes);
}
