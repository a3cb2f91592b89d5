// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of the latest caller of backward().
#include "csrc/runtime/backward_threads.h"

#include <ATen/Parallel.h>
#include <pthread.h>

#include <cfenv>
#include <mutex>
#include <string_view>

namespace torch_npusim {

namespace {

struct Arithmetic {
  int threads = 0;            // 0: nobody has called backward()
  std::fenv_t environment{};  // denormals and rounding
};

std::mutex g_mutex;
Arithmetic g_caller;  // under g_mutex

bool is_engine_thread() {
  thread_local const bool found = [] {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    return std::string_view(name).substr(0, 11) == "pt_autograd";
  }();
  return found;
}

}  // namespace

void keep_backward_caller() {
  if (is_engine_thread()) return;
  Arithmetic own;
  own.threads = at::get_num_threads();
  std::fegetenv(&own.environment);
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_caller = own;
}

void follow_backward_caller() {
  if (!is_engine_thread()) return;
  Arithmetic caller;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    caller = g_caller;
  }
  if (caller.threads == 0) return;
  if (caller.threads != at::get_num_threads()) at::set_num_threads(caller.threads);
  std::fesetenv(&caller.environment);
}

}  // namespace torch_npusim
