// SPDX-License-Identifier: BSD-3-Clause
// How much memory the host can still back: the least of MemAvailable, the commit limit and every
// cgroup (v1 or v2) above this process. Invariant: asked before memory is promised, so that a
// simulated device larger than the host ends in OutOfMemory, never in a kill (rule M5).
// Called by memory.cpp and host_memory.cpp; the test hook is for native tests only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace npusim {

struct HostBudget {
  std::uint64_t available_bytes = UINT64_MAX;
  std::string limit;  // which limit it is, for messages: "MemAvailable", "cgroup limit 512 MiB ..."
};

// Bytes that are always left to the rest of the process.
inline constexpr std::uint64_t kHostHeadroomBytes = 64ULL << 20;

// read_host_budget() reads the limits below `root` ("" is the real system). Unreadable files are
// skipped: no limit is known then. Takes a fraction of a millisecond.
HostBudget read_host_budget(const std::string& root = "");

// host_budget() is read_host_budget() unless a test has set a value.
HostBudget host_budget();

// A probe that found plenty lets the next acquisitions pass without another one:
// grant_host_credit() allows that many bytes, spend_host_credit() is whether `bytes` are covered.
void grant_host_credit(std::uint64_t bytes) noexcept;
bool spend_host_credit(std::uint64_t bytes) noexcept;

// set_host_budget_for_testing() makes host_budget() return this and grants no credit; nullopt
// ends it.
void set_host_budget_for_testing(std::optional<std::uint64_t> available_bytes);

}  // namespace npusim
