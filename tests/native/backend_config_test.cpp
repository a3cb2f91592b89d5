// SPDX-License-Identifier: BSD-3-Clause
// The knob table, its parser and the named specifications.
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "backend/backend.h"
#include "tests/native/backend_child.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

std::map<std::string, std::string> variables;

const char* from_map(const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : found->second.c_str();
}

Config parse(const std::map<std::string, std::string>& given) {
  variables = given;
  return parse_config(from_map);
}

std::string error_of(const std::map<std::string, std::string>& given) {
  try {
    parse(given);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(defaults_are_two_isolated_devices) {
  const Config value = parse({});
  CHECK_EQ(value.device_count, 2);
  CHECK_EQ(value.visible_devices.size(), 2);
  CHECK_EQ(value.device_spec, "npusim-one");
  CHECK_EQ(value.device_memory_bytes, 0);
  CHECK(value.isolation && value.fastpath && !value.launch_blocking);
  CHECK_EQ(value.poison, PoisonMode::off);
  CHECK_EQ(value.fallback, FallbackMode::silent);
  CHECK_EQ(value.allocator, "auto");
}

TEST(every_knob_is_read) {
  const Config value = parse({{"NPUSIM_DEVICE_COUNT", "4"},
                              {"NPUSIM_VISIBLE_DEVICES", "3,1"},
                              {"NPUSIM_DEVICE_MEMORY", "512MiB"},
                              {"NPUSIM_SPEC", "npusim-mini"},
                              {"NPUSIM_ISOLATION", "0"},
                              {"NPUSIM_POISON", "all"},
                              {"NPUSIM_STRICT_ALIGN", "copy"},
                              {"NPUSIM_LAUNCH_BLOCKING", "1"},
                              {"NPUSIM_FALLBACK", "error"},
                              {"NPUSIM_FASTPATH", "0"},
                              {"NPUSIM_AUTOLOAD", "1"},
                              {"NPUSIM_FAULT", "oom@2"},
                              {"NPUSIM_ALLOCATOR", "cuda-2.13"}});
  CHECK(value.visible_devices == std::vector<int>{3, 1});
  CHECK_EQ(value.device_memory_bytes, std::size_t{512} << 20);
  CHECK_EQ(value.device_spec, "npusim-mini");
  CHECK(!value.isolation && !value.fastpath && value.launch_blocking);
  CHECK_EQ(value.poison, PoisonMode::all);
  CHECK_EQ(value.strict_align, StrictAlign::copy);
  CHECK_EQ(value.fallback, FallbackMode::error);
  CHECK_EQ(value.autoload, Autoload::always);
  CHECK_EQ(value.fault, "oom@2");
  CHECK_EQ(value.allocator, "cuda-2.13");
}

TEST(an_error_names_the_knob_the_value_and_what_is_accepted) {
  CHECK_EQ(error_of({{"NPUSIM_POISON", "maybe"}}),
           "NPUSIM_POISON is `maybe`; accepted: off, freed, fresh, all. Set it to one of these or "
           "unset it.");
  for (const char* count : {"-1", "65", "two", "1x", "99999999999"}) {
    CHECK(contains(error_of({{"NPUSIM_DEVICE_COUNT", count}}), "a whole number from 0 to 64"));
  }
  for (const char* devices : {"2", "0,0", "a", "0,", ",0", "0,-1"}) {
    CHECK(contains(error_of({{"NPUSIM_VISIBLE_DEVICES", devices}}), "NPUSIM_VISIBLE_DEVICES is `"));
  }
  for (const char* bytes : {"1", "-5GiB", "16 gigs", "999999TiB", "1e12", "nan", "inf"}) {
    CHECK(contains(error_of({{"NPUSIM_DEVICE_MEMORY", bytes}}), "from 64KiB to 64TiB"));
  }
  CHECK(contains(error_of({{"NPUSIM_FAULT", "melt@1"}}), "NPUSIM_FAULT: the fault `melt@1`"));
}

TEST(an_empty_variable_is_the_default_except_for_visible_devices) {
  CHECK_EQ(parse({{"NPUSIM_DEVICE_COUNT", ""}}).device_count, 2);
  CHECK_EQ(parse({{"NPUSIM_VISIBLE_DEVICES", ""}}).visible_devices.size(), 0);
  CHECK_EQ(parse({{"NPUSIM_VISIBLE_DEVICES", "-1"}}).visible_devices.size(), 0);
}

TEST(cudas_variable_chooses_devices_under_the_alias_alone) {
  CHECK_EQ(parse({{"CUDA_VISIBLE_DEVICES", "1"}}).visible_devices.size(), 2);
  CHECK_EQ(parse({{"NPUSIM_AS_CUDA", "1"}, {"CUDA_VISIBLE_DEVICES", "1"}}).visible_devices,
           std::vector<int>{1});
  for (const char* hidden : {"", "-1"}) {  // hides the host's GPUs
    CHECK_EQ(
        parse({{"NPUSIM_AS_CUDA", "1"}, {"CUDA_VISIBLE_DEVICES", hidden}}).visible_devices.size(),
        2);
  }
  CHECK_EQ(
      parse(
          {{"NPUSIM_AS_CUDA", "1"}, {"CUDA_VISIBLE_DEVICES", "1"}, {"NPUSIM_VISIBLE_DEVICES", "0"}})
          .visible_devices,
      std::vector<int>{0});
  CHECK_EQ(parse({{"NPUSIM_AS_CUDA", "1"}, {"CUDA_VISIBLE_DEVICES", "1,5,0"}}).visible_devices,
           std::vector<int>{1});
  CHECK(contains(error_of({{"NPUSIM_AS_CUDA", "1"}, {"CUDA_VISIBLE_DEVICES", "0,0"}}),
                 "CUDA_VISIBLE_DEVICES is `0,0`"));
  CHECK(contains(error_of({{"NPUSIM_AS_CUDA", "1"}, {"CUDA_VISIBLE_DEVICES", "7"}}),
                 "CUDA_VISIBLE_DEVICES is `7`"));
}

TEST(the_table_has_unique_documented_rows) {
  std::set<std::string> names;
  for (const Knob& knob : knobs()) {
    CHECK(names.insert(knob.name).second);
    CHECK(std::string(knob.name).rfind("NPUSIM_", 0) == 0);
    CHECK(std::string(knob.doc).back() == '.');
    CHECK(*knob.values != '\0');
  }
}

TEST(bytes_are_read_with_binary_and_decimal_suffixes) {
  // The tables of tests/plugin/test_byte_sizes.py.
  const std::pair<const char*, std::size_t> accepted[] = {
      {"4096", 4096},
      {"4096B", 4096},
      {"512MiB", std::size_t{512} << 20},
      {"512mib", std::size_t{512} << 20},
      {"1.5 GiB", std::size_t{3} << 29},
      {" 2KB ", 2000},
      {"16gb", 16'000'000'000},
      {"1TiB", std::size_t{1} << 40},
      {"3.MB", 3'000'000},
  };
  for (const auto& [text, bytes] : accepted) CHECK(parse_bytes(text) == bytes);
  for (const char* text : {"", "much", "-1", "1.5.5", ".", ".5GiB", "512M", "1 2", "4 kibi", "+3",
                           "1e9", "0x10", "GiB", "1GiBB", "9e99"}) {
    CHECK(!parse_bytes(text).has_value());
  }
  CHECK_EQ(format_bytes(std::size_t{16} << 30), "16.00 GiB");
  CHECK_EQ(format_bytes(1023), "1023 bytes");
}

TEST(an_unusable_configuration_counts_no_devices_and_explains_itself) {
  CHECK(child::exited(child::run([] {
    setenv("NPUSIM_DEVICE_COUNT", "many", 1);
    CHECK_EQ(device_count(), 0);
    CHECK_EQ(current_stream(0).device(), -1);
    CHECK_THROWS(initialize(), InvalidArgument);
    CHECK_THROWS(set_device(0), InvalidArgument);
    CHECK(!initialized());
    setenv("NPUSIM_DEVICE_COUNT", "3", 1);
    CHECK_EQ(device_count(), 3);
    initialize();
    CHECK_EQ(device_spec(2).memory_bytes, std::size_t{16} << 30);
  })));
}

TEST(no_visible_device_is_no_error_until_one_is_used) {
  CHECK(child::exited(child::run([] {
    setenv("NPUSIM_VISIBLE_DEVICES", "", 1);
    CHECK_EQ(device_count(), 0);
    initialize();
    CHECK_THROWS(set_device(0), InvalidArgument);
    CHECK_THROWS(acquire_segment(0, 4096), InvalidArgument);
    CHECK(!is_device_address(&variables));
  })));
}
