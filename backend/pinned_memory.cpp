// SPDX-License-Identifier: BSD-3-Clause
// An address-ordered table of pinned allocations; lookups share the lock.
#include "backend/pinned_memory.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "backend/error.h"
#include "backend/observer.h"
#include "backend/process.h"
#include "backend/ram_budget.h"
#include "backend/registered_memory.h"

namespace npusim {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kUncheckedBytes = std::size_t{1} << 20;  // the host's budget is not asked

struct PinnedTable {
  std::shared_mutex mutex;  // guards both members
  struct Range {
    std::size_t bytes;
    bool registered;  // the program's own memory
  };
  std::map<std::uintptr_t, Range> allocations;
  std::size_t total_bytes = 0;
};

PinnedTable& table() {
  static PinnedTable* const kTable = new PinnedTable();  // leaked: frees arrive at exit
  return *kTable;
}

[[noreturn]] void throw_out_of_memory(std::size_t bytes, const std::string& why) {
  throw OutOfMemory(detail::join("cannot allocate ", format_bytes(bytes),
                                 " of pinned host memory: ", why,
                                 ". Pin less, or free host memory."));
}

}  // namespace

void* pinned_allocate(std::size_t bytes) {
  check_not_forked();
  NPUSIM_CHECK(bytes > 0, "0 bytes of pinned memory were asked for; expected 1 byte or more");
  if (bytes > SIZE_MAX / 2) throw_out_of_memory(bytes, "more than an address space holds");
  if (bytes >= kUncheckedBytes) {
    const RamBudget budget = ram_budget();
    if (budget.available_bytes < bytes || budget.available_bytes - bytes < kRamHeadroomBytes) {
      throw_out_of_memory(
          bytes, detail::join(format_bytes(budget.available_bytes), " are left by ", budget.limit));
    }
  }
  void* pointer =
      std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (pointer == nullptr) throw_out_of_memory(bytes, "the host refused");
  PinnedTable& pinned = table();
  const std::unique_lock lock(pinned.mutex);
  pinned.allocations.emplace(reinterpret_cast<std::uintptr_t>(pointer),
                             PinnedTable::Range{bytes, /*registered=*/false});
  pinned.total_bytes += bytes;
  return pointer;
}

void pinned_free(void* pointer) noexcept {
  if (pointer == nullptr || in_bad_fork()) return;
  note_memory(MemoryKind::pinned_free, pointer, 0, nullptr);
  PinnedTable& pinned = table();
  {
    const std::unique_lock lock(pinned.mutex);
    const auto found = pinned.allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == pinned.allocations.end()) {
      std::fprintf(stderr, "npusim: internal error: pinned_free(%p) of an unknown address\n",
                   pointer);
      return;
    }
    pinned.total_bytes -= found->second.bytes;
    pinned.allocations.erase(found);
  }
  std::free(pointer);
}

bool is_pinned(const void* pointer) noexcept {
  if (in_bad_fork()) return false;
  PinnedTable& pinned = table();
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::shared_lock lock(pinned.mutex);
  const auto after = pinned.allocations.upper_bound(address);
  if (after == pinned.allocations.begin()) return false;
  const auto& [start, range] = *std::prev(after);
  return address - start < range.bytes;
}

bool pinned_register(void* pointer, std::size_t bytes) {
  check_not_forked();
  NPUSIM_CHECK(pointer != nullptr && bytes > 0, "pinned_register() was called without memory");
  PinnedTable& pinned = table();
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  {
    const std::unique_lock lock(pinned.mutex);
    const auto after = pinned.allocations.lower_bound(begin + bytes);
    if (after != pinned.allocations.begin()) {
      const auto& [start, range] = *std::prev(after);
      if (start + range.bytes > begin) return false;
    }
    pinned.allocations.emplace(begin, PinnedTable::Range{bytes, /*registered=*/true});
    pinned.total_bytes += bytes;
  }
  note_memory(MemoryKind::pinned_allocate, pointer, bytes, nullptr);
  return true;
}

bool pinned_unregister(void* pointer) {
  check_not_forked();
  PinnedTable& pinned = table();
  {
    const std::unique_lock lock(pinned.mutex);
    const auto found = pinned.allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == pinned.allocations.end() || !found->second.registered) return false;
    pinned.total_bytes -= found->second.bytes;
    pinned.allocations.erase(found);
  }
  note_memory(MemoryKind::pinned_free, pointer, 0, nullptr);
  return true;
}

void note_pinned_allocations() {
  PinnedTable& pinned = table();
  const std::shared_lock lock(pinned.mutex);
  for (const auto& [start, range] : pinned.allocations) {
    note_memory(MemoryKind::pinned_allocate, reinterpret_cast<void*>(start), range.bytes, nullptr);
  }
}

std::size_t pinned_bytes() noexcept {
  if (in_bad_fork()) return 0;
  PinnedTable& pinned = table();
  const std::shared_lock lock(pinned.mutex);
  return pinned.total_bytes;
}

}  // namespace npusim
