// SPDX-License-Identifier: BSD-3-Clause
// Every NPUSIM_* environment variable in one table, parsed into one value.
// Invariant: the environment is read once, on first use; afterwards the value never changes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace npusim {

enum class Stability { stable, experimental, internal };

// One row of the table. `values` says what is accepted, in words.
struct Knob {
  const char* name;
  const char* default_value;
  const char* values;
  const char* doc;
  Stability stability;
};

enum class PoisonMode { off, freed, fresh, all };
enum class StrictAlign { off, error, copy };
enum class FallbackMode { silent, warn, error };
enum class RaceMode { off, report, error };
enum class Autoload { automatic, always, never };

struct Config {
  int device_count = 2;                 // as configured, before NPUSIM_VISIBLE_DEVICES
  std::vector<int> visible_devices;     // logical index -> configured index
  std::string device_spec;              // name of a specification, or a file of one
  std::size_t device_memory_bytes = 0;  // 0: what the spec says
  bool isolation = true;
  PoisonMode poison = PoisonMode::off;
  StrictAlign strict_align = StrictAlign::off;
  bool failed_free_aborts = false;
  bool launch_blocking = false;
  RaceMode races = RaceMode::off;
  FallbackMode fallback = FallbackMode::silent;
  bool fastpath = true;
  Autoload autoload = Autoload::automatic;
  std::string fault;      // script, see fault.h
  std::string allocator;  // preset[,key:value...]; parsed by csrc/
};

// config() returns the parsed environment. Throws InvalidArgument naming the knob, the value given
// and what is accepted; a later call then reads again. Thread-safe.
const Config& config();

// knobs() returns the table, in the order of the documentation.
const std::vector<Knob>& knobs();

// knob_value() is the text in effect (environment or default), `is_set` whether the environment
// gave it. An empty variable counts as unset, except NPUSIM_VISIBLE_DEVICES (no devices).
struct KnobValue {
  std::string text;
  bool is_set;
};
KnobValue knob_value(const Knob& knob);

// parse_bytes() reads "4096", "512MiB", "16GiB", "1.5GB"; nothing if `text` is no number of bytes.
std::optional<std::size_t> parse_bytes(const std::string& text);

// parse_config() is config() over any source of variables (tests use a map): `get` returns nullptr
// for an unset variable.
using GetVariable = const char* (*)(const char* name);
Config parse_config(GetVariable get);

}  // namespace npusim
