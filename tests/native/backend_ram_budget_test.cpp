// SPDX-License-Identifier: BSD-3-Clause
// The limits of the host, read from made-up /proc and /sys trees: cgroup v1, v2, containers.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "backend/backend.h"
#include "backend/ram_budget.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// A folder that plays the root of a file system and goes away with the test.
class Tree {
 public:
  Tree() {
    std::string pattern = (std::filesystem::temp_directory_path() / "npusim-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    write("/proc/meminfo",
          "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"
          "CommitLimit: 2097152 kB\nCommitted_AS: 1048576 kB\n");
    write("/proc/sys/vm/overcommit_memory", "0\n");
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  RamBudget read() const { return read_ram_budget(root_); }

 private:
  std::string root_;
};

void mount_v2(const Tree& tree, const char* shown = "/") {
  tree.write("/proc/self/mountinfo", std::string("30 23 0:26 ") + shown +
                                         " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 "
                                         "rw,nsdelegate\n");
}

}  // namespace

TEST(without_control_groups_the_host_is_the_limit) {  // (rule M5)
  const Tree tree;
  CHECK_EQ(tree.read().available_bytes, 8192 * kMiB);
  CHECK_EQ(tree.read().limit, "the memory of the host (MemAvailable)");
}

TEST(strict_overcommit_counts_what_is_committed) {  // (rule M5)
  const Tree tree;
  tree.write("/proc/sys/vm/overcommit_memory", "2\n");
  CHECK_EQ(tree.read().available_bytes, 1024 * kMiB);
}

TEST(version_2_counts_every_ancestor_and_forgives_cache) {  // (rule M5)
  const Tree tree;
  mount_v2(tree);
  tree.write("/proc/self/cgroup", "0::/user.slice/job\n");
  tree.write("/sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  tree.write("/sys/fs/cgroup/user.slice/job/memory.current", "99\n");
  tree.write("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
  tree.write("/sys/fs/cgroup/user.slice/memory.current", "1073741824\n");
  tree.write("/sys/fs/cgroup/user.slice/memory.stat",
             "anon 1\ninactive_file 104857600\nactive_file 20971520\n");
  const RamBudget budget = tree.read();
  CHECK_EQ(budget.available_bytes, 110 * kMiB);
  CHECK_EQ(budget.limit, "the memory limit of the control group, 1.00 GiB (memory.max)");
}

TEST(version_1_is_found_among_other_controllers) {  // (rule M5)
  const Tree tree;
  tree.write("/proc/self/mountinfo",
             "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
             "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  tree.write("/proc/self/cgroup", "9:cpu:/other\n4:memory:/a/b\n0::/\n");
  tree.write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "536870912\n");
  tree.write("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "134217728\n");
  tree.write("/sys/fs/cgroup/memory/a/b/memory.stat",
             "inactive_file 1\ntotal_inactive_file 4096\n");
  tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  CHECK_EQ(tree.read().available_bytes, 384 * kMiB + 4096);
}

TEST(a_container_that_sees_its_own_part_only_is_understood) {  // (rule M5)
  const Tree tree;
  mount_v2(tree, "/docker/abc");
  tree.write("/proc/self/cgroup", "0::/docker/abc/inner\n");
  tree.write("/sys/fs/cgroup/inner/memory.max", "209715200\n");
  tree.write("/sys/fs/cgroup/inner/memory.current", "0\n");
  CHECK_EQ(tree.read().available_bytes, 200 * kMiB);
  mount_v2(tree, "/docker/ab");  // another group whose name begins alike
  tree.write("/sys/fs/cgroup/memory.max", "104857600\n");
  tree.write("/sys/fs/cgroup/memory.current", "209715200\n");
  CHECK_EQ(tree.read().available_bytes, 0);  // over its limit: nothing is left
}

TEST(unreadable_files_are_no_limit) {  // (rule M5)
  const Tree tree;
  tree.write("/proc/meminfo", "");
  mount_v2(tree);
  tree.write("/proc/self/cgroup", "0::/gone\n");
  CHECK_EQ(tree.read().available_bytes, UINT64_MAX);
}

TEST(this_machine_has_a_limit) {
  const RamBudget budget = read_ram_budget();
  CHECK(budget.available_bytes > 0 && budget.available_bytes < UINT64_MAX);
}

TEST(credit_is_spent_once) {  // (rule M5)
  set_ram_budget_for_testing(std::nullopt);
  grant_ram_credit(100);
  CHECK(spend_ram_credit(60) && !spend_ram_credit(60) && spend_ram_credit(40));
  CHECK(!spend_ram_credit(1));
  grant_ram_credit(100);
  set_ram_budget_for_testing(5);
  CHECK(!spend_ram_credit(1));
  grant_ram_credit(100);
  CHECK(!spend_ram_credit(1));
}
