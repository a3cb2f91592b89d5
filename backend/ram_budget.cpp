// SPDX-License-Identifier: BSD-3-Clause
// Reads /proc and /sys. cgroup v1 and v2 differ in file names only; a limit of any ancestor counts,
// because the kernel kills when any of them is exceeded.
#include "backend/ram_budget.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <vector>

#include "backend/error.h"

namespace npusim {

namespace {

constinit std::atomic<std::uint64_t> g_budget_for_testing{UINT64_MAX};
constinit std::atomic<bool> g_testing{false};
constinit std::atomic<std::uint64_t> g_credit_bytes{0};

// The names of one version of the memory controller.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive;  // rows of memory.stat: page cache that is dropped before anyone is killed
  const char* active;
};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file", "total_active_file"};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::uint64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

// The number after `key` in a file of "key number" or "key: number kB" lines.
std::uint64_t read_row(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t number = 0;
    if (words >> name >> number && name == key) return number;
  }
  return 0;
}

void lower(RamBudget* budget, std::uint64_t available_bytes, const std::string& limit) {
  if (available_bytes < budget->available_bytes) *budget = {available_bytes, limit};
}

void apply_meminfo(const std::string& root, RamBudget* budget) {
  const std::string path = root + "/proc/meminfo";
  const std::uint64_t available_kb = read_row(path, "MemAvailable:");
  if (available_kb != 0)
    lower(budget, available_kb * 1024, "the memory of the host (MemAvailable)");
  if (read_number(root + "/proc/sys/vm/overcommit_memory") == std::uint64_t{2}) {
    const std::uint64_t limit_kb = read_row(path, "CommitLimit:");
    const std::uint64_t used_kb = read_row(path, "Committed_AS:");
    lower(budget, limit_kb > used_kb ? (limit_kb - used_kb) * 1024 : 0,
          "the commit limit of the host (vm.overcommit_memory=2)");
  }
}

void apply_cgroup(const std::string& folder, const CgroupFiles& files, RamBudget* budget) {
  const std::optional<std::uint64_t> limit = read_number(folder + "/" + files.limit);
  const std::optional<std::uint64_t> usage = read_number(folder + "/" + files.usage);
  if (!limit || !usage || *limit > (std::uint64_t{1} << 60)) return;
  const std::string stat = folder + "/memory.stat";
  // Inactive page cache goes at once, active cache in part.
  const std::uint64_t cache = read_row(stat, files.inactive) + read_row(stat, files.active) / 2;
  const std::uint64_t used = *usage - std::min(*usage, cache);
  lower(budget, *limit - std::min(*limit, used),
        detail::join("the memory limit of the control group, ", format_bytes(*limit), " (",
                     files.limit, ")"));
}

// Where the memory controller is mounted, and which part of the hierarchy that mount shows.
struct Mount {
  std::string point;
  std::string shown;
  bool version2;
};

std::vector<Mount> memory_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skip, shown, point, type, source, options;
    words >> skip >> skip >> skip >> shown >> point;
    while (words >> skip && skip != "-") {
    }
    words >> type >> source >> options;
    if (type == "cgroup2") mounts.push_back({point, shown, true});
    const bool has_memory = detail::join(',', options, ',').find(",memory,") != line.npos;
    if (type == "cgroup" && has_memory) mounts.push_back({point, shown, false});
  }
  return mounts;
}

// The path of this process in the hierarchy of the memory controller.
std::string own_path(const std::string& root, bool version2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers =
        detail::join(',', line.substr(first + 1, second - first - 1), ',');
    const bool matches = version2 ? line.compare(0, first, "0") == 0 && controllers == ",,"
                                  : controllers.find(",memory,") != line.npos;
    if (matches) return line.substr(second + 1);
  }
  return "/";
}

// The part of `path` below `shown`. A container may see only its part of the hierarchy, and read
// its own path from outside; a path that lies elsewhere is what the mount shows itself.
std::string below(const std::string& path, const std::string& shown) {
  if (shown == "/") return path;
  const bool inside = path.compare(0, shown.size(), shown) == 0 &&
                      (path.size() == shown.size() || path[shown.size()] == '/');
  return inside ? path.substr(shown.size()) : "";
}

void apply_cgroups(const std::string& root, RamBudget* budget) {
  for (const Mount& mount : memory_mounts(root)) {
    const CgroupFiles& files = mount.version2 ? kVersion2 : kVersion1;
    const std::string top = root + mount.point;
    apply_cgroup(top, files, budget);
    std::string folder = top;
    folder += below(own_path(root, mount.version2), mount.shown);
    for (; folder.size() > top.size(); folder.resize(folder.find_last_of('/'))) {
      apply_cgroup(folder, files, budget);
    }
  }
}

}  // namespace

RamBudget read_ram_budget(const std::string& root) {
  RamBudget budget;
  budget.limit = "no known limit";
  apply_meminfo(root, &budget);
  apply_cgroups(root, &budget);
  return budget;
}

RamBudget ram_budget() {
  if (g_testing.load()) return {g_budget_for_testing.load(), "a limit set by a test"};
  return read_ram_budget();
}

void grant_ram_credit(std::uint64_t bytes) noexcept {
  if (!g_testing.load()) g_credit_bytes.store(bytes);
}

bool spend_ram_credit(std::uint64_t bytes) noexcept {
  std::uint64_t credit_bytes = g_credit_bytes.load();
  while (credit_bytes >= bytes) {
    if (g_credit_bytes.compare_exchange_weak(credit_bytes, credit_bytes - bytes)) return true;
  }
  return false;
}

void set_ram_budget_for_testing(std::optional<std::uint64_t> available_bytes) {
  g_budget_for_testing.store(available_bytes.value_or(UINT64_MAX));
  g_testing.store(available_bytes.has_value());
  g_credit_bytes.store(0);
}

}  // namespace npusim
