// SPDX-License-Identifier: BSD-3-Clause
// The choice of an allocator, and reading it from the environment.
#include "csrc/runtime/allocator_config.h"

#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <mutex>
#include <optional>

#include "backend/backend.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

using npusim::alloc::Config;
using npusim::alloc::LiveAllocator;
using npusim::alloc::PlacementDevice;
using npusim::alloc::Provider;

struct Choice {
  std::mutex mutex;  // guards the rest
  bool is_made = false;
  std::optional<std::string> text;
  std::optional<std::string> of_variable;  // NPUSIM_ALLOCATOR, once an allocator has been made
  std::optional<PluggableFunctions> functions;
  std::optional<std::string> settings;  // of set_allocator_settings(), as one text
};

Choice& choice() {
  static auto* chosen = new Choice;  // never destroyed, as the allocators
  return *chosen;
}

// The alias may come and go before the first allocation; "auto" is settled by that.
std::string of_variable(const Choice& chosen) {
  if (chosen.of_variable.has_value()) return *chosen.of_variable;
  const std::string& text = npusim::config().allocator;
  if (text.substr(0, text.find(',')) != "auto") return text;
  return (is_called_cuda() ? "cuda-2.13" : "npusim") + text.substr(4);
}

// "name,key:value,..." taken apart.
struct Setting {
  explicit Setting(const std::string& text)
      : name(text.substr(0, text.find(','))),
        keys(name.size() == text.size() ? "" : text.substr(name.size() + 1)),
        is_policy(npusim::alloc::is_live_policy(name)) {}
  std::string name;
  std::string keys;
  bool is_policy;
};

template <class Parse>
auto naming(const char* variable, const Parse& parse) {
  try {
    return parse();
  } catch (const npusim::alloc::InvalidArgument& error) {
    TORCH_CHECK_VALUE(false, variable, ": ", error.what());
  }
}

Config preset_of(const Setting& setting) {
  try {
    return npusim::alloc::preset(setting.name);
  } catch (const npusim::alloc::InvalidArgument&) {
    npusim::alloc::reject_live_policy(setting.name);  // its text lists presets and policies
  }
}

Config changed(const Config& config, const std::string& keys, const char* variable) {
  if (keys.empty()) return config;
  return naming(variable, [&] { return npusim::alloc::parse_config(config, keys); });
}

std::string of_environment() { return c10::utils::get_env("PYTORCH_ALLOC_CONF").value_or(""); }

std::string joined(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + "," + second;
}

// `settings`: of set_allocator_settings().
std::string keys_in_force(const Setting& setting, const std::optional<std::string>& settings) {
  const std::string keys = joined(setting.keys, of_environment());
  return settings.has_value() ? npusim::alloc::followed_by(keys, *settings) : keys;
}

Config settings_of(const Setting& setting, const char* variable,
                   const std::optional<std::string>& settings) {
  const Config preset = naming(variable, [&] { return preset_of(setting); });
  const Config chosen = changed(preset, setting.keys, variable);
  const Config config = changed(chosen, of_environment(), "PYTORCH_ALLOC_CONF");
  if (!settings.has_value()) return config;
  return changed(preset, keys_in_force(setting, settings), "set_allocator_settings");
}

std::unique_ptr<LiveAllocator> allocator_of(const std::string& text, Provider& provider,
                                            const char* variable,
                                            const std::optional<std::string>& settings) {
  const Setting setting(text);
  TORCH_CHECK_VALUE(setting.name.find(".py:") == std::string::npos, variable, ": the policy ",
                    setting.name,
                    " is in Python; replay a recording under it (npusim-lab replay), "
                    "or write it in C to run behind a device (allocator/placement/policy_abi.h)");
  if (!setting.is_policy) {
    return std::make_unique<npusim::alloc::CachingAllocator>(
        provider, settings_of(setting, variable, settings));
  }
  TORCH_CHECK_VALUE(of_environment().empty(), "PYTORCH_ALLOC_CONF: its rules are the ",
                    "caching allocator's, but ", variable, " chose the policy ", setting.name,
                    "; unset one of them");
  return naming(variable, [&] {
    return std::make_unique<npusim::alloc::PolicyAllocator>(
        provider, text, [&](PlacementDevice& device) {
          return npusim::alloc::make_live_policy(setting.name, setting.keys, device);
        });
  });
}

