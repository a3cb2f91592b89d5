// SPDX-License-Identifier: BSD-3-Clause
// Armed faults, pending reports and lost devices, behind one lock that only the slow path takes.
#include "backend/fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <mutex>

#include "backend/clock.h"
#include "backend/device.h"
#include "backend/device_loss.h"
#include "backend/error.h"
#include "backend/graph.h"
#include "backend/host_layer.h"
#include "backend/process.h"
#include "backend/promised_end.h"
#include "backend/running_command.h"
#include "backend/slow_path.h"

namespace npusim {

namespace {

constexpr std::array<const char*, kFaultKindCount> kKindNames{"oom",  "launch", "hang", "device",
                                                              "slow", "link",   "kill"};

constinit std::atomic<int> g_rank{-1};
constinit thread_local int t_rank = -1;

int rank() noexcept { return t_rank >= 0 ? t_rank : g_rank.load(std::memory_order_relaxed); }

struct ArmedFault {
  Fault fault;
  std::uint64_t calls = 0;  // matching calls since it was armed
};

// What a device has to report.
struct Pending {
  bool exists = false;
  bool reported = false;  // only a lost device stays pending after its report
  FaultKind kind = FaultKind::launch;
  std::string text;
  bool injected = true;  // else by lose_device()
};

struct FaultState {
  std::mutex mutex;  // guards everything below
  std::vector<ArmedFault> armed;
  std::array<Pending, kMaxDevices> pending;
  FaultCounts counts;
};

FaultState& state() {
  static FaultState* const kState = new FaultState();  // leaked: used while the process exits
  return *kState;
}

// One draw per call, from the seed and the number of the call alone (splitmix64).
double draw_unit(std::uint64_t seed, std::uint64_t call) {
  std::uint64_t z = seed * 0xD1342543DE82EF95ULL + call * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

// Counts a matching call; whether the fault hits it.
bool advance(ArmedFault& armed) {
  const Fault& fault = armed.fault;
  const std::uint64_t call = ++armed.calls;
  if (fault.at != 0) return call == fault.at;
  if (fault.every != 0) return call % fault.every == 0;
  return draw_unit(fault.seed, call) < fault.probability;
}

void update_slow_path(const FaultState& faults) {
  bool pending = false;
  for (const Pending& one : faults.pending) pending |= one.exists;
  pending ? detail::set_slow_path(detail::kFaultPending)
          : detail::clear_slow_path(detail::kFaultPending);
  faults.armed.empty() ? detail::clear_slow_path(detail::kFaultsArmed)
                       : detail::set_slow_path(detail::kFaultsArmed);
}

bool slows(FaultKind kind) { return kind == FaultKind::slow || kind == FaultKind::link; }

// What hit a call. Of several faults that make it fail, the one armed first names the kind; those
// that slow it down multiply.
struct Hit {
  bool found = false;
  FaultKind kind = FaultKind::launch;
  double slowdown = 1;
};

// Counts a call against every armed fault that matches it, and disarms those that are spent.
template <class Matches>
Hit draw(FaultState& faults, int device, Matches matches) {
  Hit hit;
  std::erase_if(faults.armed, [&](ArmedFault& armed) {
    const Fault& fault = armed.fault;
    const bool meant =
        (fault.device < 0 || fault.device == device) && (fault.rank < 0 || fault.rank == rank());
    if (!meant || !matches(fault) || !advance(armed)) return false;
    if (slows(fault.kind)) {
      hit.slowdown *= fault.factor;
    } else if (!hit.found) {
      hit.found = true;
      hit.kind = fault.kind;
    } else {
      return fault.at != 0;
    }
    ++faults.counts.injected[static_cast<std::size_t>(fault.kind)];
    return fault.at != 0;  // spent
  });
  return hit;
}

// Ends the process without any cleanup. Collectives that it had promised before are settled first,
// so that the results of the other ranks do not depend on luck.
[[noreturn]] void end_process(const CommandInfo& info) {
  NPUSIM_CHECK(t_rank < 0, "the kill fault at `", info.name,
               "` would end all ranks: those of run_ranks() are threads of one process; start "
               "processes (torchrun)");
  keep_all_promises(kAllDevices);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

std::string describe(FaultKind kind, const Stream& stream, const CommandInfo& info) {
  const char* what = kind == FaultKind::launch ? "launch failure"
                     : kind == FaultKind::hang ? "command did not finish"
                                               : "device lost";
  std::string text = detail::join("npusim error: ", what, ": `", info.name, "` on stream ",
                                  stream.id(), " of device ", stream.device(), " (injected ",
                                  fault_kind_name(kind), " fault).");
  if (kind == FaultKind::hang) {
    text +=
        detail::join(" It was given up after ", kWatchdogNs / 1'000'000, " ms of virtual time.");
  }
  if (kind == FaultKind::device) text += " The device is unusable until the faults are cleared.";
  return text +
         " Asynchronous errors are reported by a later synchronising call; set "
         "NPUSIM_LAUNCH_BLOCKING=1 to get them at the call that caused them.";
}

[[noreturn]] void raise(FaultState& faults, Pending& pending) {
  ++faults.counts.reported;
  const std::string text = pending.text;
  if (pending.kind == FaultKind::device) {
    pending.reported = true;
  } else {
    pending = {};
  }
  update_slow_path(faults);
  throw DeviceFault(text);
}

template <class Number>
Number parse_number(std::string_view fault, std::string_view text) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  NPUSIM_CHECK(error == std::errc() && stop == text.data() + text.size(), "`", text,
               "` in the fault `", fault, "` is not a number in range");
  return number;
}

void parse_option(std::string_view fault, std::string_view option, Fault* result) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  NPUSIM_CHECK(
      equals != std::string_view::npos &&
          (key == "device" || key == "seed" || key == "name" || key == "rank" || key == "factor"),
      "`", option, "` in the fault `", fault,
      "` is no option; accepted: device=N, rank=N, seed=N, factor=X, name=TEXT");
  const std::string_view value = option.substr(equals + 1);
  if (key == "device") result->device = parse_number<int>(fault, value);
  if (key == "rank") result->rank = parse_number<int>(fault, value);
  if (key == "factor") result->factor = parse_number<double>(fault, value);
  if (key == "seed") result->seed = parse_number<std::uint64_t>(fault, value);
  if (key == "name") result->name = value;
}

Fault parse_fault(std::string_view fault) {
  const std::size_t mark = fault.find_first_of("@%~");
  Fault result;
  std::size_t kind = 0;
  while (kind < kFaultKindCount && fault.substr(0, mark) != kKindNames[kind]) ++kind;
  NPUSIM_CHECK(mark != std::string_view::npos && kind < kFaultKindCount, "the fault `", fault,
               "` is not understood; accepted: KIND@K, KIND%K or KIND~P with KIND one of oom, "
               "launch, hang, device, slow, link, kill, then :device=N, :rank=N, :seed=N, "
               ":factor=X, :name=TEXT");
  result.kind = static_cast<FaultKind>(kind);
  std::size_t end = fault.find(':', mark);
  const std::string_view number = fault.substr(mark + 1, end == fault.npos ? end : end - mark - 1);
  if (fault[mark] == '@') result.at = parse_number<std::uint64_t>(fault, number);
  if (fault[mark] == '%') result.every = parse_number<std::uint64_t>(fault, number);
  if (fault[mark] == '~') result.probability = parse_number<double>(fault, number);
  while (end != fault.npos) {
    const std::size_t start = end + 1;
    end = fault.find(':', start);
    parse_option(fault, fault.substr(start, end == fault.npos ? end : end - start), &result);
  }
  return result;
}

void check_fault(const Fault& fault) {
  const int ways = (fault.at != 0) + (fault.every != 0) + (fault.probability != 0);
  NPUSIM_CHECK(ways == 1 && fault.probability >= 0 && fault.probability <= 1,
               "a fault needs exactly one of: the number of a call (1 or more), a period (1 "
               "or more), a probability above 0 and up to 1; given: at=",
               fault.at, ", every=", fault.every, ", probability=", fault.probability);
  NPUSIM_CHECK(fault.device >= -1 && fault.device < kMaxDevices, "a fault names device ",
               fault.device, "; expected a device number, or -1 for any");
  NPUSIM_CHECK(fault.rank >= -1, "a fault names rank ", fault.rank,
               "; expected a rank of the job, or -1 for all");
  NPUSIM_CHECK(slows(fault.kind) ? fault.factor > 1 && fault.factor <= 1e6 : fault.factor == 1,
               "slow and link faults need a factor, more than 1 and up to 1e6, by which a command "
               "takes longer or links have less bandwidth; other faults have none; given: ",
               fault_kind_name(fault.kind), " with factor=", fault.factor);
  NPUSIM_CHECK(fault.kind != FaultKind::oom || fault.name.empty(),
               "an oom fault cannot name a command (`", fault.name,
               "`): it counts acquired segments");
}

}  // namespace

const char* fault_kind_name(FaultKind kind) noexcept {
  return kKindNames[static_cast<std::size_t>(kind)];
}

void set_rank(int rank) noexcept { g_rank.store(rank, std::memory_order_relaxed); }
void set_thread_rank(int rank) noexcept { t_rank = rank; }

std::vector<Fault> parse_fault_script(std::string_view script) {
  std::vector<Fault> faults;
  while (!script.empty()) {
    const std::size_t end = script.find(';');
    std::string_view fault = script.substr(0, end);
    while (!fault.empty() && fault.front() == ' ') fault.remove_prefix(1);
    while (!fault.empty() && fault.back() == ' ') fault.remove_suffix(1);
    if (!fault.empty()) {
      faults.push_back(parse_fault(fault));
      check_fault(faults.back());
    }
    script = end == script.npos ? std::string_view() : script.substr(end + 1);
  }
  return faults;
}

void inject_fault(const Fault& fault) {
  check_not_forked();
  check_fault(fault);
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  faults.armed.push_back({fault});
  update_slow_path(faults);
}

void clear_faults() {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  faults.armed.clear();
  faults.pending = {};
  faults.counts = {};
  update_slow_path(faults);
}

void lose_device(int device, const std::string& text, bool told) {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  Pending& pending = faults.pending[static_cast<std::size_t>(device)];
  if (!pending.exists) pending = {true, told, FaultKind::device, text, /*injected=*/false};
  update_slow_path(faults);
}

std::vector<LostDevice> revive_devices() {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  std::vector<LostDevice> lost;
  for (int device = 0; device < kMaxDevices; ++device) {
    Pending& pending = faults.pending[static_cast<std::size_t>(device)];
    if (!pending.exists || pending.injected) continue;
    lost.push_back({device, pending.text, pending.reported});
    pending = {};
  }
  update_slow_path(faults);
  return lost;
}

FaultCounts fault_counts() {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  return faults.counts;
}

namespace {
constinit std::atomic<HostLayer> g_host_layer{nullptr};
}  // namespace

void set_host_layer(HostLayer layer) noexcept {
  g_host_layer.store(layer);
  if (layer != nullptr) {
    detail::set_slow_path(detail::kHostLayer);
  } else {
    detail::clear_slow_path(detail::kHostLayer);
  }
}

void set_host_call_ns(HostCall kind, std::int64_t ns) noexcept {
  detail::host_call_ns[static_cast<std::size_t>(kind)].store(ns);
}

namespace detail {

void pass_host_calls(HostCall kind, std::int64_t count) {
  if (t_state.run != nullptr || t_state.launching != Launching::directly) return;
  advance_host_ns(count * host_call_ns[static_cast<std::size_t>(kind)].load(), HostWork::layer);
}

FaultDraw draw_command_fault(const Stream& stream, const CommandInfo& info) {
  check_not_forked();
  if (takes_slow_path(kHostLayer) && t_state.launching == Launching::directly) {
    const HostLayer layer = g_host_layer.load();
    if (const std::int64_t ns = layer == nullptr ? 0 : layer(info.name); ns > 0) {
      advance_host_ns(ns, HostWork::layer);
    }
  }
  if (takes_slow_path(kCapturing) && t_state.launching == Launching::directly) {
    refuse_uncaptured(info.name, stream);
  }
  if (info.kind != CommandKind::collective && takes_slow_path(kPromised)) {
    keep_promises(const_cast<Stream&>(stream));
  }
  if (!takes_slow_path(kFaultsArmed | kFaultPending) || stream.device() < 0 ||
      t_state.launching == Launching::captured) {
    return {};
  }
  FaultState& faults = state();
  std::unique_lock lock(faults.mutex);
  Pending& pending = faults.pending[static_cast<std::size_t>(stream.device())];
  if (pending.reported) raise(faults, pending);
  const std::string_view name = info.name;
  const bool communicates = info.kind == CommandKind::collective;
  const Hit hit = draw(faults, stream.device(), [&](const Fault& fault) {
    const bool of_its_kind = fault.kind == FaultKind::oom    ? false
                             : fault.kind == FaultKind::slow ? !communicates
                             : fault.kind == FaultKind::link ? communicates
                                                             : true;
    return of_its_kind && name.find(fault.name) != name.npos;
  });
  if (hit.found && hit.kind == FaultKind::kill) {
    lock.unlock();
    end_process(info);
  }
  // The first fault is the one that is told, except that a lost device outweighs everything.
  // Communication has its own way to tell, unless the device is lost.
  const bool told = communicates ? hit.kind == FaultKind::device
                                 : !pending.exists || hit.kind == FaultKind::device;
  if (hit.found && told) pending = {true, false, hit.kind, describe(hit.kind, stream, info)};
  update_slow_path(faults);
  const bool hangs = hit.found && hit.kind == FaultKind::hang && !communicates;
  return {hit.found, hit.kind, hangs ? kWatchdogNs : 0, hit.slowdown};
}

bool draw_oom_fault(int device, std::string* reason) {
  if (!takes_slow_path(kFaultsArmed | kFaultPending)) return false;
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  if (faults.pending[static_cast<std::size_t>(device)].reported) {
    const Pending& pending = faults.pending[static_cast<std::size_t>(device)];
    *reason = pending.injected
                  ? "the device is lost (injected device fault); clear the faults to use it again"
                  : "the device is lost: " + pending.text.substr(0, pending.text.find('\n'));
    return true;
  }
  const bool found =
      draw(faults, device, [](const Fault& fault) { return fault.kind == FaultKind::oom; }).found;
  update_slow_path(faults);
  if (found) *reason = "injected out-of-memory fault";
  return found;
}

void report_fault(int device) {
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  if (device < 0) return;
  Pending& pending = faults.pending[static_cast<std::size_t>(device)];
  if (pending.exists) raise(faults, pending);
}

}  // namespace detail

}  // namespace npusim
