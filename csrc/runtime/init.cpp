// SPDX-License-Identifier: BSD-3-Clause
// Registration order, and leaving the process in order.
#include "csrc/runtime/init.h"

#include <dirent.h>
#include <torch/csrc/autograd/engine.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/pinned_allocator.h"
#include "csrc/runtime/scratch_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

// torch names its device threads "pt_autograd_<index>".
constexpr std::string_view kEngineThreadName = "pt_autograd";

bool engine_threads_alive() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return false;
  bool alive = false;
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream comm(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    std::getline(comm, name);
    alive |= name.compare(0, kEngineThreadName.size(), kEngineThreadName) == 0;
  }
  closedir(tasks);
  return alive;
}

}  // namespace

void register_backend() {
  register_storage_type();
  register_device_allocator();
  register_scratch_allocator();
  register_pinned_allocator();
  register_hooks();
  register_profiler();
}

void drain_engine_threads() {
  if (!engine_threads_alive()) return;
  torch::autograd::Engine::get_default_engine().stop();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (engine_threads_alive() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace torch_npusim
