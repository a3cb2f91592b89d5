// SPDX-License-Identifier: BSD-3-Clause
// RAM that this process can still get: the least of MemAvailable, the commit limit and every cgroup
// (v1 or v2) above this process. Invariant: asked before memory is charged, so that a simulated
// device larger than RAM ends in OutOfMemory, never in a kill (rule M5).
// The test hook is for native tests only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace npusim {

struct RamBudget {
  std::uint64_t available_bytes = UINT64_MAX;
  std::string
      limit;  // the one that is least, for messages: "MemAvailable", "cgroup limit 512 MiB ..."
};

// Bytes that are always left to the rest of the process.
inline constexpr std::uint64_t kRamHeadroomBytes = 64ULL << 20;

// read_ram_budget() reads the limits below `root` ("" is the real system). Unreadable files are
// skipped: no limit is known then. Takes a fraction of a millisecond.
RamBudget read_ram_budget(const std::string& root = "");

// ram_budget() is read_ram_budget() unless a test has set a value.
RamBudget ram_budget();

// A probe that found much RAM spares the next acquisitions another one: grant_ram_credit() covers
// that many bytes; spend_ram_credit() is whether `bytes` are still covered, and takes them.
void grant_ram_credit(std::uint64_t bytes) noexcept;
bool spend_ram_credit(std::uint64_t bytes) noexcept;

// set_ram_budget_for_testing() makes ram_budget() return this and grants no credit; nullopt
// ends it.
void set_ram_budget_for_testing(std::optional<std::uint64_t> available_bytes);

}  // namespace npusim