// Every block is a segment of its own: the user's functions do the rest.
class PassedOn final : public npusim::alloc::PlacementPolicy {
 public:
  explicit PassedOn(PlacementDevice& device) : device_(device) {}
  npusim::alloc::Placement malloc(const npusim::alloc::PlacementRequest& request) override {
    const npusim::alloc::SegmentResult result = device_.acquire_segment(request.bytes);
    return {result.address, request.bytes};
  }
  void free(const npusim::alloc::Placement& placement,
            const npusim::alloc::PlacementRequest&) override {
    device_.release_segment(placement.address, placement.bytes);
  }

 private:
  PlacementDevice& device_;
};

// What change_allocator() refuses, and what it leaves for make_allocator().
template <class Change>
void change(const Change& body) {
  Choice& chosen = choice();
  const std::lock_guard lock(chosen.mutex);
  TORCH_CHECK(!chosen.is_made,
              "the allocator of the npusim devices is in use already; change it before the first "
              "allocation of the process, and before asking for statistics");
  body(chosen);
}

}  // namespace

std::unique_ptr<LiveAllocator> make_allocator(Provider& provider, c10::DeviceIndex device) {
  Choice& chosen = choice();
  const std::lock_guard lock(chosen.mutex);
  std::unique_ptr<LiveAllocator> made;
  if (chosen.functions.has_value()) {
    made = std::make_unique<npusim::alloc::PolicyAllocator>(
        pluggable_provider(*chosen.functions, device), "pluggable",
        [](PlacementDevice& lender) { return std::make_unique<PassedOn>(lender); });
  } else if (chosen.text.has_value()) {
    made = allocator_of(*chosen.text, provider, "change_current_allocator", chosen.settings);
  } else {
    chosen.of_variable = of_variable(chosen);
    made = allocator_of(*chosen.of_variable, provider, "NPUSIM_ALLOCATOR", chosen.settings);
  }
  chosen.is_made = true;
  return made;
}

void change_allocator(const std::string& text) {
  change([&](Choice& chosen) {
    chosen.text = text;
    chosen.functions.reset();
  });
}

void change_allocator(const PluggableFunctions& functions) {
  change([&](Choice& chosen) { chosen.functions = functions; });
}

// The allocators are made without the lock of the choice, which making them takes.
void set_allocator_settings(const std::string& text) {
  static std::mutex one_at_a_time;
  const std::lock_guard turn(one_at_a_time);
  Choice& chosen = choice();
  std::optional<Config> config;
  std::string all;
  {
    const std::lock_guard lock(chosen.mutex);
    const Setting setting(chosen.text.value_or(of_variable(chosen)));
    TORCH_CHECK_VALUE(!chosen.functions.has_value() && !setting.is_policy,
                      "set_allocator_settings: the settings are the caching allocator's, but "
                      "another allocator was chosen");
    all = naming("set_allocator_settings",
                 [&] { return npusim::alloc::followed_by(chosen.settings.value_or(""), text); });
    config = settings_of(setting, "NPUSIM_ALLOCATOR", all);  // raises for what is not understood
    if (!chosen.is_made) {
      chosen.settings = std::move(all);
      return;
    }
  }
  for_each_allocator([&](LiveAllocator& each) {
    auto* allocator = dynamic_cast<npusim::alloc::CachingAllocator*>(&each);
    if (allocator == nullptr) return;
    naming("set_allocator_settings", [&] { allocator->change_config(*config); });
  });
  const std::lock_guard lock(chosen.mutex);
  chosen.settings = std::move(all);
}

std::string allocator_choice() {
  Choice& chosen = choice();
  const std::lock_guard lock(chosen.mutex);
  if (chosen.functions.has_value()) return "pluggable";
  return chosen.text.value_or(of_variable(chosen));
}

std::string allocator_settings() {
  const std::string choice_text = allocator_choice();
  const Setting setting(choice_text);
  if (choice_text == "pluggable" || setting.is_policy) return joined(choice_text, of_environment());
  Choice& chosen = choice();
  const std::lock_guard lock(chosen.mutex);
  return naming("PYTORCH_ALLOC_CONF",
                [&] { return joined(setting.name, keys_in_force(setting, chosen.settings)); });
}

std::string allocator_name() {
  const std::string text = allocator_choice();
  return text == "pluggable" || Setting(text).is_policy ? text : "native";
}

}  // namespace torch_npusim
