// SPDX-License-Identifier: BSD-3-Clause
// Fault injection: makes the simulated device fail on purpose (rules F1-F9).
// Invariant: without an armed fault a command pays one relaxed load; a draw depends only on the
// order of calls and the seed. All functions are thread-safe; those that change state throw
// InvalidArgument in a forked child.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace npusim {

class Stream;
struct CommandInfo;

enum class FaultKind : std::uint8_t {
  oom,     // acquire_segment() fails
  launch,  // a command does not run; reported once, by the next synchronising call
  hang,    // a command never ends; waiting for it costs kWatchdogNs and reports, once
  device,  // the device is lost: reported by every call that meets it until clear_faults()
  slow,    // a command takes `factor` times as long
  link,    // communication has 1/factor of the bandwidth, for all who take part
  kill,    // the process ends at a command, as by SIGKILL
};
inline constexpr std::size_t kFaultKindCount = 7;

// Virtual time after which a hanging command is given up.
inline constexpr std::int64_t kWatchdogNs = 1'000'000'000;

// A fault to inject, and the calls that it hits. Exactly one of `at`, `every` and `probability` is
// set. A call matches if it is of the fault's kind, device, rank and name.
struct Fault {
  FaultKind kind = FaultKind::launch;
  std::uint64_t at = 0;     // the k-th matching call from now on, counted from 1; then disarmed
  std::uint64_t every = 0;  // each k-th matching call
  double probability = 0;   // of each matching call, by `seed`
  std::uint64_t seed = 0;
  int device = -1;     // -1: any device
  int rank = -1;       // only on this rank of the job (set_rank()); -1: on all
  double factor = 1;   // of `slow` and `link`: more than 1
  std::string name{};  // only commands whose name contains this; empty: all
};

// inject_fault() arms a fault. Throws InvalidArgument for one that contradicts itself.
void inject_fault(const Fault& fault);

// clear_faults() disarms all faults, forgets pending reports, revives lost devices, zeroes counts.
void clear_faults();

// parse_fault_script() reads faults separated by ';':
//   KIND@K     the K-th call        launch@3
//   KIND%K     each K-th call       oom%10:device=1
//   KIND~P     with probability P   device~0.001:seed=7:name=conv, slow~0.1:factor=3:rank=1
// Throws InvalidArgument naming the fault and what is accepted.
std::vector<Fault> parse_fault_script(std::string_view script);

// fault_counts() is what happened since the last clear_faults().
struct FaultCounts {
  std::array<std::uint64_t, kFaultKindCount> injected{};  // indexed by FaultKind
  std::uint64_t reported = 0;                             // DeviceFault thrown
};
FaultCounts fault_counts();

const char* fault_kind_name(FaultKind kind) noexcept;

// set_rank() sets the rank of this process in its job; set_thread_rank() that of the calling
// thread, where ranks are threads of one process, and it then counts. -1: none.
void set_rank(int rank) noexcept;
void set_thread_rank(int rank) noexcept;

namespace detail {

// draw_command_fault() counts a command against the armed faults and returns their effect on it.
// Only the slow path calls it. Throws InvalidArgument in a forked child and where a capture forbids
// the command, DeviceFault on a lost device. Does not return where a `kill` fault hits.
struct FaultDraw {
  bool hit = false;  // the body must not run, because of `kind`
  FaultKind kind = FaultKind::launch;
  std::int64_t hang_ns = 0;  // extra time for the stream
  double slowdown = 1;       // factor of the duration; of communication: divides its bandwidth
};
FaultDraw draw_command_fault(const Stream& stream, const CommandInfo& info);

// draw_oom_fault() is whether this acquire_segment() must fail: a fault hit it, or the device is
// lost. `reason` then says which.
bool draw_oom_fault(int device, std::string* reason);

// report_fault() throws the pending fault of the device, if any. Callers test kFaultPending first.
void report_fault(int device);

}  // namespace detail

}  // namespace npusim
