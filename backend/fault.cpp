// SPDX-License-Identifier: BSD-3-Clause
// Armed rules, pending faults and lost devices, all behind one lock that only the slow path takes.
#include "backend/fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <mutex>

#include "backend/attention.h"
#include "backend/device.h"
#include "backend/device_loss.h"
#include "backend/error.h"
#include "backend/executor.h"
#include "backend/graph.h"
#include "backend/process.h"
#include "backend/promise.h"

namespace npusim {

namespace {

constexpr std::array<const char*, kFaultKindCount> kKindNames{"oom",  "launch", "hang", "device",
                                                              "slow", "link",   "kill"};

constinit std::atomic<int> g_rank{-1};
constinit thread_local int t_rank = -1;

int rank() noexcept { return t_rank >= 0 ? t_rank : g_rank.load(std::memory_order_relaxed); }

struct ArmedRule {
  FaultRule rule;
  std::uint64_t calls = 0;  // matching calls since the rule was armed
};

// What a device has to report.
struct Pending {
  bool exists = false;
  bool reported = false;  // only a lost device stays pending after its report
  FaultKind kind = FaultKind::launch;
  std::string text;
};

struct FaultState {
  std::mutex mutex;  // guards everything below
  std::vector<ArmedRule> rules;
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

bool advance(ArmedRule& armed) {
  const FaultRule& rule = armed.rule;
  const std::uint64_t call = ++armed.calls;
  if (rule.at != 0) return call == rule.at;
  if (rule.every != 0) return call % rule.every == 0;
  return draw_unit(rule.seed, call) < rule.probability;
}

void update_attention(const FaultState& faults) {
  bool pending = false;
  for (const Pending& one : faults.pending) pending |= one.exists;
  pending ? detail::set_attention(detail::kFaultPending)
          : detail::clear_attention(detail::kFaultPending);
  faults.rules.empty() ? detail::clear_attention(detail::kFaultsArmed)
                       : detail::set_attention(detail::kFaultsArmed);
}

bool slows(FaultKind kind) { return kind == FaultKind::slow || kind == FaultKind::link; }

// What hit a call: of the rules that make it fail the first one that hits names the kind.
struct Hit {
  bool found = false;
  FaultKind kind = FaultKind::launch;
  double slowdown = 1;
};

// Counts a call against every rule that matches.
template <class Matches>
Hit draw(FaultState& faults, int device, Matches matches) {
  Hit hit;
  std::erase_if(faults.rules, [&](ArmedRule& armed) {
    const FaultRule& rule = armed.rule;
    const bool meant =
        (rule.device < 0 || rule.device == device) && (rule.rank < 0 || rule.rank == rank());
    if (!meant || !matches(rule) || !advance(armed)) return false;
    if (slows(rule.kind)) {
      hit.slowdown *= rule.factor;
    } else if (!hit.found) {
      hit.found = true;
      hit.kind = rule.kind;
    } else {
      return rule.at != 0;
    }
    ++faults.counts.injected[static_cast<std::size_t>(rule.kind)];
    return rule.at != 0;  // spent
  });
  return hit;
}

// The process is gone before anything of it is cleaned up; what the others were promised before is
// kept, so that it does not depend on luck what they get.
[[noreturn]] void end_process(const CommandInfo& info) {
  NPUSIM_CHECK(t_rank < 0, "the kill fault at `", info.name,
               "` would end all ranks: those of run_ranks() are threads of one process; start "
               "processes (torchrun)");
  keep_all_promises();
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
  update_attention(faults);
  throw DeviceFault(text);
}

template <class Number>
Number parse_number(std::string_view rule, std::string_view text) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  NPUSIM_CHECK(error == std::errc() && stop == text.data() + text.size(), "`", text,
               "` in the fault rule `", rule, "` is not a number in range");
  return number;
}

void parse_option(std::string_view rule, std::string_view option, FaultRule* result) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  NPUSIM_CHECK(
      equals != std::string_view::npos &&
          (key == "device" || key == "seed" || key == "name" || key == "rank" || key == "factor"),
      "`", option, "` in the fault rule `", rule,
      "` is no option; accepted: device=N, rank=N, seed=N, factor=X, name=TEXT");
  const std::string_view value = option.substr(equals + 1);
  if (key == "device") result->device = parse_number<int>(rule, value);
  if (key == "rank") result->rank = parse_number<int>(rule, value);
  if (key == "factor") result->factor = parse_number<double>(rule, value);
  if (key == "seed") result->seed = parse_number<std::uint64_t>(rule, value);
  if (key == "name") result->name = value;
}

FaultRule parse_rule(std::string_view rule) {
  const std::size_t mark = rule.find_first_of("@%~");
  FaultRule result;
  std::size_t kind = 0;
  while (kind < kFaultKindCount && rule.substr(0, mark) != kKindNames[kind]) ++kind;
  NPUSIM_CHECK(mark != std::string_view::npos && kind < kFaultKindCount, "the fault rule `", rule,
               "` is not understood; accepted: KIND@K, KIND%K or KIND~P with KIND one of oom, "
               "launch, hang, device, slow, link, kill, then :device=N, :rank=N, :seed=N, "
               ":factor=X, :name=TEXT");
  result.kind = static_cast<FaultKind>(kind);
  std::size_t end = rule.find(':', mark);
  const std::string_view number = rule.substr(mark + 1, end == rule.npos ? end : end - mark - 1);
  if (rule[mark] == '@') result.at = parse_number<std::uint64_t>(rule, number);
  if (rule[mark] == '%') result.every = parse_number<std::uint64_t>(rule, number);
  if (rule[mark] == '~') result.probability = parse_number<double>(rule, number);
  while (end != rule.npos) {
    const std::size_t start = end + 1;
    end = rule.find(':', start);
    parse_option(rule, rule.substr(start, end == rule.npos ? end : end - start), &result);
  }
  return result;
}

void check_rule(const FaultRule& rule) {
  const int ways = (rule.at != 0) + (rule.every != 0) + (rule.probability != 0);
  NPUSIM_CHECK(ways == 1 && rule.probability >= 0 && rule.probability <= 1,
               "a fault rule needs exactly one of: the number of a call (1 or more), a period (1 "
               "or more), a probability above 0 and up to 1; given: at=",
               rule.at, ", every=", rule.every, ", probability=", rule.probability);
  NPUSIM_CHECK(rule.device >= -1 && rule.device < kMaxDevices, "a fault rule names device ",
               rule.device, "; expected a device number, or -1 for any");
  NPUSIM_CHECK(rule.rank >= -1, "a fault rule names rank ", rule.rank,
               "; expected a rank of the job, or -1 for all");
  NPUSIM_CHECK(slows(rule.kind) ? rule.factor > 1 && rule.factor <= 1e6 : rule.factor == 1,
               "slow and link faults need a factor, more than 1 and up to 1e6, by which a command "
               "takes longer or links have less bandwidth; other faults have none; given: ",
               fault_kind_name(rule.kind), " with factor=", rule.factor);
  NPUSIM_CHECK(rule.kind != FaultKind::oom || rule.name.empty(),
               "an oom fault rule cannot name a command (`", rule.name,
               "`): it counts acquired segments");
}

}  // namespace

