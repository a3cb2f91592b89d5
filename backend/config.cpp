// SPDX-License-Identifier: BSD-3-Clause
// The knob table and its parser. docs/reference/env.md is generated from kKnobs; a row is all that
// a new knob needs besides its field in Config and its line in parse_config().
#include "backend/config.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "backend/device.h"
#include "backend/error.h"
#include "backend/fault.h"
#include "backend/visible_devices.h"

namespace npusim {

namespace {

constexpr std::size_t kMaxDeviceBytes = std::size_t{64} << 40;
constexpr std::size_t kMinDeviceBytes = std::size_t{64} << 10;

std::atomic<bool> g_follows_cuda{false};

const char* environment(const char* name) { return std::getenv(name); }

// The environment, in which an alias that a program switched on is one of the environment's.
const char* environment_with_alias(const char* name) {
  if (g_follows_cuda && std::strcmp(name, "NPUSIM_AS_CUDA") == 0) return "1";
  return environment(name);
}

// The text in effect; "set but empty" means the default.
std::string text_of(GetVariable get, const char* name) {
  const char* value = get(name);
  if (value != nullptr && *value != '\0') return value;
  for (const Knob& knob : knobs()) {
    if (std::strcmp(knob.name, name) == 0) return knob.default_value;
  }
  detail::throw_internal_error("every knob has a row in the table", __FILE__, __LINE__);
}

[[noreturn]] void reject(const char* name, const std::string& given, const std::string& accepted) {
  throw InvalidArgument(detail::join(name, " is `", given, "`; accepted: ", accepted,
                                     ". Set it to ", "one of these or unset it."));
}

template <class Value>
Value parse_word(GetVariable get, const char* name,
                 std::initializer_list<std::pair<const char*, Value>> words) {
  const std::string given = text_of(get, name);
  std::string accepted;
  for (const auto& [word, value] : words) {
    if (given == word) return value;
    accepted += (accepted.empty() ? "" : ", ") + std::string(word);
  }
  reject(name, given, accepted);
}

bool parse_flag(GetVariable get, const char* name) {
  return parse_word<bool>(get, name, {{"0", false}, {"1", true}});
}

bool parse_whole(const std::string& text, int* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

int parse_device_count(GetVariable get) {
  const std::string given = text_of(get, "NPUSIM_DEVICE_COUNT");
  int count = 0;
  if (!parse_whole(given, &count) || count < 0 || count > kMaxDevices) {
    reject("NPUSIM_DEVICE_COUNT", given, detail::join("a whole number from 0 to ", kMaxDevices));
  }
  return count;
}

// The variable that says which devices are visible. Under the CUDA alias CUDA_VISIBLE_DEVICES
// does; empty or -1 it hides the host's GPUs, not the simulated devices.
const char* visible_devices_variable(GetVariable get) {
  constexpr const char* kOwn = "NPUSIM_VISIBLE_DEVICES";
  constexpr const char* kOfCuda = "CUDA_VISIBLE_DEVICES";
  const char* is_alias = get("NPUSIM_AS_CUDA");
  const char* of_cuda = get(kOfCuda);
  if (get(kOwn) != nullptr || is_alias == nullptr || std::strcmp(is_alias, "1") != 0) return kOwn;
  const bool counts = of_cuda != nullptr && *of_cuda != '\0' && std::strcmp(of_cuda, "-1") != 0;
  return counts ? kOfCuda : kOwn;
}

std::vector<int> parse_visible_devices(GetVariable get, int device_count) {
  std::vector<int> visible;
  const char* variable = visible_devices_variable(get);
  const char* value = get(variable);
  const bool of_cuda = std::strcmp(variable, "CUDA_VISIBLE_DEVICES") == 0;
  if (value == nullptr) {
    for (int device = 0; device < device_count; ++device) visible.push_back(device);
    return visible;
  }
  const std::string given = value;
  if (given.empty() || given == "-1") return visible;
  std::istringstream items(given);
  for (std::string item; std::getline(items, item, ',');) {
    int device = -1;
    if (!parse_whole(item, &device) || device < 0 || device >= device_count ||
        std::find(visible.begin(), visible.end(), device) != visible.end() || given.back() == ',') {
      const bool once = std::find(visible.begin(), visible.end(), device) == visible.end();
      if (of_cuda && once && !visible.empty()) break;  // CUDA takes those before the wrong one
      reject(variable, given,
             detail::join("different device numbers below NPUSIM_DEVICE_COUNT (", device_count,
                          ") separated by commas, or nothing for no device"));
    }
    visible.push_back(device);
  }
  return visible;
}

std::size_t parse_device_memory(GetVariable get) {
  const std::string given = text_of(get, "NPUSIM_DEVICE_MEMORY");
  if (given.empty()) return 0;
  const std::optional<std::size_t> bytes = parse_bytes(given);
  if (!bytes || *bytes < kMinDeviceBytes || *bytes > kMaxDeviceBytes) {
    reject("NPUSIM_DEVICE_MEMORY", given,
           "a number of bytes from 64KiB to 64TiB, such as 512MiB, 16GiB or 8589934592");
  }
  return *bytes;
}

}  // namespace

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> kKnobs{
      {"NPUSIM_DEVICE_COUNT", "2", "0 to 64", "How many simulated devices there are.",
       Stability::stable},
      {"NPUSIM_VISIBLE_DEVICES", "", "device numbers separated by commas",
       "Which devices the process sees, in which order; set but empty, or -1, means none.",
       Stability::stable},
      {"NPUSIM_DEVICE_MEMORY", "",
       "bytes, with KiB, MiB, GiB, TiB (or KB, MB, GB, TB) in either case",
       "Capacity of each device; the default is the specification's. It may exceed the memory of "
       "the host: pages are taken when touched.",
       Stability::stable},
      {"NPUSIM_SPEC", "npusim-one",
       "a name that `npusim specs` lists, or a path that ends in .toml",
       "The hardware that is simulated: capacity, peak rates, bandwidths, latencies.",
       Stability::stable},
      {"NPUSIM_ISOLATION", "1", "0, 1",
       "1: host code that touches device memory faults. 0: it may read and write it.",
       Stability::stable},
      {"NPUSIM_POISON", "off", "off, freed, fresh, all",
       "Fill fresh blocks with 0xD0 and freed blocks with 0xDF, to make stale reads visible.",
       Stability::stable},
      {"NPUSIM_STRICT_ALIGN", "off", "off, error, copy",
       "An operand whose first element is not on a 32-byte boundary is accepted, is an error, or "
       "is "
       "copied and counted.",
       Stability::stable},
      {"NPUSIM_FAILED_FREE", "warn", "warn, abort",
       "A block that cannot be freed, because it is free already, is a warning, or ends the "
       "process.",
       Stability::experimental},
      {"NPUSIM_LAUNCH_BLOCKING", "0", "0, 1",
       "1: every command is waited for, and a fault is raised at the call that caused it.",
       Stability::stable},
      {"NPUSIM_RACES", "off", "off, report, error",
       "Unordered use of the same memory by two streams, or by a stream and the host, is accepted, "
       "is a warning, or is an error at the second access (docs/use/races.md).",
       Stability::experimental},
      {"NPUSIM_FALLBACK", "silent", "silent, warn, error",
       "An operator without a native kernel runs through the CPU fallback in silence, with a "
       "warning, or not at all.",
       Stability::stable},
      {"NPUSIM_FASTPATH", "1", "0, 1",
       "0: use only interfaces that torch declares public; operators become slower.",
       Stability::experimental},
      {"NPUSIM_AUTOLOAD", "auto", "auto, 0, 1",
       "Whether `import torch` loads this package: auto steps back for another backend, 1 always "
       "loads, 0 never.",
       Stability::stable},
      {"NPUSIM_AS_CUDA", "0", "0, 1",
       "1: code that says \"cuda\" runs on npusim, as after `import torch_npusim.as_cuda`.",
       Stability::experimental},
      {"NPUSIM_RULES", "auto", "auto, off, cuda",
       "cuda: operators refuse what CUDA's kernels refuse and have what these have "
       "(docs/reference/rules.md). "
       "auto: cuda under the CUDA alias, else off.",
       Stability::experimental},
      {"NPUSIM_CUDA_CAPABILITY", "", "7.0, 7.5, 8.0, 8.6, 8.9, 9.0, 10.0",
       "Under the CUDA alias, the compute capability that a run is judged as; unset: that of the "
       "specification, else 8.0.",
       Stability::experimental},
      {"NPUSIM_DEVICE_ASSERT", "now", "now, lasting, late",
       "Under the rules, when an index out of range is reported: at the call; at the call and by "
       "each call after it (the default of pytest --npusim-as-cuda, within a test); or as CUDA "
       "does, at the next synchronisation and from then on.",
       Stability::experimental},
      {"NPUSIM_DRY_RUN", "0", "0, 1",
       "1: operators allocate, and are launched and charged, but compute nothing, and device "
       "memory has no backing (docs/use/dry_runs.md).",
       Stability::experimental},
      {"NPUSIM_FAULT", "",
       "faults such as launch@3; oom%10:device=1; slow%1:factor=3:rank=1; device~0.001:seed=7",
       "Faults to inject from the start: by call number (@), every k-th call (%) or probability "
       "(~). Kinds: oom, launch, hang, device, slow, link, kill. Options: device, rank, seed, "
       "factor, name.",
       Stability::experimental},
      {"NPUSIM_ALLOCATOR", "auto",
       "auto (cuda-2.13 under the CUDA alias, else npusim), npusim, cuda-2.13, cuda-2.12, "
       "cuda-2.11, cuda-2.9, cuda-2.4, ascend, bfc, buddy, banked, or the path of a shared "
       "library (with a /); then ,key:value pairs",
       "A preset of the caching allocator, and keys of PYTORCH_ALLOC_CONF that change it; or a "
       "placement policy (docs/use/lab.md) with settings of its own.",
       Stability::experimental},
  };
  return kKnobs;
}

KnobValue knob_value(const Knob& knob) {
  const char* value = environment(knob.name);
  const bool empty_counts = std::strcmp(knob.name, "NPUSIM_VISIBLE_DEVICES") == 0;
  const bool is_set = value != nullptr && (empty_counts || *value != '\0');
  return {is_set ? value : knob.default_value, is_set};
}

std::optional<std::size_t> parse_bytes(const std::string& text) {
  static constexpr std::pair<const char*, double> kUnits[] = {
      {"", 1},         {"B", 1},    {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30},
      {"TIB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
  };
  const std::size_t first = text.find_first_not_of(' ');
  if (first == text.npos || text[first] < '0' || text[first] > '9') return std::nullopt;
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] =
      std::from_chars(text.data() + first, end, number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit(stop, end);
  unit.erase(unit.find_last_not_of(' ') + 1);
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  for (char& letter : unit) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  for (const auto& [known, factor] : kUnits) {
    const double bytes = number * factor;
    if (unit == known && bytes < 0x1p63) return static_cast<std::size_t>(bytes);
  }
  return std::nullopt;
}

Config parse_config(GetVariable get) {
  Config result;
  result.device_count = parse_device_count(get);
  result.visible_devices = parse_visible_devices(get, result.device_count);
  result.device_memory_bytes = parse_device_memory(get);
  result.device_spec = text_of(get, "NPUSIM_SPEC");  // device_spec() looks it up
  result.isolation = parse_flag(get, "NPUSIM_ISOLATION");
  result.poison = parse_word<PoisonMode>(get, "NPUSIM_POISON",
                                         {{"off", PoisonMode::off},
                                          {"freed", PoisonMode::freed},
                                          {"fresh", PoisonMode::fresh},
                                          {"all", PoisonMode::all}});
  result.strict_align = parse_word<StrictAlign>(
      get, "NPUSIM_STRICT_ALIGN",
      {{"off", StrictAlign::off}, {"error", StrictAlign::error}, {"copy", StrictAlign::copy}});
  result.failed_free_aborts =
      parse_word<bool>(get, "NPUSIM_FAILED_FREE", {{"warn", false}, {"abort", true}});
  result.launch_blocking = parse_flag(get, "NPUSIM_LAUNCH_BLOCKING");
  result.races = parse_word<RaceMode>(
      get, "NPUSIM_RACES",
      {{"off", RaceMode::off}, {"report", RaceMode::report}, {"error", RaceMode::error}});
  result.fallback = parse_word<FallbackMode>(get, "NPUSIM_FALLBACK",
                                             {{"silent", FallbackMode::silent},
                                              {"warn", FallbackMode::warn},
                                              {"error", FallbackMode::error}});
  result.fastpath = parse_flag(get, "NPUSIM_FASTPATH");
  result.autoload = parse_word<Autoload>(
      get, "NPUSIM_AUTOLOAD",
      {{"auto", Autoload::automatic}, {"0", Autoload::never}, {"1", Autoload::always}});
  parse_flag(get, "NPUSIM_AS_CUDA");  // acted on in Python; here only refused if it is neither
  parse_flag(get, "NPUSIM_DRY_RUN");  // likewise
  parse_word<int>(get, "NPUSIM_RULES", {{"auto", 0}, {"off", 0}, {"cuda", 0}});  // likewise
  parse_word<int>(get, "NPUSIM_CUDA_CAPABILITY",
                  {{"", 0},
                   {"7.0", 0},
                   {"7.5", 0},
                   {"8.0", 0},
                   {"8.6", 0},
                   {"8.9", 0},
                   {"9.0", 0},
                   {"10.0", 0}});
  parse_word<int>(get, "NPUSIM_DEVICE_ASSERT", {{"now", 0}, {"lasting", 0}, {"late", 0}});
  result.fault = text_of(get, "NPUSIM_FAULT");
  try {
    parse_fault_script(result.fault);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string("NPUSIM_FAULT: ") + error.what());
  }
  result.allocator = text_of(get, "NPUSIM_ALLOCATOR");
  return result;
}

const Config& config() {
  // Deliberately leaked: destructors of other static objects may still ask at exit.
  static const Config* const kConfig = new Config(parse_config(environment_with_alias));
  return *kConfig;
}

std::vector<int> visible_devices_now() {
  return parse_config(environment_with_alias).visible_devices;
}

void follow_cuda(bool on) noexcept { g_follows_cuda = on; }

}  // namespace npusim