const char* fault_kind_name(FaultKind kind) noexcept {
  return kKindNames[static_cast<std::size_t>(kind)];
}

void set_rank(int rank) noexcept { g_rank.store(rank, std::memory_order_relaxed); }
void set_thread_rank(int rank) noexcept { t_rank = rank; }

std::vector<FaultRule> parse_fault_script(std::string_view script) {
  std::vector<FaultRule> rules;
  while (!script.empty()) {
    const std::size_t end = script.find(';');
    std::string_view rule = script.substr(0, end);
    while (!rule.empty() && rule.front() == ' ') rule.remove_prefix(1);
    while (!rule.empty() && rule.back() == ' ') rule.remove_suffix(1);
    if (!rule.empty()) {
      rules.push_back(parse_rule(rule));
      check_rule(rules.back());
    }
    script = end == script.npos ? std::string_view() : script.substr(end + 1);
  }
  return rules;
}

void inject_fault(const FaultRule& rule) {
  check_not_forked();
  check_rule(rule);
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  faults.rules.push_back({rule});
  update_attention(faults);
}

void clear_faults() {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  faults.rules.clear();
  faults.pending = {};
  faults.counts = {};
  update_attention(faults);
}

void lose_device(int device, const std::string& text) {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  Pending& pending = faults.pending[static_cast<std::size_t>(device)];
  if (!pending.exists) pending = {true, false, FaultKind::device, text};
  update_attention(faults);
}

std::vector<FaultRule> armed_faults() {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  std::vector<FaultRule> rules;
  rules.reserve(faults.rules.size());
  for (const ArmedRule& armed : faults.rules) rules.push_back(armed.rule);
  return rules;
}

FaultCounts fault_counts() {
  check_not_forked();
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  return faults.counts;
}

namespace detail {

FaultDraw draw_command_fault(const Stream& stream, const CommandInfo& info) {
  check_not_forked();
  if (needs_attention(kCapturing) && t_state.launching == Launching::directly) {
    refuse_uncaptured(info.name, stream);
  }
  if (info.kind != CommandKind::collective && needs_attention(kPromised)) {
    keep_promises(const_cast<Stream&>(stream));
  }
  if (!needs_attention(kFaultsArmed | kFaultPending) || stream.device() < 0 ||
      t_state.launching == Launching::captured) {
    return {};
  }
  FaultState& faults = state();
  std::unique_lock lock(faults.mutex);
  Pending& pending = faults.pending[static_cast<std::size_t>(stream.device())];
  if (pending.reported) raise(faults, pending);
  const std::string_view name = info.name;
  const bool communicates = info.kind == CommandKind::collective;
  const Hit hit = draw(faults, stream.device(), [&](const FaultRule& rule) {
    const bool of_its_kind = rule.kind == FaultKind::oom    ? false
                             : rule.kind == FaultKind::slow ? !communicates
                             : rule.kind == FaultKind::link ? communicates
                                                            : true;
    return of_its_kind && name.find(rule.name) != name.npos;
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
  update_attention(faults);
  const bool hangs = hit.found && hit.kind == FaultKind::hang && !communicates;
  return {hit.found, hit.kind, hangs ? kWatchdogNs : 0, hit.slowdown};
}

bool draw_oom_fault(int device, std::string* reason) {
  if (!needs_attention(kFaultsArmed | kFaultPending)) return false;
  FaultState& faults = state();
  const std::lock_guard lock(faults.mutex);
  if (faults.pending[static_cast<std::size_t>(device)].reported) {
    *reason = "the device is lost (injected device fault); clear the faults to use it again";
    return true;
  }
  const bool found =
      draw(faults, device, [](const FaultRule& rule) { return rule.kind == FaultKind::oom; }).found;
  update_attention(faults);
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
